"""When a window ends, on several ranks: after the same number of steps, since a step may wait for the other ranks' one.

A step of DDP or FSDP runs collectives, so a rank that ran one step more than the others would wait for ever. How many
steps fill the time is not known beforehand, and each rank's clock says something else. So a window is cut into runs of
steps, each at most as long as all before it: a rank posts the time it has reached when a quarter of the run is left,
goes on, and picks up what all have posted at the run's end; from the slowest rank's pace all compute the same next run.
A rank waits there only for one that is more than a quarter of a run behind, as a collective in its step would wait too.
"""

from __future__ import annotations

from collections.abc import Callable

from ..machine.turns import LONGEST

__all__ = ["Pace"]


class Pace:
    """Implements `GoOn` of `together`: one window on one rank.

    Args:
        post: tell the other ranks, in the window's exchange of this number, the seconds that this one has reached.
        collect: wait for what all ranks have posted in that exchange.
        seconds: of the window; at least one step is run.
        max_steps: end after that many steps, if that comes first.
        turn: end after whole turns of so many steps, as long as these do not make the window several times as long.
    """

    def __init__(
        self,
        post: Callable[[int, float], None],
        collect: Callable[[int], list[float]],
        *,
        seconds: float,
        max_steps: int | None,
        turn: int = 1,
    ) -> None:
        self._post = post
        self._collect = collect
        self._seconds = seconds
        self._most = max_steps
        self._turn = 1 if max_steps is not None else turn
        self._number = 0
        self._post_after = 1
        self._until = 1
        self._before = (0, 0.0)  # steps and the slowest rank's seconds, in the exchange before

    def __call__(self, steps: int, elapsed: float) -> bool:
        """Whether another step is begun after so many, this rank having measured for `elapsed` seconds."""
        if steps == 0:
            return True
        if self._most is not None and steps >= self._most:
            return False
        if steps == self._post_after:
            self._post(self._number, elapsed)
        if steps < self._until:
            return True
        slowest = max(self._collect(self._number))
        # A GPU's queue takes the first steps at once; the latest ones show what a step takes once it is full.
        latest = (slowest - self._before[1]) / (self._post_after - self._before[0])
        each = max(slowest / self._post_after, latest)
        self._before = (self._post_after, slowest)
        left = self._seconds - slowest - (steps - self._post_after) * each
        # As many as fit, to the nearest: the time is reached on the average, and no run is a part of a step.
        more = max(0, steps if each <= 0 else min(steps, round(left / each)))
        to_whole = -(steps + more) % self._turn
        if (more + to_whole) * each <= left + (LONGEST - 1) * self._seconds:
            more += to_whole
        if more < 1:
            return False
        self._number += 1
        self._until = steps + more
        self._post_after = steps + max(1, 3 * more // 4)
        return True
