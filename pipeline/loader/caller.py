"""Transforms in the thread of the loop, one sample after the other: those that draw from the generators it shares."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import LoaderConfig
from ..errors import WorkerError
from .backend import Backend, BatchStream, worker_pids
from .batch import BatchDecoder, BatchTask, HostBatch
from .pool import DecodingPool

__all__ = ["CallerBackend"]


class CallerBackend:
    """Another backend's batches, with the transform that its decoder left undone; see `Backend` for the life cycle.

    The thread of the loop waits meanwhile, so nothing else draws from the generators that the transform is lent. With
    a timeout the transform runs in a thread of its own, since nothing ends a call that hangs.
    """

    def __init__(self, inner: Backend, decoder: BatchDecoder, config: LoaderConfig) -> None:
        self._inner = inner
        self._decoder = decoder
        self._timeout = config.timeout
        self._pool: DecodingPool | None = None

    @property
    def worker_pids(self) -> tuple[int, ...]:
        return worker_pids(self._inner)

    def run(self, tasks: Iterator[BatchTask]) -> BatchStream:
        return _CallerStream(self, self._inner.run(tasks))

    def complete(self, batch: HostBatch) -> HostBatch:
        """The batch as it is handed over."""
        if not self._timeout:
            return self._complete(batch)
        if self._pool is None:
            self._pool = DecodingPool(1, "wellfed-transform", _nothing)
        work = self._pool.submit(self._complete, batch)
        try:
            return work.result(self._timeout)
        except TimeoutError as error:
            if work.done():  # the transform itself raised it
                raise
            # Left behind: it may never end.
            self._pool.shutdown(wait=False)
            self._pool = None
            raise WorkerError(
                f"a transform must finish a batch within timeout={self._timeout:g} seconds",
                remedy="Raise timeout=, or find out where your transform hangs.",
            ) from error

    def _complete(self, batch: HostBatch) -> HostBatch:
        if batch.made is not None:
            # Written on a stream that this thread knows nothing of.
            batch.made.synchronize()
        batch.images, batch.made = batch.images.cpu(), None
        samples = self._decoder.samples
        samples.apply(batch, self._decoder.source, 0, len(batch.task.rows))
        samples.finish(batch, pin=self._decoder.pin_memory)
        return batch

    def close(self) -> None:
        self._inner.close()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class _CallerStream:
    def __init__(self, backend: CallerBackend, inner: BatchStream) -> None:
        self._backend = backend
        self._inner = inner

    def __iter__(self) -> Iterator[HostBatch]:
        return self

    def __next__(self) -> HostBatch:
        return self._backend.complete(next(self._inner))

    def ready(self) -> bool:
        # Completing it takes time, which the batch before must not wait for.
        return False

    def close(self) -> None:
        self._inner.close()


def _nothing() -> None:
    """The pool's thread needs no preparation."""
