"""How a tune's time is divided: what was given decides how long each measurement may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_RATES_SHARE = 0.5
_ROUND_OVERHEAD = 3.0  # warm-up, refilled queues and the ceiling, with the window itself


@dataclass(frozen=True)
class Budget:
    """Time for measuring and search.

    Args:
        seconds: given by the user; the hold is not part of it.
        clock: monotonic seconds.
        started: when it began.
    """

    seconds: float
    clock: Callable[[], float]
    started: float

    @property
    def slice_seconds(self) -> float:
        """Length of one measurement: 2 s from a budget of 90 s on (NVML's utilization needs that), less below it."""
        return min(2.0, max(0.4, self.seconds / 90))

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    @property
    def left(self) -> float:
        return self.seconds - self.elapsed

    def rates_done(self) -> bool:
        """Whether measuring the parts has had its share, and the search must begin."""
        return self.elapsed >= _RATES_SHARE * self.seconds

    def trials(self, rounds: int, *, most: int) -> int:
        """How many trials fit into the time left over these rounds, 1 to `most`."""
        return max(1, min(most, int(self.left / (rounds * self.slice_seconds * _ROUND_OVERHEAD))))
