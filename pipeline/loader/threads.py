"""Decoding in a pool of threads: no copies between processes, no shared memory; the decoders release the GIL."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from functools import partial

import torch

from ..config import LoaderConfig
from ..errors import WorkerError
from .batch import BatchDecoder, BatchTask, HostBatch, SampleFailure
from .blocks import Blocks
from .placement import keep_to
from .pool import DecodingPool

__all__ = ["ThreadsBackend", "single_core_pool"]

CHUNK_SAMPLES = 32
"""Samples handed to a thread at once: enough to hide the hand-over, few enough that a batch is soon complete."""

IN_FLIGHT_BYTES = 512 << 20
"""Decoded batches kept ahead hold at most this much. All threads work on the same batch, so keeping
prefetch_factor * num_workers large batches ready, as processes must, would cost memory and gain nothing."""


class ThreadsBackend:
    """A pool of `num_workers` threads; see `Backend` for the life cycle."""

    def __init__(self, decoder: BatchDecoder, config: LoaderConfig) -> None:
        settings = config.settings
        self._decoder = decoder
        self._workers = settings.num_workers
        by_memory = max(2, IN_FLIGHT_BYTES // decoder.batch_bytes(settings.batch_size))
        self._in_flight = min(settings.prefetch_factor * self._workers, by_memory)
        # Several batches are in flight, so a chunk need not be so small that one batch is enough for all threads.
        share = -(-settings.batch_size * self._in_flight // (2 * self._workers))
        self._chunk = max(1, min(CHUNK_SAMPLES, share, settings.batch_size))
        self._timeout = config.timeout
        # Beside those in flight, the caller holds one and drops another.
        self._blocks = Blocks(self._in_flight + 2)
        self._pool: DecodingPool | None = None
        self._stream: _ThreadStream | None = None

    def run(self, tasks: Iterator[BatchTask]) -> _ThreadStream:
        if self._stream is not None:
            self._stream.close()
            if self._stream.hangs:
                self.close()
        if self._pool is None:
            self._pool = single_core_pool(self._workers, self._decoder.cores)
        self._stream = _ThreadStream(
            self._decoder,
            self._pool,
            tasks,
            blocks=self._blocks,
            chunk=self._chunk,
            in_flight=self._in_flight,
            timeout=self._timeout,
        )
        return self._stream

    def close(self) -> None:
        hangs = False
        if self._stream is not None:
            self._stream.close()
            hangs = self._stream.hangs
            self._stream = None
        if self._pool is not None:
            self._pool.shutdown(wait=not hangs, cancel_futures=True)
            self._pool = None


def single_core_pool(workers: int, cores: frozenset[int] | None = None) -> DecodingPool:
    """Threads whose torch operations run on one core each; otherwise each would get a team of threads of its own.

    `torch.set_num_threads` acts on the calling thread, but also sets what threads not seen yet and MKL will use
    (ATen/ParallelOpenMP.cpp). So all decoding threads set theirs first, and then this thread sets its own value again.

    Args:
        workers: threads.
        cores: those that the threads keep to; None leaves it to the system.
    """
    before = torch.get_num_threads()
    everyone = threading.Barrier(workers + 1)
    pool = DecodingPool(workers, "wellfed-decode", partial(_use_one_core, cores))
    for _ in range(workers):
        pool.submit(everyone.wait)
    everyone.wait()
    torch.set_num_threads(before)
    return pool


def _use_one_core(cores: frozenset[int] | None) -> None:
    keep_to(cores)
    torch.set_num_threads(1)
    # A thread takes over the common value when it first needs one; asking now makes that happen before it changes back.
    torch.get_num_threads()


class _Work:
    """A batch being decoded in chunks, by several threads."""

    def __init__(self, decoder: BatchDecoder, batch: HostBatch) -> None:
        self.batch = batch
        self.chunks: list[Future[list[SampleFailure]]] = []
        self._decoder = decoder

    def decode(self, start: int, end: int) -> list[SampleFailure]:
        return self._decoder.decode_part(self.batch, start, end)


class _ThreadStream:
    def __init__(
        self,
        decoder: BatchDecoder,
        pool: DecodingPool,
        tasks: Iterator[BatchTask],
        *,
        blocks: Blocks,
        chunk: int,
        in_flight: int,
        timeout: float,
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        self._tasks = tasks
        self._blocks = blocks
        self._chunk = chunk
        self._in_flight = in_flight
        self._timeout = timeout
        self._pending: deque[_Work] = deque()
        self.hangs = False
        """A chunk is not done after the timeout and may never be: its thread is not to be waited for."""
        self._fill()

    def __iter__(self) -> Iterator[HostBatch]:
        return self

    def __next__(self) -> HostBatch:
        if not self._pending:
            raise StopIteration
        work = self._pending[0]
        failures = self._wait(work)
        self._pending.popleft()
        self._fill()
        return self._decoder.finish(work.batch, failures)

    def ready(self) -> bool:
        if not self._pending:
            return False
        # A chunk's result is its failures; with any, the error must wait for the batch's turn.
        chunks = self._pending[0].chunks
        return all(chunk.done() and chunk.exception() is None and not chunk.result() for chunk in chunks)

    def close(self) -> None:
        self._tasks = iter(())
        chunks = [chunk for work in self._pending for chunk in work.chunks]
        for chunk in chunks:
            chunk.cancel()
        # Chunks already running cannot be cancelled; they end within a few images, or a timeout says when to give up.
        if not self.hangs:
            self.hangs = bool(wait(chunks, self._timeout or None).not_done)
        self._pending.clear()

    def _fill(self) -> None:
        for task in itertools.islice(self._tasks, self._in_flight - len(self._pending)):
            work = _Work(self._decoder, self._decoder.allocate(task, self._blocks))
            for start in range(0, len(task.rows), self._chunk):
                end = min(start + self._chunk, len(task.rows))
                work.chunks.append(self._pool.submit(work.decode, start, end))
            self._pending.append(work)

    def _wait(self, work: _Work) -> list[SampleFailure]:
        failures: list[SampleFailure] = []
        deadline = time.monotonic() + self._timeout if self._timeout else None
        for chunk in work.chunks:
            try:
                failures += chunk.result(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError as error:
                if chunk.done():  # the decoder itself raised it
                    raise
                self.hangs = True
                raise WorkerError(
                    f"the decoding threads must finish a batch within timeout={self._timeout:g} seconds",
                    remedy="Raise timeout=, or check that the storage of the dataset answers and that no transform of "
                    "yours hangs.",
                ) from error
        return failures
