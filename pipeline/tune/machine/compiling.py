"""What compiling a step takes of a tune, told from its calls: a first one, and any far slower than usual."""

from __future__ import annotations

import math
from collections.abc import Sequence

FIRST_CALL_SECONDS = 5.0
"""A step's first call at a batch size may take this long without compiling: libraries load and choose algorithms."""


class CompilingTime:
    """Adds up what calls took beyond a usual one at their batch size and `FIRST_CALL_SECONDS`.

    Attributes:
        seconds: so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._usual: dict[int, float] = {}

    def probed(self, calls: Sequence[float]) -> None:
        """The calls in a probing process."""
        self._add(calls, math.inf)

    def called(self, batch_size: int, calls: Sequence[float], *, warming_up: bool) -> None:
        """The calls of a window.

        Args:
            warming_up: it was not measured. There, not only a first call may compile: a loader's batches may lie
                otherwise in memory than those before, and such have a graph of their own.
        """
        if not calls:
            return
        usual = self._usual.get(batch_size, math.inf)
        if warming_up:
            self._add(calls, usual)
        if len(calls) > 1 or usual < math.inf:
            self._usual[batch_size] = min(usual, *calls)

    def _add(self, calls: Sequence[float], usual: float) -> None:
        # One call alone has nothing to be compared with.
        usual = min(usual, *calls) if len(calls) > 1 or usual < math.inf else 0.0
        self.seconds += sum(max(0.0, call - usual - FIRST_CALL_SECONDS) for call in calls)
