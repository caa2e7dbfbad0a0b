"""Progress of a conversion or verification, on stderr."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from wellfed.converters.progress import Progress, ProgressCallback

_WORDS = {"pack": "packing", "write": "writing", "check": "checking"}


@contextmanager
def progress_bar() -> Iterator[ProgressCallback]:
    """A bar with rate, time left and what went wrong so far; in a log file, nothing but its last state."""
    from rich.console import Console

    _draw_once()
    bar = _bar(Console(stderr=True))
    tasks: dict[str, int] = {}

    def show(progress: Progress) -> None:
        if progress.stage not in tasks:
            tasks[progress.stage] = bar.add_task(
                _WORDS[progress.stage], total=progress.total, completed=0, rate="", bad=""
            )
        task = bar.tasks[tasks[progress.stage]]
        bad = "damaged" if progress.stage == "check" else "rejected"
        bar.update(
            task.id,
            total=progress.total,
            completed=progress.done,
            rate=f"{task.speed:,.0f}/s" if task.speed else "",
            bad=f"{progress.found_bad:,} {bad}",
        )

    with bar:
        yield show


def _bar(console: Console) -> Bar:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[bad]}", markup=False),
        console=console,
    )


def _draw_once() -> None:
    """Load what drawing loads, before there is a thread that draws.

    An import that an interrupt cuts off in this thread may leave the module's lock held, and the drawing thread, which
    imports the same, would wait for it for ever.
    """
    from rich.console import Console

    console = Console(file=io.StringIO())
    bar = _bar(console)
    bar.add_task("packing", total=2, completed=1, rate="1/s", bad="0 rejected")
    console.print(bar.get_renderable())
