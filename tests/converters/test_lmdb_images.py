"""An LMDB takes images that are kept as they are from the source, where it gives them again cheaply."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wellfed.converters import convert
from wellfed.converters.inputs.folder import FolderInput
from wellfed.converters.outputs import tar as tar_module
from wellfed.pipeline.errors import SourceChangedError


def test_images_read_again_give_the_bytes_of_staged_ones(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a folder with a file that is rejected, and a shuffled order
    (photos / "b" / "0.jpg").write_bytes(b"no image")
    from wellfed.converters.selection import SelectionOptions

    options = {"output": "lmdb", "shard_samples": 5, "selection": SelectionOptions(shuffle=3)}
    # when it is converted from its files, and once more with the images staged
    convert(photos, tmp_path / "direct", **options)  # type: ignore[arg-type]
    monkeypatch.setattr(FolderInput, "rereads", False)
    convert(photos, tmp_path / "staged", **options)  # type: ignore[arg-type]
    # then every file is the same
    names = sorted(path.name for path in (tmp_path / "direct").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "staged").iterdir())
    for name in names:
        assert (tmp_path / "direct" / name).read_bytes() == (tmp_path / "staged" / name).read_bytes(), name


@pytest.mark.parametrize("how", ["written again", "removed"])
def test_a_file_that_changes_after_it_was_checked_ends_the_run(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_jpeg: Callable[..., bytes], how: str
) -> None:
    # given a file that changes between the worker's check and the writing of the environment
    from wellfed.converters.outputs.lmdb import EnvironmentWriter

    real = EnvironmentWriter.add

    def late(self: EnvironmentWriter, part: object) -> None:
        path = photos / "b" / "1.jpg"
        path.unlink(missing_ok=True)
        if how == "written again":
            path.write_bytes(make_jpeg(99))
        real(self, part)  # type: ignore[arg-type]

    monkeypatch.setattr(EnvironmentWriter, "add", late)
    # when it is converted, then that is said, and nothing is published
    with pytest.raises(SourceChangedError):
        convert(photos, tmp_path / "out", output="lmdb")
    assert not (tmp_path / "out" / "wellfed.json").exists()


def test_a_tar_is_given_to_the_disk_while_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a tar of 20 MiB, and a record of what the disk is told to write
    from wellfed.converters import writeback

    told: list[tuple[int, int]] = []
    monkeypatch.setattr(writeback, "_sync_file_range", lambda fd, start, size, flags: told.append((start, size)))
    with tar_module.TarWriter(tmp_path / "a.tar") as tar:
        for number in range(20):
            tar.add(f"{number}.bin", bytes(1 << 20))
    # then it was told twice, each time of 8 MiB or little more, without gaps, and never beyond what was written
    assert len(told) == 2
    assert told[0][0] == 0
    assert told[1][0] == sum(told[0])
    assert all(8 << 20 <= size < 10 << 20 for _, size in told)
    assert sum(told[1]) <= (tmp_path / "a.tar").stat().st_size
