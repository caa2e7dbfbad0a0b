"""Whether other programs used this process's cores while something was measured."""

from __future__ import annotations

import os
from collections.abc import Callable

import psutil

from .cpu import usable_cores

__all__ = ["CoreWatch"]

_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")


def _busy_seconds() -> float | None:
    """Of the cores that this process may use, by anybody, since the machine started; None where they cannot be told."""
    mine = os.sched_getaffinity(0)
    cores = psutil.cpu_times(percpu=True)
    # A quota is a share of cores that belong to others as well: what happens on them says nothing.
    if max(mine) >= len(cores) or usable_cores().value != len(mine):
        return None
    return sum(getattr(cores[core], name, 0.0) for core in mine for name in _BUSY)


def _own_seconds() -> float:
    """CPU time of this process and of its children, those that have ended included."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            spent = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += spent.user + spent.system + spent.children_user + spent.children_system
    return total


class CoreWatch:
    """What others take of this process's cores, from now on.

    Args:
        clock: monotonic seconds of the machine.
        busy: CPU seconds that anybody took on the cores; None where it cannot be told.
        own: CPU seconds of this process and its children.
        cores: how many there are.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        busy: Callable[[], float | None] = _busy_seconds,
        own: Callable[[], float] = _own_seconds,
        cores: Callable[[], int] = lambda: len(os.sched_getaffinity(0)),
    ) -> None:
        self._clock, self._busy, self._own, self._cores = clock, busy, own, cores
        self._start = clock(), busy(), own()

    def others_share(self) -> float | None:
        """Share of the cores' time that was others', 0..1; None where it cannot be told."""
        began, busy_before, own_before = self._start
        passed, busy = self._clock() - began, self._busy()
        if busy is None or busy_before is None or passed <= 0:
            return None
        others = (busy - busy_before) - (self._own() - own_before)
        return min(1.0, max(0.0, others / (passed * self._cores())))
