"""Views into an LMDB map: never copied, never dangling, whatever closes, forks or runs beside."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from wellfed.pipeline.formats import lent, open_source
from wellfed.pipeline.formats.environments import ENVIRONMENTS
from wellfed.pipeline.formats.lmdb import LmdbSource
from wellfed.pipeline.formats.readahead import RecentBlocks
from wellfed.pipeline.formats.reading import read_rows


def _mapped(path: Path) -> list[tuple[int, int]]:
    """Where this process has a file mapped, from the system's own list."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    places = [line.split()[0].split("-") for line in lines if line.endswith(str(path))]
    return [(int(start, 16), int(end, 16)) for start, end in places]


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)


def test_many_rows_are_views_into_the_map(lmdb_folder: Path, samples: list) -> None:
    source = LmdbSource(lmdb_folder)
    views = source.read_rows(np.array([2, 0]))
    ((start, end),) = _mapped(lmdb_folder / "data.mdb")
    assert all(start <= _address(view) < end and view.readonly for view in views)
    assert [bytes(view) for view in views] == [samples[2][4], samples[0][4]]


def test_the_map_stays_until_the_last_view_is_gone(lmdb_folder: Path, samples: list) -> None:
    # given one view, and no source any more
    source = open_source(lmdb_folder)
    kept = read_rows(source, np.array([0, 1]))[1]
    source.close()
    del source
    gc.collect()
    assert bytes(kept) == samples[1][4]

    # and what is made of it keeps it, too
    part = np.frombuffer(kept[2:], dtype=np.uint8)
    del kept
    gc.collect()
    assert part.tobytes() == samples[1][4][2:]

    # then nothing stays mapped once it is gone
    del part
    gc.collect()
    assert _mapped(lmdb_folder / "data.mdb") == []


def test_transactions_are_used_again(lmdb_folder: Path) -> None:
    source = LmdbSource(lmdb_folder)
    for _ in range(50):
        read_rows(source, np.array([0, 2]))
    with ENVIRONMENTS:
        environment = ENVIRONMENTS.open(lmdb_folder / "data.mdb")
    assert (len(environment.spare), len(environment.leases)) == (1, 0)
    kept = [read_rows(source, np.array([row]))[0] for row in (0, 1)]
    assert (len(environment.spare), len(environment.leases)) == (0, 2)
    del kept
    assert (len(environment.spare), len(environment.leases)) == (2, 0)


def test_threads_read_at_once(lmdb_folder: Path, samples: list) -> None:
    source = LmdbSource(lmdb_folder)

    def look(row: int) -> bool:
        return all(bytes(read_rows(source, np.array([row, 0]))[0]) == samples[row][4] for _ in range(200))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(look, [0, 1, 2] * 8))


@pytest.mark.parametrize("held", [True, False])
def test_a_forked_child_keeps_the_views_it_got_and_reads_on(lmdb_folder: Path, samples: list, held: bool) -> None:
    source = LmdbSource(lmdb_folder)
    views = source.read_rows(np.array([0, 1, 2]))
    if not held:
        views.clear()
    child = os.fork()
    if child == 0:
        whole = all(bytes(view) == sample[4] for view, sample in zip(views, samples, strict=False))
        again = all(bytes(source.read_rows(np.array([row]))[0]) == samples[row][4] for row in (2, 1, 0) * 20)
        views.clear()
        source.close()
        os._exit(0 if whole and again and source.read(1) == samples[1][4] else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert source.read(0) == samples[0][4]


def test_what_rows_need_is_told_ahead(lmdb_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(lent, "LARGE_BYTES", 1300)
    monkeypatch.setattr(lent, "_madvise", lambda start, length, advice: told.append((start, start + length)))
    source = LmdbSource(lmdb_folder)
    source.will_need(np.array([2, 1, 0]), RecentBlocks())
    # the values of 2500 and 1500 bytes, not that of 1200, in whole pages at their start
    whole, some = source.read_rows(np.array([2, 0]))
    assert len(told) == 4
    for (start, end), view in zip(told[:2], (whole, some), strict=True):
        assert start % 4096 == 0
        assert start <= _address(view) < start + 4096
        assert end == _address(view) + len(view)

    # and what cannot be told is left to reading it
    (lmdb_folder / "data.mdb").unlink()
    LmdbSource(lmdb_folder).will_need(np.array([0]), RecentBlocks())


def test_a_missing_key_names_its_row(lmdb_folder: Path) -> None:
    path = lmdb_folder / "wellfed.index.npy"
    index = np.load(path)
    index["key"] += 5
    np.save(path, index)
    with pytest.raises(Exception, match=r"no key 0000000007\.png.*row 1|row 1.*no key 0000000007\.png"):
        LmdbSource(lmdb_folder).read_rows(np.array([1]))
