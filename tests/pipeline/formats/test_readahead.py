"""What the system is told to read ahead."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from wellfed.pipeline.errors import DamagedDatasetError
from wellfed.pipeline.formats import readahead, webdataset
from wellfed.pipeline.formats.readahead import RecentBlocks
from wellfed.pipeline.formats.webdataset import WebDatasetSource


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """(file, offset, length) of each hint, in blocks of 1 KiB."""
    told: list[tuple[str, int, int]] = []

    def advise(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        told.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, offset, length))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(webdataset, "READ_BLOCK", 1024)
    return told


def test_each_block_that_rows_lie_in_is_told_once(webdataset_folder: Path, told: list[tuple[str, int, int]]) -> None:
    # given images at 512..2011 and 2560..3759 of the first shard and at 512..3011 of the second
    source, hinted = WebDatasetSource(webdataset_folder), RecentBlocks()
    source.will_need(np.array([2, 0]), hinted)
    assert told == [
        ("pets-000000.tar", 0, 1024),
        ("pets-000000.tar", 1024, 1024),
        ("pets-000001.tar", 0, 1024),
        ("pets-000001.tar", 1024, 1024),
        ("pets-000001.tar", 2048, 1024),
    ]
    told.clear()
    source.will_need(np.array([0, 1]), hinted)
    assert told == [("pets-000000.tar", 2048, 1024), ("pets-000000.tar", 3072, 1024)]
    source.close()


def test_a_shard_that_is_missing_is_an_error_where_it_is_read(
    webdataset_folder: Path, told: list[tuple[str, int, int]]
) -> None:
    source = WebDatasetSource(webdataset_folder)
    (webdataset_folder / "pets-000000.tar").unlink()
    source.will_need(np.array([0, 1, 2]), RecentBlocks())
    assert {name for name, _, _ in told} == {"pets-000001.tar"}
    with pytest.raises(DamagedDatasetError, match=r"pets-000000\.tar"):
        source.read(0)
    source.close()


def test_storage_that_takes_no_hints_is_read_without_them(
    webdataset_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    source = WebDatasetSource(webdataset_folder)
    source.will_need(np.array([0]), RecentBlocks())
    assert source.read(0) == b"first" * 300
    source.close()


def test_blocks_told_longest_ago_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readahead, "REMEMBERED", 2)
    blocks = RecentBlocks()
    assert [blocks.add((0, number)) for number in (1, 2, 1, 3)] == [True, True, False, True]
    # 1 was told again after 2, so 2 made room for 3.
    assert [blocks.add((0, number)) for number in (1, 3, 2)] == [False, False, True]
