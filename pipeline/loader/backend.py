"""The Backend contract, the registry of backends, and the one that decodes in the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Protocol

from ..config import LoaderConfig
from .batch import BatchDecoder, BatchTask, HostBatch

__all__ = ["BACKENDS", "Backend", "BatchStream", "InlineBackend", "open_backend"]


class BatchStream(Protocol):
    """Decoded batches in the order of their tasks."""

    def __iter__(self) -> Iterator[HostBatch]: ...

    def __next__(self) -> HostBatch:
        """The next batch; it belongs to the caller and is never written again.

        Raises:
            CorruptSampleError, DamagedDatasetError: for the batch that is next in order, not before its turn.
            WorkerError: a worker ended, or gave nothing within the timeout.
        """
        ...

    def ready(self) -> bool:
        """Whether the next batch is known to be there, without waiting or an error; False where that is not known."""
        ...

    def close(self) -> None:
        """Give up what is being decoded; afterwards nothing of this stream runs."""
        ...


class Backend(Protocol):
    """Where decoding runs.

    Life cycle: made, which starts nothing -> `run`, any number of times, one stream at a time (a new run closes the
    one before) -> `close`. `close` ends workers, may be called at any time and more than once; a later `run` starts
    new ones.
    Threads: one thread drives it.
    Determinism: order and contents of the batches are those of the tasks, whatever the number of workers.
    Who closes: the loader, at the end of each epoch without persistent workers, otherwise when it is closed itself.
    """

    def run(self, tasks: Iterator[BatchTask]) -> BatchStream:
        """Decode these tasks; a bounded number is taken ahead of the consumer.

        Raises:
            ResourceError: the machine lacks what the batches in flight need.
        """
        ...

    def close(self) -> None: ...


BACKENDS = {
    "dali": "dali:DaliBackend",
    "hybrid": "hybrid:HybridBackend",
    "nvjpeg": "nvjpeg:NvjpegBackend",
    "processes": "processes:ProcessesBackend",
    "threads": "threads:ThreadsBackend",
}
"""Module and class of each backend; the class takes (decoder, config). Names are those of `config.BackendName`."""


class InlineBackend:
    """No workers: each batch is decoded when it is asked for. This is what num_workers=0 means for every backend."""

    def __init__(self, decoder: BatchDecoder, config: LoaderConfig) -> None:
        self._decoder = decoder

    def run(self, tasks: Iterator[BatchTask]) -> BatchStream:
        return _InlineStream(self._decoder, tasks)

    def close(self) -> None:
        """Nothing was started."""


class _InlineStream:
    def __init__(self, decoder: BatchDecoder, tasks: Iterator[BatchTask]) -> None:
        self._decoder = decoder
        self._tasks = tasks

    def __iter__(self) -> Iterator[HostBatch]:
        return self

    def __next__(self) -> HostBatch:
        return self._decoder.decode(next(self._tasks))

    def ready(self) -> bool:
        return False

    def close(self) -> None:
        self._tasks = iter(())


def worker_pids(backend: Backend) -> tuple[int, ...]:
    """Process ids of a backend's workers, for who watches their memory; empty where it decodes in this process."""
    found: tuple[int, ...] = getattr(backend, "worker_pids", ())
    return found


def open_backend(decoder: BatchDecoder, config: LoaderConfig) -> Backend:
    """The backend that the configuration names; nothing is started yet."""
    backend = _decoding_backend(decoder, config)
    if not decoder.samples.deferred:
        return backend
    from .caller import CallerBackend

    return CallerBackend(backend, decoder, config)


def _decoding_backend(decoder: BatchDecoder, config: LoaderConfig) -> Backend:
    if config.settings.num_workers == 0:
        return InlineBackend(decoder, config)
    # Without images there is nothing that a decoder on the GPU could do.
    decodes = decoder.samples.with_image or config.settings.backend == "processes"
    module, name = BACKENDS[config.settings.backend if decodes else "threads"].split(":")
    make: Callable[[BatchDecoder, LoaderConfig], Backend] = getattr(import_module(f".{module}", __package__), name)
    return make(decoder, config)
