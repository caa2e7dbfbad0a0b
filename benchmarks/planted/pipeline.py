"""A loader of formulas on a virtual clock: workers, a shared disk, the GIL, stragglers and a bounded queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from wellfed.pipeline.config import LoaderSettings

STOCK_TIMES = 2.0
"""Pillow and transforms v2 over the fast path's time."""


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A machine, a dataset and a step; as they stand here, nothing binds but the step.

    Attributes:
        cores: usable.
        read_seconds: latency of one read, by one reader.
        storage_rate: samples/s that the disk gives to all readers together.
        decode_seconds: of a core, for one sample.
        gil_share: of that time, in which no other thread of the process runs Python.
        slow_share, slow_times: samples that take so many times as long.
        copy_rate: samples/s to the device.
        samples_per_second, launch_seconds, memory_bytes: of the device; see `training.simulated.Preset`.
        resize_times: samples/s from smaller images over those from the stored ones.
    """

    cores: int = 8
    read_seconds: float = 1e-4
    storage_rate: float = 50_000.0
    decode_seconds: float = 0.004
    gil_share: float = 0.02
    slow_share: float = 0.0
    slow_times: float = 1.0
    copy_rate: float = 100_000.0
    samples_per_second: float = 1000.0
    launch_seconds: float = 0.010
    memory_bytes: int = 24 << 30
    resize_times: float = 1.8


class Clock:
    """Seconds that pass only when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)


def host_batch(batch_size: int, image_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch whose size the device's ledger counts, in a few bytes of memory."""
    images = torch.zeros(1, dtype=torch.uint8).expand(batch_size, 3, image_size, image_size)
    return images, torch.zeros(1, dtype=torch.int64).expand(batch_size)


class Batches:
    """Batches of one loader without end, delivered in order when the virtual clock has reached their time."""

    def __init__(
        self,
        plant: Plant,
        settings: LoaderSettings | None,
        batch_size: int,
        image_size: int,
        clock: Clock,
        random: np.random.Generator,
    ) -> None:
        self._plant, self._clock, self._random = plant, clock, random
        self._batch = host_batch(batch_size, image_size)
        self._size = batch_size
        self._stock = STOCK_TIMES if settings is None else 1.0
        workers = 0 if settings is None else settings.num_workers
        processes = settings is not None and settings.backend == "processes"
        self._threads = workers if not processes else 1
        # Threads decode one batch together, processes one each.
        self._free = [clock()] * (workers if processes else min(1, workers))
        self._ahead = 0 if settings is None else settings.prefetch_factor * max(1, len(self._free))
        self._ready: list[float] = []
        self._disk_free = clock()
        self._number = 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return self

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._free:
            self._clock.sleep(self._cost(self._clock(), lanes=1))
            return self._batch
        if not self._ready:
            self._fill()
        self._clock.sleep(self._ready.pop(0) - self._clock())
        # A place in the queue is free from now on.
        self._fill()
        return self._batch

    def _fill(self) -> None:
        while len(self._ready) < self._ahead:
            worker = self._number % len(self._free)
            start = max(self._free[worker], self._clock())
            self._free[worker] = start + self._cost(start, lanes=max(1, self._threads))
            # In order: a batch is not delivered before the one ahead of it.
            self._ready.append(max(self._free[worker], self._ready[-1] if self._ready else 0.0))
            self._number += 1

    def _cost(self, start: float, *, lanes: int) -> float:
        """Seconds until a batch that is begun at `start` is ready."""
        plant, n = self._plant, self._size
        slow = int(self._random.binomial(n, plant.slow_share)) if plant.slow_share else 0
        one = plant.decode_seconds * self._stock * float(self._random.normal(1.0, 0.03))
        work = (n + slow * (plant.slow_times - 1)) * one
        busy = min(lanes, plant.cores)
        crowd = max(1.0, len(self._free) / plant.cores)  # more workers than cores take turns
        seconds = max(work * plant.gil_share + work * (1 - plant.gil_share) / busy, one * plant.slow_times * (slow > 0))
        seconds = (seconds + n * plant.read_seconds / busy) * crowd
        self._disk_free = max(self._disk_free, start) + n / plant.storage_rate
        return max(seconds, self._disk_free - start)
