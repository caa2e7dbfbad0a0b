"""An LMDB takes images that are kept as they are from the source, where it gives them again cheaply."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wellfed.converters import convert, pack
from wellfed.converters.inputs.folder import FolderInput
from wellfed.converters.outputs.lmdb import EnvironmentWriter
from wellfed.converters.request import Job
from wellfed.converters.selection import SelectionOptions
from wellfed.converters.task import ShardTask
from wellfed.pipeline.errors import SourceChangedError


def test_images_read_again_give_the_bytes_of_staged_ones(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a folder with a file that is rejected, and a shuffled order
    (photos / "b" / "0.jpg").write_bytes(b"no image")
    used: list[str] = []

    def recorded(job: Job, number: int, start: int, stop: int) -> ShardTask:
        task = real(job, number, start, stop)
        used.append(task.use)
        return task

    real = pack._task
    monkeypatch.setattr(pack, "_task", recorded)
    options = {"output": "lmdb", "shard_samples": 5, "selection": SelectionOptions(shuffle=3)}
    # when it is converted from its files, and once more with the images staged
    convert(photos, tmp_path / "direct", **options)  # type: ignore[arg-type]
    monkeypatch.setattr(FolderInput, "rereads", False)
    convert(photos, tmp_path / "staged", **options)  # type: ignore[arg-type]
    # then the images were staged once only, and every file is the same
    assert used == ["without_images"] * 3 + ["staged"] * 3
    names = sorted(path.name for path in (tmp_path / "direct").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "staged").iterdir())
    for name in names:
        assert (tmp_path / "direct" / name).read_bytes() == (tmp_path / "staged" / name).read_bytes(), name


@pytest.mark.parametrize("how", ["written again", "removed"])
def test_a_file_that_changes_after_it_was_checked_ends_the_run(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_jpeg: Callable[..., bytes], how: str
) -> None:
    # given a file that changes between the worker's check and the writing of the environment
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
