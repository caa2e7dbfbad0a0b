"""Measurements that are made only where a verdict would rest on them: parallel reading, slow samples, resizing."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ...config import LoaderSettings
from ...decode.header import read_header
from ...decode.rewrite import to_resized
from ...errors import SampleRejectedError
from ...formats import RepeatedSource, Source, open_source
from ..statistics import Interval, paired_ratio

__all__ = ["ResizeGain", "SlowSamples", "read_in_parallel", "resize_gain", "slow_samples"]

RESIZE_SAMPLES = 512
RESIZE_QUALITY = 90
"""The quality that `wellfed convert --image resize:N` encodes with where none is given."""

_ROUNDS = 3
_PREPARING = 0.5  # of the time that is given; the rest is measured
_SLOW_TIMES = 10.0
_FEW = 0.05
_MUCH = 0.10


@dataclass(frozen=True)
class ResizeGain:
    """What smaller images would bring.

    Attributes:
        side: pixels of the shorter side.
        samples: how many of the dataset's were resized.
        ratio: samples/s of the loader by itself on the resized ones over the same as they are stored.
    """

    side: int
    samples: int
    ratio: Interval

    def to_dict(self) -> dict[str, Any]:
        """The report's `parts.resize`."""
        ratio = self.ratio
        return {
            "side": self.side,
            "samples": self.samples,
            "ratio": ratio.value,
            "low": ratio.low,
            "high": ratio.high,
        }


@dataclass(frozen=True)
class SlowSamples:
    """A few samples that take much of the time.

    Attributes:
        samples: how many were read and decoded one by one.
        share: of the samples, 0..1.
        times: their median time over the median of all.
        time_share: of the time, 0..1.
    """

    samples: int
    share: float
    times: float
    time_share: float

    def to_dict(self) -> dict[str, Any]:
        """The report's `parts.slow_samples`."""
        return {
            "samples": self.samples,
            "share": self.share,
            "times": self.times,
            "time_share": self.time_share,
        }


def slow_samples(seconds: Sequence[float]) -> SlowSamples | None:
    """Those that take ten times the median or more, where they are few (5%) and take much of the time (10%).

    Args:
        seconds: of each sample, read and decoded by itself.
    """
    if len(seconds) < 20 or (middle := median(seconds)) <= 0:
        return None
    slow = [value for value in seconds if value >= _SLOW_TIMES * middle]
    # One alone may be the machine's own hiccup.
    if len(slow) < 2 or len(slow) > _FEW * len(seconds) or sum(slow) < _MUCH * sum(seconds):
        return None
    return SlowSamples(len(seconds), len(slow) / len(seconds), median(slow) / middle, sum(slow) / sum(seconds))


def read_in_parallel(source: Source, readers: int, seconds: float, *, seed: int, clock: Callable[[], float]) -> float:
    """Samples/s that this many threads read, without decoding, in random order."""
    rows = np.random.default_rng(seed).permutation(len(source))
    done = [0] * readers
    started = clock()
    failures: list[BaseException] = []

    def read(number: int) -> None:
        try:
            while clock() - started < seconds:
                source.read(int(rows[(done[number] * readers + number) % len(rows)]))
                done[number] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(n,), name=f"wellfed-read-{n}") for n in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(done) / (clock() - started)


def resize_gain(
    source: Source,
    settings: LoaderSettings,
    *,
    side: int,
    folder: Path,
    workers: int,
    seconds: float,
    seed: int,
    clock: Callable[[], float],
    rate_of: Callable[[Source, float], float],
) -> ResizeGain | None:
    """The loader on some of the samples as they are stored, and resized; both as files in a folder, in turn.

    Args:
        settings: of the loader; here only its batch size matters.
        side: pixels of the shorter side.
        folder: empty; the caller removes it.
        workers: threads that resize.
        seconds: for all of it; where they do not suffice for 512 samples, fewer are resized.
        rate_of: samples/s of the loader alone over a source, measured for so many seconds.

    Returns:
        None where no sample was larger than that.
    """
    rows = np.random.default_rng(seed).permutation(len(source))[:RESIZE_SAMPLES]
    started = clock()
    resized = 0

    def prepare(row: int) -> int:
        if clock() - started >= _PREPARING * seconds:
            return -1
        data = bytes(source.read(row))
        try:
            small = to_resized(data, side=side, quality=RESIZE_QUALITY, level="header")
        except SampleRejectedError:
            return -1  # the loader will say so; here it only does not count
        for name, content in (("stored", data), ("resized", small.data)):
            kind = read_header(content).format.lower()
            (folder / name / "all" / f"{row}.{'jpg' if kind in ('jpeg', 'mpo') else kind}").write_bytes(content)
        return int(small.data != data)

    for name in ("stored", "resized"):
        (folder / name / "all").mkdir(parents=True)
    with ThreadPoolExecutor(workers, "wellfed-resize") as pool:
        outcomes = [outcome for outcome in pool.map(prepare, map(int, rows)) if outcome >= 0]
    resized = sum(outcomes)
    if not resized:
        return None
    opened = [open_source(str(folder / name)) for name in ("stored", "resized")]
    try:
        # Batches must be whole ones, and an epoch of few batches would be measured at its ends.
        times = max(1, math.ceil(50 * settings.batch_size / len(outcomes)))
        repeated = [RepeatedSource(each, times) for each in opened]
        each_seconds = (1 - _PREPARING) * seconds / (2 * _ROUNDS)
        rates = [[rate_of(one, each_seconds) for one in repeated] for _ in range(_ROUNDS)]
    finally:
        for one in opened:
            one.close()
    if min(rate for pair in rates for rate in pair) <= 0:
        return None
    ratio = paired_ratio([pair[1] for pair in rates], [pair[0] for pair in rates], seed=seed)
    return ResizeGain(side, len(outcomes), ratio)
