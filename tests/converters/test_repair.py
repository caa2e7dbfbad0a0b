"""Damaged files are made again to the byte, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wellfed.converters import convert, pack
from wellfed.converters.inputs import InputOptions
from wellfed.converters.repair import repair
from wellfed.converters.request import Job
from wellfed.converters.selection import SelectionOptions
from wellfed.converters.verify import Problem
from wellfed.pipeline.cli.main import main
from wellfed.pipeline.errors import DamagedDatasetError, SourceChangedError, UsageError
from wellfed.pipeline.formats import INDEX_NAME, Manifest

Digests = Callable[[Path], dict[str, str]]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory, module_photos: Path) -> Path:
    """`photos` with one file that is no image, as `wds` in five shards and as `lmdb`."""
    root = tmp_path_factory.mktemp("repair")
    photos = Path(shutil.copytree(module_photos, root / "photos"))
    (photos / "a" / "1 bad.jpg").write_text("no image")
    convert(photos, root / "wds", output="webdataset", shard_bytes=14_000, workers=1)
    convert(photos, root / "lmdb", output="lmdb", workers=1)
    return root


@pytest.fixture
def wds(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / "wds", tmp_path / "wds"))


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def repaired(folder: Path, source: Path | None = None) -> tuple[str, ...]:
    """Repair as if verification had found something in every file: what is whole must stay."""
    manifest = Manifest.load(folder)
    names = [*manifest.files, *(shard.name for shard in manifest.shards), "extra"]
    problems = [Problem(file=name, key=None, what="perhaps") for name in names]
    return repair(folder, problems, source=None if source is None else str(source), workers=1)


def test_damaged_and_lost_shards_are_packed_again_and_no_other(
    originals: Path, wds: Path, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a flipped bit in one shard, another one lost, and a lost DALI index
    damage(wds / "data-000001.tar")
    (wds / "data-000003.tar").unlink()
    (wds / "data-000002.idx").unlink()
    packed: list[tuple[int, int]] = []
    real = pack.pack

    def counting(job: Job, *further: Any) -> Any:
        packed.extend(job.plan.tasks)
        return real(job, *further)

    monkeypatch.setattr("wellfed.converters.repair.pack", counting)
    # when they are repaired, then these alone were made, two tasks were packed, and every byte is as it was
    assert repaired(wds, originals / "photos") == ("data-000001.tar", "data-000002.idx", "data-000003.tar")
    assert len(packed) == 2
    assert digests(wds) == digests(originals / "wds")


def test_indexes_of_other_tools_need_no_source(originals: Path, wds: Path, digests: Digests) -> None:
    damage(wds / "data-000000.idx")
    (wds / "data.json").unlink()
    assert repaired(wds) == ("data-000000.idx", "data.json")
    assert digests(wds) == digests(originals / "wds")


def test_our_own_files_take_the_whole_source(originals: Path, wds: Path, digests: Digests) -> None:
    names = ["data-000000.tar", "rejects.jsonl", INDEX_NAME, "wellfed.names.bin"]
    for name in names:
        damage(wds / name)
    assert repaired(wds, originals / "photos") == tuple(names)
    assert digests(wds) == digests(originals / "wds")


def test_an_environment_is_written_again(originals: Path, tmp_path: Path, digests: Digests) -> None:
    folder = Path(shutil.copytree(originals / "lmdb", tmp_path / "lmdb"))
    damage(folder / "data.mdb")
    assert repaired(folder, originals / "photos") == ("data.mdb",)
    assert digests(folder) == digests(originals / "lmdb")


def test_a_part_of_a_shuffled_split_is_repaired(originals: Path, tmp_path: Path, digests: Digests) -> None:
    convert(
        originals / "photos",
        tmp_path / "parts",
        output="webdataset",
        shard_samples=2,
        workers=1,
        input=InputOptions(classes=("c", "b")),
        selection=SelectionOptions(split=(("train", 0.5), ("val", 0.5)), shuffle=3, exclude=("*/3.jpg",)),
    )
    before = digests(tmp_path / "parts")
    damage(tmp_path / "parts" / "val" / "data-000000.tar")
    assert repaired(tmp_path / "parts" / "val", originals / "photos") == ("data-000000.tar",)
    assert digests(tmp_path / "parts") == before


def test_another_kind_of_stored_dataset_is_a_source_too(originals: Path, tmp_path: Path, digests: Digests) -> None:
    convert(originals / "wds", tmp_path / "lmdb", output="lmdb", workers=1)
    before = digests(tmp_path / "lmdb")
    damage(tmp_path / "lmdb" / "data.mdb")
    assert repaired(tmp_path / "lmdb", originals / "wds") == ("data.mdb",)
    assert digests(tmp_path / "lmdb") == before


def test_a_changed_source_repairs_nothing(originals: Path, wds: Path, tmp_path: Path, digests: Digests) -> None:
    damage(wds / "data-000001.tar")
    before = digests(wds)
    photos = Path(shutil.copytree(originals / "photos", tmp_path / "photos"))
    # a file of another size shows when the source is listed
    (photos / "c" / "3.jpg").write_bytes(b"xx")
    with pytest.raises(SourceChangedError, match="the very source it was converted from"):
        repaired(wds, photos)
    # one with the same size only when its shard is made again
    shutil.copy(originals / "photos" / "c" / "3.jpg", photos / "c" / "3.jpg")
    for number in range(4):
        damage(photos / "a" / f"{number}.jpg")
        damage(photos / "b" / f"{number}.jpg")
    with pytest.raises(DamagedDatasetError, match=r"'data-000001.tar' has not"):
        repaired(wds, photos)
    assert digests(wds) == before


def test_without_a_source_nothing_is_touched(wds: Path, digests: Digests) -> None:
    damage(wds / "data-000001.tar")
    before = digests(wds)
    with pytest.raises(UsageError, match=r"data-000001\.tar.*--source"):
        repaired(wds)
    assert digests(wds) == before


def test_a_whole_dataset_needs_no_repair_and_an_extra_file_stays(wds: Path) -> None:
    assert repaired(wds) == ()
    (wds / "extra").touch()
    assert repaired(wds) == ()
    assert (wds / "extra").exists()


def test_the_command_repairs_and_checks_again(originals: Path, wds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(wds / "data-000001.tar")
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(wds), "--repair", "--source", str(originals / "photos"), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (ended.value.code, report["ok"], report["repaired"]) == (0, True, ["data-000001.tar"])
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(wds), "--source", "x"])
    assert ended.value.code == 2
