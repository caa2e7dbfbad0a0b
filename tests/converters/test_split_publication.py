"""A split publishes all of its parts or none, wherever it fails or is stopped."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wellfed.converters import verify
from wellfed.converters.inputs import InputOptions, list_input
from wellfed.converters.run import convert
from wellfed.converters.selection import SelectionOptions, select
from wellfed.pipeline.errors import SampleRejectedError, UsageError

SPLIT = SelectionOptions(split=(("train", 0.75), ("val", 0.25)))


@pytest.fixture
def bad_part(photos: Path) -> Path:
    """Photos of which every one that falls to "val" is no image."""
    source = list_input(str(photos), InputOptions())
    part = select(source, SPLIT)["val"]
    for number in range(part.found):
        (photos / os.fsdecode(source.name(part.row(number)))).write_bytes(b"text")
    return photos


@pytest.mark.parametrize("exists", [False, True])
def test_a_part_of_nothing_but_rejects_publishes_no_part_and_leaves_nothing(
    bad_part: Path, tmp_path: Path, exists: bool
) -> None:
    if exists:
        (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match=r"the part 'val' of the split must hold .* 3 samples, all rejected"):
        convert(bad_part, tmp_path / "out", output="webdataset", selection=SPLIT)
    assert (tmp_path / "out").exists() is exists
    assert not exists or os.listdir(tmp_path / "out") == []


def test_too_many_rejects_in_one_part_publish_no_part_and_more_continue(bad_part: Path, tmp_path: Path) -> None:
    with pytest.raises(SampleRejectedError, match="at most 1 of 3 samples may be rejected"):
        convert(bad_part, tmp_path / "out", output="webdataset", selection=SPLIT, max_rejects=1)
    assert not list((tmp_path / "out").glob("*/wellfed.json"))


def test_parts_are_the_same_bytes_whether_or_not_the_run_was_stopped_between_them(
    photos: Path, tmp_path: Path, digests: Callable[[Path], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from wellfed.converters import run

    convert(photos, tmp_path / "whole", output="lmdb", selection=SPLIT)
    packed, calls = run.pack_and_assemble, []

    def stop_at_the_second(*arguments: Any) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return packed(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(run, "pack_and_assemble", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            convert(photos, tmp_path / "out", output="lmdb", selection=SPLIT)
    result = convert(photos, tmp_path / "out", output="lmdb", selection=SPLIT)
    assert (result.stored, result.resumed) == (12, 12)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert verify(tmp_path / "out" / "val").problems == ()
