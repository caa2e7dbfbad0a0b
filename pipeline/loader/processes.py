"""Decoding in worker processes, on torch.utils.data.DataLoader's machinery.

torch brings shared memory, pinning, the detection of dead workers and their orderly end; what is added is that one
task is a whole batch, planned in the parent, so that workers hold no order and no state.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..config import LoaderConfig
from ..errors import WellfedError, WorkerError, words_of
from ..hardware.notebook import in_notebook
from .batch import BatchDecoder, BatchTask, HostBatch
from .parcels import Batches, Parcel, Tasks
from .placement import keep_to
from .shared_memory import InFlight, block_bytes, check_shared_memory, shared_memory_available
from .shared_pixels import SharedPixels

__all__ = ["ProcessesBackend", "start_method"]

_END_SECONDS = 5.0
"""For a worker to end after SIGTERM; giving back the memory of a program that uses a GPU takes a moment."""


class ProcessesBackend:
    """`num_workers` processes, each decoding whole batches; see `Backend` for the life cycle.

    Args:
        available_bytes: free shared memory, or None where that cannot be told.
    """

    def __init__(
        self,
        decoder: BatchDecoder,
        config: LoaderConfig,
        *,
        available_bytes: Callable[[], int | None] | None = None,
    ) -> None:
        self._pin = decoder.pin_memory
        self._decoder = replace(decoder, pin_memory=False)
        self._config = config
        self._available_bytes = available_bytes or shared_memory_available
        self._tasks = Tasks()
        self._pixels: SharedPixels | None = None
        self._loader: DataLoader[Any] | None = None
        self._workers: Any = None
        self._stream: _ProcessStream | None = None

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers; empty before they start and after they ended."""
        workers = getattr(self._workers, "_workers", ())
        return tuple(process.pid for process in workers if process.is_alive())

    def run(self, tasks: Iterator[BatchTask]) -> _ProcessStream:
        if self._stream is not None:
            self._stream.close()
        if self._loader is None:
            settings = self._config.settings
            check_shared_memory(self._in_flight, self._available_bytes())
            self._pixels = self._shared_pixels()
            self._tasks.lend(self._pixels)
            method = self._config.multiprocessing_context or start_method()
            self._loader = DataLoader(
                Batches(self._decoder, None if self._pixels is None else self._pixels.memory),
                batch_size=None,
                sampler=self._tasks,
                collate_fn=_unchanged,
                num_workers=settings.num_workers,
                prefetch_factor=settings.prefetch_factor,
                # Always: when workers end is decided by `close`.
                persistent_workers=True,
                pin_memory=self._pin,
                timeout=self._config.timeout,
                multiprocessing_context=method,
                # Torch draws a seed for its workers, which must not change what the training draws.
                generator=torch.Generator(),
                # A fork server's workers are its own children.
                worker_init_fn=partial(
                    _prepare_worker, None if method == "forkserver" else os.getpid(), self._decoder.cores
                ),
            )
            _forget_lookups()
        self._tasks.begin(tasks)
        try:
            with _deaf_to_interrupts(), _collecting_nothing_of_ours():
                self._workers = iter(self._loader)
        except RuntimeError as error:
            self.close()
            raise _worker_error(error) from error
        except BaseException:
            # Workers that were not heard out would answer the next run with batches of this one.
            self.close()
            raise
        self._stream = _ProcessStream(self, self._workers)
        return self._stream

    @property
    def _pixel_bytes(self) -> int:
        """Of a batch, where its pixels are handed over in shared memory that is used again; 0 otherwise."""
        side = self._decoder.image_size if self._decoder.samples.hands_over_image else 0
        return 3 * side * side * self._config.settings.batch_size

    @property
    def _in_flight(self) -> InFlight:
        settings = self._config.settings
        pixels = self._pixel_bytes
        return InFlight(
            workers=settings.num_workers,
            prefetch_factor=settings.prefetch_factor,
            batch_bytes=self._decoder.batch_bytes(settings.batch_size) - pixels + block_bytes(pixels),
        )

    def _shared_pixels(self) -> SharedPixels | None:
        if not self._pixel_bytes:
            return None
        try:
            return SharedPixels(self._in_flight.batches, self._pixel_bytes)
        except OSError as error:
            raise self._in_flight.refused(words_of(error)) from error

    def close(self) -> None:
        stream, workers, pixels = self._stream, self._workers, self._pixels
        self._stream = self._workers = self._loader = self._pixels = None
        self._tasks.lend(None)
        if stream is not None:
            stream.close()
        if workers is not None:
            # torch ends workers when the iterator is collected; a traceback may keep it alive for long, so do not wait.
            _end(workers)
            if pixels is not None:
                pixels.release()


class _ProcessStream:
    def __init__(self, backend: ProcessesBackend, workers: Any) -> None:
        self._backend: ProcessesBackend | None = backend
        self._workers = workers

    def __iter__(self) -> Iterator[HostBatch]:
        return self

    def __next__(self) -> HostBatch:
        if self._backend is None:
            raise StopIteration
        try:
            batch = self._next().open()
        except StopIteration:
            refused = self._backend._tasks.refused
            if refused is None:
                raise
            raise self._backend._in_flight.refused(words_of(refused)) from refused
        except RuntimeError as error:
            if not _is_workers_end(error):
                raise
            self._backend.close()
            raise _worker_error(error) from error
        except (KeyboardInterrupt, SystemExit):
            # It may have struck while a batch was being read, and torch would wait for that one for ever. The next run
            # starts new workers.
            self._backend.close()
            raise
        except (OSError, EOFError) as error:
            # A worker that ended by itself took along what its last batches are handed over with.
            ended = [process.pid for process in self._workers._workers if not process.is_alive()]
            if not ended:
                raise
            self._backend.close()
            raise _worker_error(RuntimeError(f"DataLoader worker (pid {ended[0]}) exited: {error}")) from error
        if isinstance(batch, WellfedError):
            raise batch
        return batch

    def _next(self) -> Parcel:
        # torch marks the call for its profiler. The mark is an object in a table of all that torch has made, and where
        # it comes to lie writes to one of the others: to a page that workers share, nearly every time another one.
        # Both names are torch's own, so neither need be there.
        profiled = getattr(torch.autograd.profiler, "_is_profiler_enabled", True)
        unmarked = None if profiled else getattr(self._workers, "_next_data", None)
        parcel: Parcel = next(self._workers) if unmarked is None else unmarked()
        return parcel

    def ready(self) -> bool:
        return False

    def close(self) -> None:
        # What is in flight is thrown away when torch's iterator starts again, or ends.
        if self._backend is not None:
            self._backend._tasks.begin(iter(()))
            self._backend = None
            self._workers = iter(())


def _unchanged(batch: Any) -> Any:
    return batch


def _end(workers: Any) -> None:
    """End torch's workers, also where more of them die meanwhile."""
    try:
        workers._shutdown_workers()
    except RuntimeError as error:
        # For a worker that died torch's handler of SIGCHLD raises wherever the program is, in here too, and only once.
        if not _is_workers_end(error):
            raise
        for worker in workers._workers:
            worker.terminate()
    finally:
        _await_end(workers._workers)


def _await_end(workers: Iterable[multiprocessing.process.BaseProcess]) -> None:
    """Return when no worker is left: torch 2.11 was seen to return while one that hung was still ending."""
    for worker in workers:
        worker.join(_END_SECONDS)
        if worker.is_alive():
            worker.kill()
            worker.join(_END_SECONDS)


def _prepare_worker(pid: int | None, cores: frozenset[int] | None, worker: int) -> None:
    keep_to(cores)
    _end_with_parent(pid)


def _end_with_parent(pid: int | None) -> None:
    """End this worker as soon as the loader's process does, however that ends.

    torch's own watchdog looks every five seconds, between two batches: it misses a parent that was killed before the
    worker was ready, and a worker that it ends waits for ever for somebody to read its last results, where the pipe is
    full of them. At the end of the loader's process nothing is left that a worker must do.
    """
    parent = multiprocessing.parent_process()
    if parent is None or (pid is not None and os.getppid() != pid):
        raise SystemExit(1)
    threading.Thread(target=_watch, args=(parent.sentinel,), name="wellfed-parent", daemon=True).start()


def _watch(sentinel: int) -> None:
    # Readable once no process holds its other end: this one's parent and, by fork, later workers, which end likewise.
    wait([sentinel])
    os._exit(1)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Start workers that Ctrl-C does not reach: a terminal and a notebook send it to the whole group of processes.

    This process alone decides what it means: workers that ended first would be reported as an error of theirs. Blocked
    signals are inherited, also while a worker still imports torch; one that comes meanwhile reaches this process when
    the block ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _collecting_nothing_of_ours() -> Iterator[None]:
    """Start workers that never collect garbage of this process, which they inherit by fork.

    Garbage may hold tensors on a CUDA device; giving one back in a worker, where CUDA cannot be used, aborts it.
    """
    before = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        # A program that has frozen objects itself wants them to stay so; ours then stay, too.
        if not before:
            gc.unfreeze()


def _forget_lookups() -> None:
    """Empty Python's table of looked up attributes, which fills again within some batches.

    An entry that another one replaces lets go of its name, wherever that lies: workers that inherited a full table
    would write to, and so copy, a page of this program for each, over hundreds of batches.
    """
    # From Python 3.13 on by a new name; where there is neither, workers grow by some pages more.
    clear = getattr(sys, "_clear_internal_caches", None) or getattr(sys, "_clear_type_cache", None)
    if clear is not None:
        clear()


def start_method() -> str:
    """How workers start where the caller does not say: "spawn" in a notebook, otherwise "fork".

    Fork is torch's own default on Linux: a worker starts in some 10 ms, scripts need no main guard, and no server
    process stays behind. Workers only read files and decode: Sources key their handles by process, and CUDA is never
    touched. Where threads of the program hold locks that a worker would need, give `multiprocessing_context`
    "forkserver" or "spawn"; each worker then imports torch first, for seconds, and scripts need the main guard. In a
    notebook the kernel's own threads make fork unsafe.
    """
    return "spawn" if in_notebook() else "fork"


def _is_workers_end(error: RuntimeError) -> bool:
    return "DataLoader worker" in str(error) or "DataLoader timed out" in str(error)


def _worker_error(error: RuntimeError) -> WorkerError:
    text = str(error).splitlines()[0]
    if "timed out" in text:
        return WorkerError(
            "a decoding process must give its batch within the timeout",
            got=text,
            remedy="Raise timeout=, or check that the storage of the dataset answers and that no transform of yours "
            "hangs.",
        )
    pids = re.search(r"pid\(?s?\)? ([\d, ]+)", text)
    who = f"process {pids.group(1).strip()}" if pids else "a decoding process"
    return WorkerError(
        f"decoding processes must live until the loader ends them, but {who} ended",
        got=text,
        remedy="Out of memory is the usual reason (see dmesg); use fewer workers, or backend='threads'. Cutting an "
        "LMDB file short while it is read does it, too. A script needs its main part under "
        "`if __name__ == '__main__':`.",
    )
