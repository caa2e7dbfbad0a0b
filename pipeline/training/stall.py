"""A measurement has a time limit: a step or a loader that does not return ends it, with the place where it stood.

A thread cannot be ended from outside. What waits in Python (a lock, a queue, a socket, a sleep) can be interrupted: in
the main thread by a signal, whose handler raises there, in another as soon as it runs Python again. What never comes
back from a library cannot; then the program ends, workers first, as NCCL's own watchdog does.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import psutil

from ..errors import StepError
from .steps import Step

__all__ = ["guarded_from_stalls"]

POLL_SECONDS = 0.5
GRACE_SECONDS = 30.0
"""For the interrupted thread to unwind and close its workers."""


class _StalledError(BaseException):
    """Not an Exception: a step that catches those must not swallow it."""


class _Watched:
    """Stands between the loop and what may not return; counts what did."""

    def __init__(self, step: Step, batches: Iterator[Any]) -> None:
        self.name = step.name
        self.model = step.model
        self.optimizer = step.optimizer
        self.beats = 0
        self.doing = "a batch of the loader"
        self._step = step
        self._batches = batches

    def __call__(self, images: Any, labels: Any) -> Any:
        self.doing = f"the step {self.name}"
        self.beats += 1
        result = self._step(images, labels)
        self.doing = f"the work of the step {self.name} on the device"
        return result

    def __iter__(self) -> _Watched:
        return self

    def __next__(self) -> Any:
        self.doing = "a batch of the loader"
        self.beats += 1
        return next(self._batches)


@contextmanager
def guarded_from_stalls(
    step: Step,
    batches: Iterator[Any],
    *,
    limit_seconds: float,
    grace_seconds: float = GRACE_SECONDS,
    poll_seconds: float = POLL_SECONDS,
    give_up: Callable[[str], None] | None = None,
) -> Iterator[tuple[Step, Iterator[Any]]]:
    """The step and the batches to measure with; one that does not return within the limit is an error.

    Args:
        limit_seconds: for each call and each batch.
        grace_seconds: for the interrupted thread to end.
        poll_seconds: how often the watching thread looks.
        give_up: called with the reason where the thread cannot be interrupted; None ends the program.

    Raises:
        StepError: something did not return; where it stood is a note.
    """
    watched = _Watched(step, batches)
    over = threading.Event()
    stalled: list[str] = []
    thread = threading.get_ident()
    in_main = threading.current_thread() is threading.main_thread()

    def raise_here(number: int, frame: FrameType | None) -> None:
        raise _StalledError

    def interrupt() -> None:
        if in_main:
            signal.pthread_kill(thread, signal.SIGURG)
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_StalledError))

    def watch() -> None:
        quiet, beats, before = 0.0, -1, time.monotonic()
        while not over.wait(poll_seconds):
            now = time.monotonic()
            # A machine that was suspended has not waited.
            quiet = quiet + min(now - before, 10 * poll_seconds) if watched.beats == beats else 0.0
            beats, before = watched.beats, now
            if quiet > limit_seconds:
                frame = sys._current_frames().get(thread)
                stalled.append("".join(traceback.format_stack(frame)) if frame is not None else "")
                interrupt()
                if not over.wait(grace_seconds):
                    (give_up or _end_program)(f"{watched.doing} did not return within {limit_seconds:g} s")
                return

    # Its default is to be ignored, so one that comes late does no harm.
    before_handler = signal.signal(signal.SIGURG, raise_here) if in_main else None
    watcher = threading.Thread(target=watch, name="wellfed-stall-guard", daemon=True)
    watcher.start()
    try:
        yield watched, watched
    except _StalledError:
        error = StepError(
            "each call of the step and each batch of the loader must return",
            got=f"{watched.doing} did not within {limit_seconds:g} s",
            remedy="Look for a lock, a queue, a collective that waits for another rank, or storage that does not "
            "answer; --debug shows where it stood.",
        )
        error.add_note(f"It stood here:\n{stalled[0] if stalled else 'not known'}")
        raise error from None
    finally:
        over.set()
        watcher.join()
        if in_main:
            signal.signal(signal.SIGURG, before_handler or signal.SIG_DFL)


def _end_program(reason: str) -> None:
    """End workers and this program, which a library holds."""
    sys.stderr.write(f"wellfed: {reason}, and cannot be interrupted: the program ends. Its threads stood here:\n")
    sys.stderr.flush()
    faulthandler.dump_traceback(all_threads=True)
    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    os._exit(1)
