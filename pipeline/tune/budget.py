"""How a tune's time is divided: what was given decides how long each measurement may be.

The budget counts probing, measuring and search. Compiling is none of them: a step may take a minute for its first call
at each batch size, a budget of three, and nothing would be measured. So what first calls take beyond a few seconds is
counted by itself; once that is as long as the budget, no further batch size is begun.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_RATES_SHARE = 0.5
_ROUND_OVERHEAD = 2.5  # warm-up, refilled queues and the ceiling, with the window itself
_STAY = 1.5  # candidates that the rounds after the first are for: most leave after it


@dataclass(frozen=True)
class Budget:
    """Time for measuring and search.

    Args:
        seconds: given by the user; the hold is not part of it.
        clock: monotonic seconds.
        started: when it began.
        compiling: seconds of it so far that first calls of the step took beyond a few seconds each.
    """

    seconds: float
    clock: Callable[[], float]
    started: float
    compiling: Callable[[], float] = lambda: 0.0

    @property
    def slice_seconds(self) -> float:
        """Length of one measurement: 2 s from a budget of 90 s on (NVML's utilization needs that), less below it."""
        return min(2.0, max(0.4, self.seconds / 90))

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started - self.compiling()

    @property
    def left(self) -> float:
        return self.seconds - self.elapsed

    def rates_left(self) -> float:
        """Seconds that measuring the parts may still take."""
        return _RATES_SHARE * self.seconds - self.elapsed

    def rates_done(self) -> bool:
        """Whether measuring the parts, or compiling for them, has had its share, and the search must begin."""
        return self.rates_left() <= 0 or self.compiling_done()

    def compiling_done(self) -> bool:
        """Whether compiling has taken as long as the budget: no further batch size is begun."""
        return self.compiling() >= self.seconds

    def candidates(self, rounds: int, *, fixed: int, most: int) -> int:
        """How many candidates fit into the time left, 2 to `most`.

        Args:
            rounds: of the search.
            fixed: trials that stay for all rounds.
            most: of candidates.
        """
        windows = self.left / (self.slice_seconds * _ROUND_OVERHEAD)
        return max(2, min(most, int(windows - fixed * rounds - _STAY * (rounds - 1))))
