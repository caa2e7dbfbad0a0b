"""Handles that must not cross a fork: one value for each process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Makes a value once in each process that asks; a forked child makes its own and lets go of its parent's.

    No lock is held that a fork could copy in its locked state. `make` must be cheap and have no effect, since two
    threads that ask first at once may both call it; one of the two values is thrown away.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[int, T] = {}

    def get(self) -> T:
        """This process's value."""
        own = os.getpid()
        value = self._values.get(own)
        if value is None:
            value = self._values.setdefault(own, self._make())
            for process in [process for process in list(self._values) if process != own]:
                self._values.pop(process, None)
        return value

    def drop(self) -> None:
        """Let go of the value; the next `get` makes a new one."""
        self._values.clear()
