"""Where samples come from: memory, files, storage."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wellfed.pipeline.config import LoaderConfig, LoaderSettings
from wellfed.pipeline.formats import RepeatedSource, Source, open_source
from wellfed.pipeline.loader import make_loader
from wellfed.pipeline.tune.machine import supply as module
from wellfed.pipeline.tune.machine.supply import SuppliedSource, check_cold, some_rows
from wellfed.pipeline.tune.machine.throughput import reading_rate
from wellfed.pipeline.tune.rig import UnmeasuredError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    root = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (root / label).mkdir()
        for number in range(6):
            pixels = draw.integers(0, 255, (96, 96, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / label / f"{number}.jpg", quality=95)
    os.sync()  # pages that are not written yet cannot be forgotten
    found = open_source(str(root))
    yield found
    found.close()


def keeps_pages(source: Source) -> bool:
    try:
        check_cold(source, np.arange(len(source)))
    except UnmeasuredError:
        return True
    return False


@pytest.mark.parametrize("supply", ["bytes", "files", "storage"])
def test_the_same_samples_from_everywhere(source: Source, supply: module.Supply) -> None:
    if supply == "storage" and keeps_pages(source):
        pytest.skip("this file system keeps its pages")
    rows = np.array([1, 4, 7])
    some = SuppliedSource(source, rows, supply)
    assert len(some) == 3
    for copy in (some, pickle.loads(pickle.dumps(some))):
        assert [copy.read(row) for row in range(3)] == [source.read(int(row)) for row in rows]
        assert [bytes(b) for b in copy.read_rows(np.array([2, 0]))] == [source.read(7), source.read(1)]
        assert copy.index["key"].tolist() == source.index["key"][rows].tolist()
        assert copy.name(1) == source.name(4)


def test_a_loader_reads_from_it(source: Source) -> None:
    some = RepeatedSource(SuppliedSource(source, np.arange(4), "bytes"), 3)
    settings = LoaderSettings(backend="threads", num_workers=1, batch_size=4)
    with make_loader(some, LoaderConfig(settings=settings, image_size=32)) as loader:
        assert [labels.tolist() for _, labels in loader] == [[0, 0, 0, 0]] * 3


def test_a_read_after_evicting_finds_no_page(source: Source) -> None:
    if keeps_pages(source):
        pytest.skip("this file system keeps its pages")
    source.read(0)
    path = Path(source.location) / source.name(0)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        module.evict(source, np.array([0]))
        with pytest.raises(BlockingIOError):
            os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    finally:
        os.close(descriptor)


def test_a_file_system_in_memory_is_said_to_be_one(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: None)
    source.read(0)
    with pytest.raises(UnmeasuredError, match=r"keeps the files' pages in memory|does not say"):
        check_cold(source, np.array([0]))


def test_rows_are_as_many_as_memory_may_hold(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    assert some_rows(source).tolist() == list(range(12))
    sizes = source.index["size_image"]
    monkeypatch.setattr(module, "MOST_BYTES", int(sizes[:3].sum()) + 1)
    assert some_rows(source).tolist() == [0, 1, 2]
    monkeypatch.setattr(module, "MOST_BYTES", 1)
    assert some_rows(source).tolist() == [0]


def test_reading_by_the_clock(source: Source) -> None:
    # given a clock on which each look takes 10 ms: warm reading goes on for the time, 100 samples/s
    now = iter(np.arange(0.0, 1000.0, 0.01).tolist())
    warm = reading_rate(source, "random", "warm", 0.5, seed=0, clock=lambda: next(now))
    assert warm == pytest.approx(100, rel=0.05)
    if not keeps_pages(source):
        # cold reading ends after the set's 12 samples
        assert reading_rate(source, "sequential", "cold", 60.0, seed=0, clock=lambda: next(now)) == pytest.approx(100)
