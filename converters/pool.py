"""Run independent tasks in local worker processes; a task whose worker dies is run again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from wellfed.pipeline.errors import WorkerError

from . import worker as worker_module

ATTEMPTS = 3
"""Times a task is started before a dying worker counts as the task's fault, not the machine's."""

_HELD_SECONDS = 0.02


@dataclass(eq=False)
class Worker:
    """A worker process, and what it is at.

    Attributes:
        task: number of the one it was given; None while it is idle.
        progress: what it reported last.
    """

    process: subprocess.Popen[bytes]
    connection: Connection
    task: int | None = None
    progress: Any = None


@contextmanager
def early_workers(function: Callable[..., Any], count: int) -> Iterator[list[Worker]]:
    """Workers that get ready for tasks of a function while the caller still plans them.

    `run_tasks` takes what it needs out of the list; the rest is ended with the block, or before by `keep_needed`.
    """
    workers: list[Worker] = []
    try:
        while len(workers) < count:
            workers.append(_start(function))
        yield workers
    finally:
        _end(workers)


def keep_needed(early: list[Worker], count: int) -> None:
    """End what is more than so many, of `early_workers`, as soon as it is known how many will get a task."""
    # The last ones are the least ready.
    surplus = early[count:]
    del early[count:]
    _end(surplus)


def run_tasks(
    function: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    *,
    workers: int,
    describe: Callable[[int, Any], str],
    on_result: Callable[[int, Any], None],
    on_progress: Callable[[int, Any], None] = lambda task, value: None,
    on_death: Callable[[int, str], None] | None = None,
    attempts: int = ATTEMPTS,
    early: list[Worker] | None = None,
    hold: Callable[[], bool] | None = None,
) -> None:
    """Call `function(*task, report=...)` for each task, in worker processes, and hand back each result.

    Args:
        function: importable by name; it and the tasks are pickled. `report(value)` sends progress.
        workers: processes, at most one for each task.
        describe: (task number, last progress or None) to words, for the message when a worker dies.
        on_result: (task number, result), in the order of completion, in the calling thread.
        on_progress: (task number, value) for each `report` in a worker.
        on_death: called with (task number, how the worker ended) after the last attempt, instead of raising.
        attempts: times a task is started before its worker's death counts.
        early: of `early_workers`, for the same function.
        hold: asked before a task is started; while it is true, none is.

    Raises:
        WellfedError: the first one that a task raises; the other workers are ended.
        WorkerError: a task's worker died this often.
    """
    waiting = deque(range(len(tasks)))
    started = [0] * len(tasks)
    team: list[Worker] = []
    remaining = len(tasks)
    try:
        while remaining:
            while waiting and len(team) < workers:
                team.append(early.pop() if early else _start(function))
            held = False
            for idle in team:
                held = idle.task is None and bool(waiting) and hold is not None and hold()
                if held:
                    break
                if idle.task is None and waiting:
                    _give(idle, waiting.popleft(), function, tasks, started)
            busy = {each.connection: each for each in team if each.task is not None}
            for ready in wait(list(busy), timeout=_HELD_SECONDS if held else 1.0):
                member = busy[ready]  # type: ignore[index]
                number = member.task
                assert number is not None
                try:
                    kind, value = member.connection.recv()
                except (EOFError, OSError):
                    team.remove(member)
                    how = _bury(member)
                    if started[number] < attempts:
                        waiting.appendleft(number)
                    elif on_death is not None:
                        on_death(number, how)
                        remaining -= 1
                    else:
                        raise WorkerError(
                            f"a worker process must end its task, and {attempts} in a row died at "
                            f"{describe(number, member.progress)}",
                            got=how,
                            remedy="Killed by signal 9 usually means too little memory: use fewer workers. Otherwise "
                            "move that file away and run again.",
                        ) from None
                    continue
                if kind == "progress":
                    member.progress = value
                    on_progress(number, value)
                elif kind == "error":
                    raise value
                else:
                    member.task, member.progress = None, None
                    remaining -= 1
                    on_result(number, value)
    finally:
        _end(team)


def _end(team: list[Worker]) -> None:
    for member in team:
        member.connection.close()
        member.process.kill()
    for member in team:
        member.process.wait()


def _start(function: Callable[..., Any]) -> Worker:
    ours, theirs = Pipe()
    # Blocked until the worker ignores it: an interrupt while it starts would print its traceback.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            worker_module.command(theirs.fileno(), function.__module__),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # NumPy's threads would only spin beside the other workers.
            env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
    return Worker(process, ours)


def _give(
    member: Worker, number: int, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], started: list[int]
) -> None:
    member.task = number
    started[number] += 1
    # A worker that is already dead is found, and its task given again, by the read that follows.
    with suppress(BrokenPipeError, ConnectionResetError):
        member.connection.send((function, tasks[number]))


def _bury(member: Worker) -> str:
    member.connection.close()
    # Its end of the pipe is closed, so it is dying or beyond use.
    with suppress(subprocess.TimeoutExpired):
        member.process.wait(timeout=5)
    member.process.kill()
    code = member.process.wait()
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
