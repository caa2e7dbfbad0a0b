"""The CPU path for backends that decode elsewhere: the odd samples of a batch, or whole batches of the CPU's share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from typing import Any, TypeVar

import numpy as np
import torch

from .batch import BatchDecoder, Fetched, HostBatch, SampleFailure
from .threads import CHUNK_SAMPLES, single_core_pool

__all__ = ["CpuPool", "failures_of", "give_up"]

Chunk = Future[list[SampleFailure]]
Result = TypeVar("Result")


class CpuPool:
    """Decoding threads that start when first needed; see `Engine` for the life cycle.

    Args:
        workers: threads.
    """

    def __init__(self, decoder: BatchDecoder, workers: int) -> None:
        self._decoder = decoder
        self._workers = workers
        self._threads: Executor | None = None

    def open(self) -> None:
        """Start the threads; by the thread that drives the backend, whose torch settings they leave alone."""
        if self._threads is None:
            self._threads = single_core_pool(self._workers, self._decoder.cores)

    def decode(self, batch: HostBatch) -> list[Chunk]:
        """Decode a whole batch into its own images, in chunks."""
        count = len(batch.task.rows)
        return [
            self._submit(self._decoder.decode_part, batch, start, min(start + CHUNK_SAMPLES, count))
            for start in range(0, count, CHUNK_SAMPLES)
        ]

    def decode_places(self, batch: HostBatch, fetched: Fetched, places: np.ndarray, out: torch.Tensor) -> list[Chunk]:
        """Decode these places of a batch whose samples are read into `out`, one row a place."""
        chunks = []
        for start in range(0, len(places), CHUNK_SAMPLES):
            these = slice(start, start + CHUNK_SAMPLES)
            chunks.append(self._submit(self._decoder.decode_fetched, batch, fetched, places[these], out[these]))
        return chunks

    def transform(self, batch: HostBatch, failures: list[SampleFailure]) -> list[Chunk]:
        """Run the transform on a batch whose images lie in host memory, in chunks."""

        def transform(start: int, stop: int) -> list[SampleFailure]:
            self._decoder.transform_part(batch, start, stop, failures)
            return []

        samples, count = self._decoder.samples, len(batch.task.rows)
        if samples.transform is None or samples.deferred:
            transform(0, count)
            return []
        return [
            self._submit(transform, start, min(start + CHUNK_SAMPLES, count))
            for start in range(0, count, CHUNK_SAMPLES)
        ]

    def _submit(self, function: Callable[..., Result], *args: Any) -> Future[Result]:
        if self._threads is None:
            raise RuntimeError("a pool must be opened before it decodes")
        return self._threads.submit(function, *args)

    def close(self, *, wait: bool = True) -> None:
        """End the threads; with wait=False those that hang are left behind."""
        if self._threads is not None:
            self._threads.shutdown(wait=wait, cancel_futures=True)
            self._threads = None


def failures_of(chunks: list[Chunk]) -> list[SampleFailure]:
    """Wait for the chunks; what did not decode, in the order of the places. Raises what a chunk raised."""
    return [failure for chunk in chunks for failure in chunk.result()]


def give_up(jobs: Sequence[Future[Any]]) -> None:
    """Cancel what has not begun and wait for the rest, which ends within a few images."""
    for job in jobs:
        job.cancel()
    wait(jobs)
