"""How a rig does things together with those of other ranks; alone, it just does them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from ...training.process_group import ProbeGroup
from ..machine.turns import whole_turns

__all__ = ["ALONE", "GoOn", "Together"]

T = TypeVar("T")

GoOn = Callable[[int, float], bool]
"""Says after so many steps and seconds of a window whether another step is begun."""


class Together(Protocol):
    """What a rig asks for; every rank asks for the same in the same order, in one thread."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...

    def agreed(self, work: Callable[[], T]) -> T:
        """Begin work with all ranks and end it with all: where it raises on one, it raises the same on all."""
        ...

    def pace(self, seconds: float, max_steps: int | None, turn: int = 1) -> GoOn | None:
        """Begin a window with all ranks: what gives it the same number of steps everywhere. None: time alone does.

        Args:
            seconds: of the window, about.
            max_steps: end after that many steps, if that comes first.
            turn: batches that come together; without max_steps a window holds whole turns where they are short enough.
        """
        ...

    def recover(self) -> None:
        """After work that raised, steps being released: the next ones can run collectives again."""
        ...

    def probe_group(self) -> ProbeGroup | None:
        """Where the children of a probe meet; None where each is alone."""
        ...

    def tell_unprobed(self) -> None:
        """This rank's child ended without a peak: the others need not wait for it."""
        ...


class _Alone:
    """Implements `Together` for one rank."""

    rank = 0
    world_size = 1

    def agreed(self, work: Callable[[], T]) -> T:
        return work()

    def pace(self, seconds: float, max_steps: int | None, turn: int = 1) -> GoOn | None:
        return None if turn == 1 or max_steps is not None else whole_turns(seconds, turn)

    def recover(self) -> None:
        return None

    def probe_group(self) -> ProbeGroup | None:
        return None

    def tell_unprobed(self) -> None:
        return None


ALONE: Together = _Alone()
"""One rank."""
