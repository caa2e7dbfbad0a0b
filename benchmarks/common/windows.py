"""Measured windows: in which order they are taken, what is kept of them, and what is read from many."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from wellfed.pipeline.tune.rig import Window

LEAST_ROUNDS = 5
"""Behind any claim; fewer are a trial run."""

_KEPT = (
    *("samples", "steps", "batch_size", "wall_seconds", "samples_per_second", "wait_share", "util_percent"),
    *("util_reason", "util_source", "util_samples", "peak_bytes", "torch_peak_reserved_bytes"),
)

_Item = TypeVar("_Item")


def interleaved(items: Sequence[_Item], rounds: int, *, seed: int) -> Iterator[tuple[int, _Item]]:
    """Every item once a round, in a new random order, with the round's number from 1."""
    orders = random.Random(seed)
    for number in range(1, rounds + 1):
        for item in orders.sample(items, len(items)):
            yield number, item


def kept(window: Window) -> dict[str, Any]:
    """The raw values of a window that results keep."""
    values = window.to_dict()
    return {name: values[name] for name in _KEPT}


def rates(windows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Samples/s of each."""
    return [window["samples_per_second"] for window in windows]


def median_of(values: Sequence[float | None]) -> float | None:
    """The median of those that were measured, to a tenth; None where none was."""
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 1) if known else None


def no_result(*, simulated: bool, rounds: int) -> str | None:
    """Why windows are no result, whatever was measured; None where they may be one."""
    if simulated:
        return "the device is simulated"
    if rounds < LEAST_ROUNDS:
        return f"fewer than {LEAST_ROUNDS} rounds"
    return None
