"""Memory of worker processes: read from the kernel, and its growth told from warming up and from new workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wellfed.pipeline import DataLoader
from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.hardware.process_memory import anonymous_bytes
from wellfed.pipeline.tune.machine.worker_memory import read_beside, worker_memory
from wellfed.pipeline.tune.measure.boundary import Boundaries
from wellfed.pipeline.tune.measure.hold import hold

ROLLUP = """\
5632e6bc6000-7ffe1883f000 ---p 00000000 00:00 0                          [rollup]
Rss:              522120 kB
Pss:              300000 kB
Pss_Anon:         120004 kB
Pss_File:         179996 kB
Private_Dirty:    200000 kB
"""


def test_anonymous_memory_is_the_kernels_share(tmp_path: Path) -> None:
    (tmp_path / "41").mkdir()
    (tmp_path / "41" / "smaps_rollup").write_text(ROLLUP)
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "smaps_rollup").write_text(ROLLUP.replace("Pss_Anon", "Other"))
    assert anonymous_bytes(41, proc=tmp_path) == 120_004 * 1024
    # an old kernel, and a process that has ended
    assert anonymous_bytes(42, proc=tmp_path) is None
    assert anonymous_bytes(43, proc=tmp_path) is None


def test_the_workers_of_a_loader_are_read_and_nobody_else(tmp_path: Path) -> None:
    for number in range(8):
        path = tmp_path / "a" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((40, 40, 3), number, np.uint8)).save(path)
    found: list[Mapping[int, int]] = []
    with DataLoader(str(tmp_path), batch_size=2, image_size=32, backend="processes", num_workers=2) as loader:
        assert loader.worker_pids == ()
        for _ in loader:
            pids = loader.worker_pids
        with read_beside(pids, found.append):
            pass
        assert len(pids) == 2
        assert set(found[0]) == set(pids)
        # more than a page, and less than everything that torch maps
        assert all(1 << 20 < size < 1 << 30 for size in found[0].values())
    assert loader.worker_pids == ()
    with DataLoader(str(tmp_path), batch_size=2, image_size=32, backend="threads", num_workers=2) as loader:
        next(iter(loader))
        assert loader.worker_pids == ()


def test_growth_is_that_of_all_workers_after_the_first_third() -> None:
    # given 30 MB/s while caches fill, and then 1,000 and 3,000 bytes/s
    readings = [{1: 10**7 * t, 2: 2 * 10**7 * t} for t in range(3)]
    readings += [{1: 10**8 + 1000 * t, 2: 10**8 + 3000 * t} for t in range(3, 9)]
    found = worker_memory(list(range(9)), readings, first=3)
    assert found.slope is not None
    assert found.slope.value == pytest.approx(4000)
    assert (found.processes, len(found.total_bytes), found.total_bytes[1]) == (2, 9, 3 * 10**7)


def test_workers_that_were_started_anew_are_not_compared_with_those_before() -> None:
    old, new = [{1: 9 * 10**8}] * 7, [{2: 10**8}] * 2
    found = worker_memory(list(range(9)), old + new, first=3)
    assert (found.slope, found.reason) == (None, "2 readings of the same workers are too few")
    assert found.total_bytes == (10**8, 10**8)


@pytest.mark.parametrize("keep", [True, False])
def test_new_workers_that_settle_are_no_growth(fake_rig: Any, keep: bool) -> None:
    class Settling(fake_rig):  # type: ignore[misc]
        """After a boundary memory is small and grows by 30 MB/s for 12 s."""

        run: Any = None
        crossed_then, since = 0, 0.0

        def epoch_samples(self, batch_size: int) -> int:
            return 10**6

        @contextmanager
        def hold(self, settings: LoaderSettings, *, samples_before_boundary: int) -> Iterator[Any]:
            with super().hold(settings, samples_before_boundary=samples_before_boundary) as self.run:
                yield self.run

        def _window(self, *arguments: Any) -> Any:
            if self.run is not None and self.run.epochs_crossed > self.crossed_then:
                self.crossed_then, self.since = self.run.epochs_crossed, self.now
            window = super()._window(*arguments)
            return replace(window, host_rss_bytes=(10**9 + int(3e7 * min(12.0, self.now - self.since)),))

    settings = LoaderSettings(backend="processes", num_workers=2, persistent_workers=keep, batch_size=32)
    held = hold(Settling(), settings, seconds=60.0, expected_samples_per_second=600.0)
    # given a boundary in the fifth of 12 windows; kept workers would have no reason to grow after it
    assert (len(held.windows), held.crossed_in) == (12, (4,))
    assert held.host_slope is not None
    assert (held.host_slope.value > 1e5) is keep
    assert held.host_slope.value == 0.0 or keep


@pytest.mark.parametrize("backend", ["processes", "threads"])
def test_workers_of_a_slow_loader_have_settled_after_100_batches(fake_rig: Any, backend: Any) -> None:
    class Growing(fake_rig):  # type: ignore[misc]
        """Memory grows by 30 MB/s for the first 45 s of a hold."""

        def _window(self, *arguments: Any) -> Any:
            window = super()._window(*arguments)
            return replace(window, host_rss_bytes=(10**9 + int(3e7 * min(45.0, self.now)),))

    settings = LoaderSettings(backend=backend, num_workers=2, batch_size=32)
    # given 75 samples/s, so that a window of 5 s has 11 batches, and 100 of them are over after the tenth
    rig = Growing(loader=lambda s: 75.0)
    held = hold(rig, settings, seconds=60.0, expected_samples_per_second=75.0)
    assert held.windows[0].steps == 11
    # processes have too few windows left for a slope of theirs; threads have nothing that settles so slowly
    assert held.grows is (backend == "threads")


@pytest.mark.parametrize(
    ("kept", "new", "keep"),
    [
        ((0.1, 0.2, 0.1), (3.0, 4.0, 3.0), True),
        ((2.0, 2.1, 2.2), (1.9, 1.0, 1.5), False),
        # one that was shorter when kept: no judgement against keeping
        ((2.0, 1.8, 2.2), (1.9, 1.0, 1.5), True),
        # and none from two
        ((2.0, 2.0), (1.0, 1.0), True),
    ],
)
def test_workers_are_kept_unless_every_boundary_with_new_ones_was_shorter(
    kept: tuple[float, ...], new: tuple[float, ...], keep: bool
) -> None:
    assert Boundaries(kept, new).keep is keep
