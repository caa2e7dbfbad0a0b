"""Samples/s of reading and of copying, each by itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ...formats import Source
from ...training import Accelerator
from ..rig import Cache, Order
from .supply import check_cold, evict, some_rows

Clock = Callable[[], float]

_COPIES_IN_FLIGHT = 4
_LEAST_READ = 8


def reading_rate(source: Source, order: Order, cache: Cache, seconds: float, *, seed: int, clock: Clock) -> float:
    """Samples/s of one thread that reads encoded samples.

    Args:
        order: "sequential" as they are stored, or "random".
        cache: "warm" reads the same samples again and again, "cold" each once after their pages were forgotten; it ends
            early where they are all read.
        seconds: at most.

    Raises:
        UnmeasuredError: cold, where pages cannot be forgotten.
    """
    rows = some_rows(source)
    if cache == "cold":
        check_cold(source, rows)
    if order == "random":
        rows = np.random.default_rng(seed).permutation(rows)
    if cache == "cold":
        evict(source, rows)
    else:
        # As many as are read anew in the time: those that lie in the page cache afterwards.
        rows = rows[: max(_LEAST_READ, _read(source, rows, seconds, clock)[0])]
    done, took = _read(source, rows, seconds, clock, again=cache == "warm")
    return done / took


def _read(source: Source, rows: np.ndarray, seconds: float, clock: Clock, again: bool = False) -> tuple[int, float]:
    """How many were read, and in which time."""
    started = now = clock()
    done = 0
    while now - started < seconds and (again or done < len(rows)):
        source.read(int(rows[done % len(rows)]))
        done += 1
        now = clock()
    return done, max(now - started, 1e-9)


def copying_rate(
    accelerator: Accelerator, batch_size: int, image_size: int, seconds: float, *, pinned: bool, clock: Clock
) -> float:
    """Samples/s of copying uint8 batches to the device, some of them in flight at once.

    Args:
        pinned: from page-locked memory.
    """
    images = torch.zeros((batch_size, 3, image_size, image_size), dtype=torch.uint8)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.zeros(batch_size, dtype=torch.int64)
    if pinned:
        images, labels = images.pin_memory(), labels.pin_memory()
    accelerator.copy((images, labels))
    accelerator.synchronize()
    started = now = clock()
    samples = 0
    while now - started < seconds:
        for _ in range(_COPIES_IN_FLIGHT):
            accelerator.copy((images, labels))
        samples += _COPIES_IN_FLIGHT * batch_size
        accelerator.synchronize()
        now = clock()
    return samples / (now - started)
