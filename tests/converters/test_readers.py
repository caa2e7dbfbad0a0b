"""Readers that are not ours read everything that we write."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lmdb
import pytest

from wellfed.converters import convert


@pytest.fixture
def mixed(photos: Path) -> Path:
    """The photos, one of them unusable, so that the keys have a gap."""
    (photos / "b" / "0.jpg").write_bytes(b"no image")
    return photos


@pytest.fixture
def expected(mixed: Path) -> dict[str, tuple[bytes, int]]:
    """Key to image bytes and label."""
    paths = [(c, label, n) for label, c in enumerate("abc") for n in range(4)]
    return {
        f"{key:010d}": ((mixed / c / f"{n}.jpg").read_bytes(), label)
        for key, (c, label, n) in enumerate(paths)
        if (c, n) != ("b", 0)
    }


@pytest.fixture
def tars(mixed: Path, tmp_path: Path) -> Path:
    convert(mixed, tmp_path / "wds", output="webdataset", shard_bytes=20_000)
    return tmp_path / "wds"


def test_tar_command_and_tarfile(tars: Path, expected: dict[str, tuple[bytes, int]]) -> None:
    seen: dict[str, bytes] = {}
    for path in sorted(tars.glob("*.tar")):
        listed = subprocess.run(["tar", "tf", path], capture_output=True, text=True, check=True)
        assert listed.stderr == ""
        with tarfile.open(path, "r:") as tar:
            assert listed.stdout.split() == tar.getnames()
            seen |= {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    assert len(seen) == 3 * 11
    for key, (image, label) in expected.items():
        assert seen[f"{key}.jpg"] == image
        assert seen[f"{key}.cls"] == str(label).encode()
        assert json.loads(seen[f"{key}.json"])["class"] == "abc"[label]


def test_webdataset(tars: Path, expected: dict[str, tuple[bytes, int]]) -> None:
    webdataset = pytest.importorskip("webdataset")
    urls = sorted(str(path) for path in tars.glob("*.tar"))
    samples = list(webdataset.WebDataset(urls, shardshuffle=False))
    assert {each["__key__"]: (each["jpg"], int(each["cls"])) for each in samples} == expected
    assert len(samples) == 11


def test_wids(tars: Path, expected: dict[str, tuple[bytes, int]], tmp_path: Path) -> None:
    wids = pytest.importorskip("wids")
    dataset = wids.ShardListDataset(str(tars / "data.json"), cache_dir=str(tmp_path / "cache"), keep=True)
    dataset.transformations = []
    assert len(dataset) == 11
    samples = [dataset[row] for row in range(11)]
    seen = {each["__key__"]: (each[".jpg"].read(), int(each[".cls"].read())) for each in samples}
    assert seen == expected


def test_dali_through_its_index(
    tars: Path,
    expected: dict[str, tuple[bytes, int]],
    read_by_dali: Callable[[Path, Sequence[str]], list[tuple[bytes, ...]]],
) -> None:
    seen: dict[bytes, int] = {}
    for path in sorted(tars.glob("*.tar")):
        for image, label in read_by_dali(path, ["jpg", "cls"]):
            seen[image] = int(label)
    assert seen == dict(expected.values())


def test_plain_lmdb(mixed: Path, tmp_path: Path, expected: dict[str, tuple[bytes, int]]) -> None:
    convert(mixed, tmp_path / "l", output="lmdb", shard_bytes=20_000)
    environment = lmdb.open(str(tmp_path / "l"), readonly=True, lock=False)
    with environment, environment.begin() as transaction:
        entries = {bytes(key).decode(): bytes(value) for key, value in transaction.cursor()}
    assert list(entries) == [f"{key}.{extension}" for key in expected for extension in ("cls", "jpg", "json")]
    for key, (image, label) in expected.items():
        assert entries[f"{key}.jpg"] == image
        assert entries[f"{key}.cls"] == str(label).encode()
        assert json.loads(entries[f"{key}.json"])["class"] == "abc"[label]


@pytest.mark.parametrize("output", ["webdataset", "lmdb"])
def test_every_odd_image_is_stored_or_rejected(
    shared_data: Path, tmp_path: Path, output: Any, digests: Callable[[Path], dict[str, str]]
) -> None:
    from wellfed.converters import verify

    root = shared_data / "odd-images"
    results = [convert(root, tmp_path / str(n), output=output, shard_bytes=1_000_000, workers=n) for n in (1, 2)]
    assert results[0].stored + results[0].rejected == results[0].found
    assert digests(tmp_path / "1") == digests(tmp_path / "2")
    assert verify(tmp_path / "1", deep=True).problems == ()
