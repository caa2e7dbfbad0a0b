"""Files that are fetched in the background, in the order in which they were asked for."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable

__all__ = ["Background"]

_AT_ONCE = 4

_log = logging.getLogger(__name__)


class Background:
    """A few threads that work through a queue and end when it is empty.

    What fails is left to whoever needs the result: it tries again in its turn, and raises.

    Threads: any.

    Attributes:
        failed: pieces of work that did.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[tuple[Hashable, Callable[[Callable[[], bool]], None]]] = deque()
        self._known: set[Hashable] = set()
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self.failed = 0

    def ask(self, name: Hashable, work: Callable[[Callable[[], bool]], None]) -> None:
        """Have work done, unless it is queued or under way; it is given a function that says whether to stop."""
        with self._lock:
            if self._closed or name in self._known:
                return
            self._known.add(name)
            self._queue.append((name, work))
            if len(self._threads) < _AT_ONCE:
                thread = threading.Thread(target=self._run, name="wellfed-fetch", daemon=True)
                self._threads.add(thread)
                thread.start()

    def close(self) -> None:
        """Forget what is queued, stop what is under way and wait for it."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            threads = list(self._threads)
        for thread in threads:
            # The garbage collector may run this in any thread, and none can wait for itself.
            if thread is not threading.current_thread():
                thread.join()

    def _stopped(self) -> bool:
        return self._closed

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._threads.discard(threading.current_thread())
                    return
                name, work = self._queue.popleft()
            failed = 1
            try:
                work(self._stopped)
                failed = 0
            except Exception as error:
                # Whoever reads the file fails in its turn, and says so; a thread has no one to raise to.
                _log.info("fetching %s ahead failed: %s", name, error)
            finally:
                with self._lock:
                    self._known.discard(name)
                    self.failed += failed
