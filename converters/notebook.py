"""Progress in the output of a notebook's cell, where a caller asked for none of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from wellfed.pipeline.hardware.notebook import in_notebook

from .progress import Progress, ProgressCallback

__all__ = ["NotebookBars", "or_drawn"]

EVERY_SECONDS = 0.25


def or_drawn(progress: ProgressCallback | None) -> ProgressCallback | None:
    """The caller's callback; without one, in a notebook, one that draws."""
    if progress is not None or not in_notebook():
        return progress
    # Not a dependency: where there is a notebook, it is there.
    return NotebookBars(import_module("IPython.display").display)


class NotebookBars:
    """Draws a bar for each stage, in place; frontends without HTML show its text.

    Args:
        display: that of IPython.
        clock: seconds.
    """

    def __init__(self, display: Callable[..., Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._display = display
        self._clock = clock
        self._bars: dict[str, Any] = {}
        self._drawn = 0.0

    def __call__(self, progress: Progress) -> None:
        """Draw, but not more often than anyone looks, except for what is new or done."""
        now = self._clock()
        bar = self._bars.get(progress.stage)
        if bar is not None and progress.done < progress.total and now - self._drawn < EVERY_SECONDS:
            return
        self._drawn = now
        words = {"pack": "packing", "write": "writing", "check": "checking"}[progress.stage]
        bad = "damaged" if progress.stage == "check" else "rejected"
        text = f"{words} {progress.done:,} / {progress.total:,}, {progress.found_bad:,} {bad}"
        shown = {
            "text/plain": text,
            "text/html": f'<progress value="{progress.done}" max="{max(1, progress.total)}"></progress> {text}',
        }
        if bar is None:
            self._bars[progress.stage] = self._display(shown, raw=True, display_id=True)
        else:
            bar.update(shown, raw=True)
