"""Windows over worker processes: whole turns of all workers.

Each worker decodes batches of its own, and they are delivered in turn: workers that keep step with each other finish
together, so that as many batches come at once as there are workers, and then none for as long as one takes. A window
that ends between two such waves counts up to a wave more or less than its time is worth, and of large batches it holds
few waves. From any place in a turn to the same place in a later one, batches and time belong together.
"""

from __future__ import annotations

from collections.abc import Callable

from ...config import LoaderSettings

__all__ = ["LONGEST", "whole_turns", "workers_in_turn"]

_NEARLY = 0.8
"""Of the seconds asked for: a turn that ends a little early spares another one."""

LONGEST = 4.0
"""Times the seconds asked for: where one turn takes longer, the window ends within it."""


def workers_in_turn(settings: LoaderSettings | None) -> int:
    """Batches of one turn; 1 where batches come from no worker in particular."""
    if settings is None or settings.backend != "processes":
        return 1
    return max(1, settings.num_workers)


def whole_turns(seconds: float, turn: int) -> Callable[[int, float], bool]:
    """Whether a window goes on after so many steps and seconds; see `GoOn`.

    Args:
        seconds: about as long as the window is to be.
        turn: batches of a turn.
    """

    def go_on(steps: int, elapsed: float) -> bool:
        if elapsed >= LONGEST * seconds:
            return False
        return steps % turn != 0 or elapsed < _NEARLY * seconds

    return go_on
