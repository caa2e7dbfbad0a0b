"""What the backends made of engines share: their life cycle, and how far they run ahead."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import LoaderConfig
from ..errors import WorkerError
from .batch import BatchTask
from .cpu_pool import CpuPool
from .engines import Dispatcher, Engine, EngineStream, Route
from .threads import IN_FLIGHT_BYTES

__all__ = ["EngineBackend", "batches_ahead", "dali_threads"]


def batches_ahead(batch_bytes: int, prefetch_factor: int) -> int:
    """Batches taken or finished and not delivered at most: those an engine works on, and prefetch_factor ready ones."""
    return max(2, min(2 * prefetch_factor + 4, IN_FLIGHT_BYTES // batch_bytes))


def dali_threads(num_workers: int, hw_decoder_load: float) -> int:
    """Host threads that backend "hybrid" leaves to DALI: a quarter, at least one and at most 4.

    4 of 15 was the best mix that was measured on one H200 where DALI's CUDA decoder has a share, whose Huffman codes
    these threads read. Where the GPU's JPEG engines decode all, one thread feeds them: beside ResNet-18 there, 1 of 15
    gave 1.08 times the samples of 4 of 15.
    """
    return 1 if hw_decoder_load >= 1 else min(4, max(1, num_workers // 4))


class EngineBackend:
    """Engines behind one dispatcher; see `Backend` for the life cycle.

    Args:
        pool: the CPU path that the engines share.
        route: the side that decodes each task; None gives it to whichever is free.
    """

    def __init__(
        self, pool: CpuPool, config: LoaderConfig, engines: tuple[Engine, ...], *, route: Route | None = None
    ) -> None:
        self._pool = pool
        self._engines = engines
        self._route = route
        settings = config.settings
        batch_bytes = settings.batch_size * 3 * config.image_size * config.image_size
        self._ahead = batches_ahead(batch_bytes, settings.prefetch_factor)
        self._timeout = config.timeout
        self._stream: EngineStream | None = None
        self._hangs = False

    def run(self, tasks: Iterator[BatchTask]) -> EngineStream:
        if self._stream is not None:
            self._stream.close()
            self._hangs = self._hangs or self._stream.hangs
        if self._hangs:
            self.close()
            raise WorkerError(
                "a loader whose decoders hang cannot go on: what they hold may be used by nobody else",
                remedy="Make a new one.",
            )
        self._pool.open()
        for engine in self._engines:
            engine.open()
        sides = tuple(engine.side for engine in self._engines)
        dispatcher = Dispatcher(tasks, sides, ahead=self._ahead, route=self._route)
        self._stream = EngineStream(self._engines, dispatcher, timeout=self._timeout)
        return self._stream

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._hangs = self._hangs or self._stream.hangs
            self._stream = None
        for engine in self._engines:
            engine.close(wait=not self._hangs)
        self._pool.close(wait=not self._hangs)
