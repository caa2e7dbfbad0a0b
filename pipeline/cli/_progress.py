"""Progress of a conversion or verification, on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wellfed.converters.progress import Progress, ProgressCallback

_WORDS = {"pack": "packing", "write": "writing", "check": "checking"}


@contextmanager
def progress_bar() -> Iterator[ProgressCallback]:
    """A bar with rate, time left and what went wrong so far; in a log file, nothing but its last state."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[bad]}"),
        console=Console(stderr=True),
    )
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
