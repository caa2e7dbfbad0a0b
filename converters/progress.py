"""What a running conversion or verification tells its caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Stage = Literal["pack", "write", "check"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far it is.

    Attributes:
        stage: "pack" reads, checks and packs samples; "write" writes the LMDB environment; "check" verifies.
        done, total: samples.
        found_bad: rejected samples, or problems found, so far.
    """

    stage: Stage
    done: int
    total: int
    found_bad: int


ProgressCallback = Callable[[Progress], None]


class Tally:
    """Adds up what workers report, for one stage.

    Args:
        total: samples.
        tell: called with each new sum; None for nobody.
    """

    def __init__(self, stage: Stage, total: int, tell: ProgressCallback | None) -> None:
        self._stage, self._total, self._tell = stage, total, tell
        self._finished = (0, 0)
        self._running: dict[int, tuple[int, int]] = {}

    def running(self, task: int, done: int, bad: int) -> None:
        """A task has got this far."""
        self._running[task] = (done, bad)
        self._say()

    def finished(self, task: int, done: int, bad: int) -> None:
        """A task has ended with these numbers."""
        self._running.pop(task, None)
        self._finished = (self._finished[0] + done, self._finished[1] + bad)
        self._say()

    def _say(self) -> None:
        if self._tell is not None:
            done, bad = (sum(column) for column in zip(self._finished, *self._running.values(), strict=True))
            self._tell(Progress(stage=self._stage, done=done, total=self._total, found_bad=bad))
