"""Waiting until a loader's workers have made ready what they may: their work would slow down what is measured next."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

__all__ = ["SETTLE_SECONDS", "settle"]

SETTLE_SECONDS = 3.0
"""At most."""

_POLL_SECONDS = 0.1
_IDLE_SHARE = 0.1


def settle(clock: Callable[[], float]) -> None:
    """Wait until workers have filled their queues: this process and its children use hardly any CPU."""
    deadline = clock() + SETTLE_SECONDS
    before = _cpu_seconds()
    while clock() < deadline:
        time.sleep(_POLL_SECONDS)
        now = _cpu_seconds()
        if now - before < _IDLE_SHARE * _POLL_SECONDS:
            return
        before = now


def _cpu_seconds() -> float:
    """CPU time of this process and its living children."""
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
