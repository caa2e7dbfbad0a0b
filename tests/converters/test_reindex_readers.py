"""Tars of other tools, indexed where they lie: DALI and wids read through the indexes what tarfile reads without."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from wellfed.converters.reindex import index_shards
from wellfed.pipeline.cli.main import main

MakeJpeg = Callable[..., bytes]
Read = dict[str, tuple[bytes, bytes]]
"""Key to the bytes of image and label."""


def by_webdatasets_writer(folder: Path, shard: int, make_jpeg: MakeJpeg) -> None:
    """Its float times make PAX records before every member."""
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(folder / f"part-{shard}.tar")) as writer:
        for number in range(3):
            image = make_jpeg(10 * shard + number, width=30 + number)
            writer.write({"__key__": f"n0{shard}_{number}", "jpg": image, "cls": number})


def by_gnu_tar(folder: Path, shard: int, make_jpeg: MakeJpeg) -> None:
    plain = folder.parent / f"plain-{shard}"
    plain.mkdir()
    for number in range(3):
        (plain / f"n0{shard}_{number}.jpg").write_bytes(make_jpeg(10 * shard + number, width=30 + number))
        (plain / f"n0{shard}_{number}.cls").write_text(str(number))
    names = sorted(path.name for path in plain.iterdir())
    subprocess.run(["tar", "-cf", folder / f"part-{shard}.tar", "-C", plain, *names], check=True)


@pytest.fixture(params=[by_webdatasets_writer, by_gnu_tar])
def shards(request: pytest.FixtureRequest, tmp_path: Path, make_jpeg: MakeJpeg) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    for shard in range(2):
        request.param(folder, shard, make_jpeg)
    return folder


def by_tarfile(path: Path) -> Read:
    with tarfile.open(path) as tar:
        data = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    return {name[:-4]: (data[name], data[f"{name[:-4]}.cls"]) for name in data if name.endswith(".jpg")}


def test_dali_reads_through_our_index_and_the_tars_stay_as_they_are(
    shards: Path, read_by_dali: Callable[[Path, Sequence[str]], list[tuple[bytes, ...]]]
) -> None:
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in shards.glob("*.tar")}
    result = index_shards(str(shards), workers=1)
    assert (result.stored, result.dali_indexes) == (6, 2)
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in shards.glob("*.tar")} == before
    for path in sorted(shards.glob("*.tar")):
        found = read_by_dali(path, ["jpg", "cls"])
        assert len(found) == 3
        assert found == list(by_tarfile(path).values())


def test_wids_reads_through_our_index(tmp_path: Path, make_jpeg: MakeJpeg) -> None:
    wids = pytest.importorskip("wids")
    shards = tmp_path / "shards"
    shards.mkdir()
    for shard in range(2):
        by_gnu_tar(shards, shard, make_jpeg)
    assert index_shards(str(shards), workers=1).wids_index
    dataset = wids.ShardListDataset(str(shards / "data.json"), cache_dir=str(tmp_path / "cache"), keep=True)
    dataset.transformations = []
    found = {}
    for row in range(len(dataset)):
        sample = dataset[row]
        found[sample["__key__"]] = (sample[".jpg"].read(), sample[".cls"].read())
    assert found == by_tarfile(shards / "part-0.tar") | by_tarfile(shards / "part-1.tar")


def test_wids_gets_no_index_of_tars_with_extended_headers(
    tmp_path: Path, make_jpeg: MakeJpeg, capsys: pytest.CaptureFixture[str]
) -> None:
    by_webdatasets_writer(tmp_path, 0, make_jpeg)
    with pytest.raises(SystemExit):
        main(["index", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix in (".idx", ".json")) == [
        "part-0.idx",
        "wellfed.json",
    ]
    assert f"wellfed convert {tmp_path} DST" in " ".join(capsys.readouterr().out.split())


def test_names_that_readers_read_differently_get_no_index_and_are_told(
    tmp_path: Path, make_jpeg: MakeJpeg, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a b.jpg").write_bytes(make_jpeg(1))
    (tmp_path / "a b.cls").write_text("0")
    subprocess.run(["tar", "-cf", "a.tar", "a b.jpg", "a b.cls"], check=True, cwd=tmp_path)
    with pytest.raises(SystemExit):
        main(["index", str(tmp_path / "a.tar")])
    assert not (tmp_path / "a.idx").exists()
    assert not (tmp_path / "data.json").exists()
    said = " ".join("".join(capsys.readouterr()).split())
    assert "a b.jpg" in said
    assert "wellfed convert" in said
