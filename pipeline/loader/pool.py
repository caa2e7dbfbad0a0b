"""Threads that a program can end without: a decoder that hangs must not keep the interpreter alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from ..errors import ResourceError

__all__ = ["DecodingPool"]

P = ParamSpec("P")
T = TypeVar("T")
_Item = tuple[Future[Any], Callable[[], Any]]


class DecodingPool(Executor):
    """A fixed number of daemon threads behind one queue, started when it is made.

    `ThreadPoolExecutor` joins its threads at the end of the program, whatever they do; here a thread that never comes
    back is left behind by `shutdown(wait=False)`, and the program ends all the same.

    Args:
        workers: threads, at least 1.
        name: their names' beginning.
        prepare: called by each thread before it works.

    Raises:
        ResourceError: the system starts no more threads.
    """

    def __init__(self, workers: int, name: str, prepare: Callable[[], None]) -> None:
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._queue, prepare), name=f"{name}_{number}", daemon=True)
            for number in range(workers)
        ]
        self._ended = False
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError as error:
            # Those that run are not to wait for work for ever.
            self.shutdown(wait=False)
            raise ResourceError(
                f"the system must let the loader start {workers} threads",
                got=str(error),
                remedy="Use fewer num_workers, or raise the limit of threads (ulimit -u, or the container's pids.max).",
            ) from error

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run fn(*args, **kwargs) in a thread, after what was submitted before.

        Raises:
            RuntimeError: the pool was shut down.
        """
        if self._ended:
            raise RuntimeError("a pool that was shut down takes no more work")
        future: Future[T] = Future()
        self._queue.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads once they are through; may be called more than once.

        Args:
            wait: until they have ended; False leaves those that hang behind.
            cancel_futures: what has not begun is not done.
        """
        if not self._ended:
            self._ended = True
            if cancel_futures:
                self._cancel()
            for _ in self._threads:
                self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _cancel(self) -> None:
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                return
            if item is not None and item[0].cancel():
                # Or whoever waits for it would do so for ever.
                item[0].set_running_or_notify_cancel()


def _work(queue: SimpleQueue[_Item | None], prepare: Callable[[], None]) -> None:
    prepare()
    while (item := queue.get()) is not None:
        future, work = item
        if future.set_running_or_notify_cancel():
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        # While this thread waits it keeps no batch alive.
        del item, future, work
