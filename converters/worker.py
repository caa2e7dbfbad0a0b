"""The worker process of `pool`: runs one task after another and never outlives its parent."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import sys
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from wellfed.pipeline.errors import WellfedError, WorkerError, words_of

_PR_SET_PDEATHSIG = 1


def main(fd: int, parent: int, preload: str) -> None:
    """Import a module, then serve tasks from the connection at this file descriptor until the parent closes it or dies.

    A task is (function, args); the answer is ("progress", value) any number of times, then ("result", value) or
    ("error", exception).
    """
    _die_with(parent)
    # The parent decides what an interrupt means and ends its workers; the terminal sends it to all of them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    import_module(preload)
    # What is imported stays; collecting garbage need not look at it again.
    gc.freeze()
    connection = Connection(fd)
    while True:
        try:
            function, args = connection.recv()
        except (EOFError, ConnectionResetError):
            # Reset: the parent ended before it had read our last answer.
            return
        try:
            answer: tuple[str, Any] = (
                "result",
                function(*args, report=lambda value: connection.send(("progress", value))),
            )
        except WellfedError as error:
            answer = ("error", error)
        except Exception as error:
            unexpected = WorkerError(
                "a worker process must not fail unexpectedly",
                got=words_of(error),
                remedy="Please report this, with what --debug shows.",
            )
            unexpected.add_note("".join(traceback.format_exception(error)))
            answer = ("error", unexpected)
        try:
            connection.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return  # nobody is left to tell


def _die_with(parent: int) -> None:
    # Killed with SIGKILL the parent cannot end its workers, and a second run must not meet the first one's.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def command(fd: int, preload: str) -> list[str]:
    """The command line of a worker; `preload` names the module of its tasks' function.

    Not `multiprocessing`: that imports the parent's main module again, which breaks scripts without a main guard.
    """
    path = pickle.dumps(sys.path).hex()
    code = (
        f"import pickle, sys; sys.path[:] = pickle.loads(bytes.fromhex({path!r})); "
        f"from {__name__} import main; main({fd}, {os.getpid()}, {preload!r})"
    )
    return [sys.executable, "-c", code]
