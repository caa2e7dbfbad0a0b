"""Decoding on both sides at once: some batches by DALI or nvJPEG, the others by the CPU path's threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

import torch

from ..config import LoaderConfig
from ..errors import MissingDependencyError
from .batch import BatchDecoder, BatchTask, HostBatch, Side
from .blocks import Blocks
from .cpu_pool import Chunk, CpuPool, failures_of, give_up
from .dali import dali_engine
from .device_engine import DeviceEngine
from .engine_backend import EngineBackend, batches_ahead, dali_threads
from .engines import Route, Take
from .nvjpeg import has_nvjpeg, nvjpeg_engine

__all__ = ["CpuEngine", "HybridBackend", "spread_evenly"]

AT_ONCE = 4
"""Batches that the CPU threads work on: while the last chunks of one are decoded, all threads have work."""

_PARTS = 10_000
"""The share is kept in whole parts of this, so that no rounding of floats moves a batch to the other side."""


class HybridBackend(EngineBackend):
    """Gives `gpu_share` of the batches to DALI, or to nvJPEG where DALI is not usable, and the rest to CPU threads.

    With `hybrid_schedule="fixed"` the side of a batch is a function of its position in the epoch, so that a resumed
    run gives the same pixels. With "greedy" whichever side is free takes the next batch; order, labels, crops and flips
    are the same, and pixels vary from run to run within the tolerance between the two decoders. See `Backend` for the
    life cycle.

    Raises:
        MissingDependencyError: neither DALI nor nvJPEG is usable.
    """

    def __init__(self, decoder: BatchDecoder, config: LoaderConfig) -> None:
        settings = config.settings
        threads = dali_threads(settings.num_workers, settings.hw_decoder_load)
        pool = CpuPool(decoder, max(1, settings.num_workers - threads))
        ahead = batches_ahead(decoder.batch_bytes(settings.batch_size), settings.prefetch_factor)
        engines = (_gpu_engine(decoder, config, pool, threads), CpuEngine(decoder, pool, spare=ahead + 2))
        route = None
        if settings.hybrid_schedule == "fixed":
            route = spread_evenly(settings.gpu_share, settings.batch_size * config.world_size)
        super().__init__(pool, config, engines, route=route)


def _gpu_engine(decoder: BatchDecoder, config: LoaderConfig, pool: CpuPool, threads: int) -> DeviceEngine:
    try:
        return dali_engine(decoder, config, pool, threads=threads)
    except MissingDependencyError:
        if torch.device(config.device).type != "cuda" or not has_nvjpeg():
            raise
    return nvjpeg_engine(decoder, config, pool)


def spread_evenly(share: float, global_batch: int) -> Route:
    """The route that gives this share of an epoch's batches to the GPU, each run of batches as evenly as can be.

    Args:
        share: 0 to 1.
        global_batch: samples of a batch over all ranks, from which a task's position tells its number in the epoch.
    """
    parts = round(share * _PARTS)

    def route(task: BatchTask) -> Side:
        number = max(0, task.position_after - 1) // global_batch
        return "gpu" if (number + 1) * parts // _PARTS > number * parts // _PARTS else "cpu"

    return route


class CpuEngine:
    """Whole batches through the CPU path; see `Engine`.

    Args:
        pool: opened and closed by the backend.
        spare: batches of host memory kept to be used again.
    """

    side: Side = "cpu"

    def __init__(self, decoder: BatchDecoder, pool: CpuPool, *, spare: int) -> None:
        self._decoder = decoder
        self._pool = pool
        self._blocks = Blocks(spare)

    def open(self) -> None:
        """The pool is the backend's."""

    def close(self, *, wait: bool = True) -> None:
        """The pool is the backend's."""

    def batches(self, take: Take) -> Generator[HostBatch]:
        running: deque[tuple[HostBatch, list[Chunk]]] = deque()
        try:
            while True:
                while len(running) < AT_ONCE and (task := take(not running)) is not None:
                    running.append(self._begin(task))
                if not running:
                    return
                yield self._finish(running)
        finally:
            give_up([chunk for _, chunks in running for chunk in chunks])

    def _begin(self, task: BatchTask) -> tuple[HostBatch, list[Chunk]]:
        batch = self._decoder.allocate(task, self._blocks)
        return batch, self._pool.decode(batch)

    def _finish(self, running: deque[tuple[HostBatch, list[Chunk]]]) -> HostBatch:
        batch, chunks = running[0]
        failures = failures_of(chunks)
        running.popleft()
        return self._decoder.finish(batch, failures)
