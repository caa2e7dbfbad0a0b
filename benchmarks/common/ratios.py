"""Ratios of two things measured in the same rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from wellfed.pipeline.tune.statistics import paired_ratio


def ratio(own: Sequence[float], other: Sequence[float]) -> dict[str, float | list[float]]:
    """Own over other, round by round.

    Returns:
        `median` of the rounds' ratios, `low` and `high` of the 95% interval of their geometric mean (the tuner's
        bootstrap; equal to the ratio where there is one round), and the ratios themselves.
    """
    interval = paired_ratio(own, other)
    ratios = [round(a / b, 4) for a, b in zip(own, other, strict=True)]
    return {
        "median": round(statistics.median(ratios), 4),
        "low": round(interval.low, 4),
        "high": round(interval.high, 4),
        "rounds": ratios,
    }
