"""Backends made of engines: threads that each decode whole batches, one after the other, ahead of the consumer.

An engine is a generator over batches; the dispatcher hands out tasks and puts the batches back into their order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Protocol

from ..errors import WorkerError
from .batch import BatchTask, HostBatch, Side

__all__ = ["Dispatcher", "Engine", "EngineStream", "Route", "Take"]

Route = Callable[[BatchTask], Side]
"""The side that decodes a task: a function of the task alone."""

Take = Callable[[bool], BatchTask | None]
"""The next task of an engine. `take(True)` waits for one, and None ends the stream; `take(False)` gives None at once
where there is none to be had yet."""


class Engine(Protocol):
    """One side of a backend.

    Life cycle: made, which starts nothing -> `open`, by the thread that drives the backend, any number of times ->
    `batches`, in a thread of its own, one at a time -> `close`, after which `open` may follow.
    """

    side: Side

    def open(self) -> None:
        """Start threads and open the decoder where that is not done yet.

        Raises:
            MissingDependencyError, DeviceError: what it needs is not there.
        """
        ...

    def batches(self, take: Take) -> Generator[HostBatch]:
        """The decoded batches of the tasks taken, in that order; closing the generator gives up what is under way."""
        ...

    def close(self, *, wait: bool = True) -> None:
        """End its threads and close the decoder; with wait=False what hangs is left behind, and the decoder to it."""
        ...


class Dispatcher:
    """Hands tasks to engines and batches to the consumer, in the order of the tasks.

    At most `ahead` batches are taken or finished and not delivered, over all sides.

    Threads: `take` and `put` by engines, the rest by the consumer.

    Args:
        route: the side of each task; None gives a task to whichever side asks first.
    """

    def __init__(self, tasks: Iterator[BatchTask], sides: tuple[Side, ...], *, ahead: int, route: Route | None) -> None:
        self._tasks = tasks
        self._route = route
        self._ahead = ahead
        self._changed = threading.Condition()
        # Held while the next task is made, which takes long at the start of an epoch; delivery goes on meanwhile.
        self._pulling = threading.Lock()
        self._waiting: Mapping[Side, deque[tuple[int, BatchTask]]] = {side: deque() for side in sides}
        self._taken: Mapping[Side, deque[int]] = {side: deque() for side in sides}
        self._finished: dict[int, HostBatch | BaseException] = {}
        self._pulled = self._delivered = 0
        self._exhausted = self._closed = False

    def take(self, side: Side, wait: bool) -> BatchTask | None:
        """The next task of this side; see `Take`."""
        while True:
            with self._pulling:
                task, may_pull = self._next(side)
                if task is not None:
                    return task
                if may_pull:
                    self._pull(side)
                    continue
            with self._changed:
                if self._over(side) or not wait:
                    return None
                self._changed.wait_for(lambda: self._over(side) or self._waiting[side] or self._has_room())
                if self._over(side):
                    return None

    def _next(self, side: Side) -> tuple[BatchTask | None, bool]:
        with self._changed:
            if self._closed:
                return None, False
            if self._waiting[side]:
                number, task = self._waiting[side].popleft()
                self._taken[side].append(number)
                return task, False
            return None, self._has_room()

    def _pull(self, side: Side) -> None:
        task: BatchTask | None = None
        failure: BaseException | None = None
        try:
            task = next(self._tasks, None)
        except BaseException as error:
            failure = error
        with self._changed:
            if task is None:
                self._exhausted = True
                if failure is not None:
                    self._finished[self._pulled] = failure
                    self._pulled += 1
            else:
                owner = self._route(task) if self._route else side
                self._waiting[owner].append((self._pulled, task))
                self._pulled += 1
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return not self._exhausted and self._pulled - self._delivered < self._ahead

    def _over(self, side: Side) -> bool:
        return self._closed or (self._exhausted and not self._waiting[side])

    def put(self, side: Side, result: HostBatch | BaseException) -> bool:
        """A result of the oldest task that this side took; False once nobody waits for it."""
        with self._changed:
            if self._closed:
                return False
            # An engine that fails before its first task fails in the place of the next batch.
            number = self._taken[side].popleft() if self._taken[side] else self._delivered
            self._finished[number] = result
            self._changed.notify_all()
            return True

    def next(self, timeout: float) -> HostBatch:
        """The next batch in order.

        Args:
            timeout: seconds; 0 waits for ever.

        Raises:
            StopIteration: there is none.
            WorkerError: none within the timeout.
        """
        with self._changed:
            deadline = time.monotonic() + timeout if timeout else None
            while not (self._closed or self._delivered in self._finished or self._is_through()):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise WorkerError(
                        f"a backend's decoders must finish a batch within timeout={timeout:g} seconds",
                        remedy="Raise timeout=, or check that the storage of the dataset answers and that no transform "
                        "of yours hangs.",
                    )
                self._changed.wait(left)
            if self._closed or self._delivered not in self._finished:
                raise StopIteration
            result = self._finished.pop(self._delivered)
            self._delivered += 1
            self._changed.notify_all()
            if isinstance(result, BaseException):
                self._closed = True
                raise result
            return result

    def _is_through(self) -> bool:
        return self._exhausted and self._delivered >= self._pulled

    def ready(self) -> bool:
        with self._changed:
            return isinstance(self._finished.get(self._delivered), HostBatch)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._finished.clear()
            self._changed.notify_all()


class EngineStream:
    """Decoded batches in order, from one thread for each engine; see `BatchStream`."""

    def __init__(self, engines: tuple[Engine, ...], dispatcher: Dispatcher, *, timeout: float) -> None:
        self._dispatcher = dispatcher
        self._timeout = timeout
        self.hangs = False
        """A batch was not there after the timeout and may never be: its thread is not to be waited for."""
        self._threads = [
            threading.Thread(
                target=_drive, args=(engine, dispatcher), name=f"wellfed-{engine.side}-decode", daemon=True
            )
            for engine in engines
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[HostBatch]:
        return self

    def __next__(self) -> HostBatch:
        try:
            return self._dispatcher.next(self._timeout)
        except WorkerError:
            self.hangs = True
            raise

    def ready(self) -> bool:
        return self._dispatcher.ready()

    def close(self) -> None:
        self._dispatcher.close()
        for thread in self._threads:
            # The garbage collector may run this in any thread, and none can wait for itself.
            if thread is not threading.current_thread():
                # A timeout says when to give up; a thread that is left behind ends with the program.
                thread.join(0 if self.hangs else self._timeout or None)
                self.hangs = self.hangs or thread.is_alive()


def _drive(engine: Engine, dispatcher: Dispatcher) -> None:
    """An engine's thread; it holds neither the stream nor the loader, so that both can be collected."""
    batches = engine.batches(lambda wait: dispatcher.take(engine.side, wait))
    try:
        for batch in batches:
            if not dispatcher.put(engine.side, batch):
                return
            # A name would keep the pixels alive until the next batch is decoded.
            del batch
    except BaseException as error:
        dispatcher.put(engine.side, error)
    finally:
        batches.close()
