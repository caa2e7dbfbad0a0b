"""What other programs take of the cores is told from what this one takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from wellfed.pipeline.hardware.others import CoreWatch


def watch(*, busy: list[float | None], own: list[float], cores: int = 4) -> CoreWatch:
    """A watch over 10 s."""
    clock: Iterator[float] = iter([100.0, 110.0])
    busy_values, own_values = iter(busy), iter(own)
    return CoreWatch(
        lambda: next(clock), busy=lambda: next(busy_values), own=lambda: next(own_values), cores=lambda: cores
    )


@pytest.mark.parametrize(
    ("busy", "own", "share"),
    [
        # 40 core seconds: 30 busy, 10 of them ours
        ([500.0, 530.0], [7.0, 17.0], 0.5),
        ([500.0, 510.0], [7.0, 17.0], 0.0),
        # counters of different clocks: never under nothing
        ([500.0, 509.9], [7.0, 17.0], 0.0),
        ([None, None], [7.0, 17.0], None),
    ],
)
def test_the_share_of_others(busy: list[float | None], own: list[float], share: float | None) -> None:
    assert watch(busy=busy, own=own).others_share() == share


BURN = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass"


def test_what_children_take_is_our_own() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        taken = CoreWatch(time.monotonic)
        one = taken._own()
        subprocess.run([sys.executable, "-c", BURN.format(0.3)], check=True)
        child = subprocess.Popen([sys.executable, "-c", BURN.format(60)])
        try:
            time.sleep(0.7)
            # one that has ended, and one that still runs; on a machine that others use each gets a part of the time
            assert taken._own() - one > 0.1
            assert taken._busy() is None or taken.others_share() is not None
        finally:
            child.kill()
            child.wait()
    finally:
        os.sched_setaffinity(0, cores)
