"""Progress on stderr: a live bar on a terminal, a line at each new step elsewhere (a log, CI)."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["show_progress"]

LINE_EVERY_SECONDS = 5.0


@contextmanager
def show_progress(*, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[str, float], None]]:
    """Yields `report(step, done)`: the step's name and the share of the whole that is done, 0..1."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        yield from _live(console)
    else:
        yield _lines(clock)


def _live(console: Console) -> Iterator[Callable[[str, float], None]]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=1.0)
        yield lambda step, done: progress.update(task, description=step, completed=min(1.0, max(0.0, done)))


def _lines(clock: Callable[[], float]) -> Callable[[str, float], None]:
    started = clock()
    shown = ("", -LINE_EVERY_SECONDS)  # the step without its counts, and when

    def report(step: str, done: float) -> None:
        nonlocal shown
        now = clock() - started
        kind = re.sub(r"[0-9]+", "#", step)
        if kind == shown[0] and done < 1.0 and now - shown[1] < LINE_EVERY_SECONDS:
            return
        shown = (kind, now)
        print(f"[{now:6.1f} s] {100 * min(1.0, max(0.0, done)):3.0f}%  {step}", file=sys.stderr, flush=True)

    return report
