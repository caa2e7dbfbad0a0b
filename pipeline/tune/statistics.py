"""Intervals for a handful of noisy measurements: seeded bootstrap, and a least-squares slope.

With five rounds the plain percentile bootstrap is too narrow, so its percentiles are moved outward as Hesterberg, "What
Teachers Should Know About the Bootstrap" (The American Statistician, 2015, section 4.3), gives for small samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

RESAMPLES = 4000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A figure with its 95% interval; `low` and `high` equal `value` where only one measurement stands behind it."""

    value: float
    low: float
    high: float


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t.

    One and two degrees have closed forms; for more, the Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5), off by
    less than 1% from 3 degrees on at 0.975.
    """
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        return (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
    x, n = NormalDist().inv_cdf(probability), degrees
    return (
        x
        + (x**3 + x) / (4 * n)
        + (5 * x**5 + 16 * x**3 + 3 * x) / (96 * n**2)
        + (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / (384 * n**3)
        + (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / (92160 * n**4)
    )


def _tail(n: int) -> float:
    """Share of bootstrap means to cut on each side so that n values give the nominal confidence."""
    quantile = t_quantile((1 + CONFIDENCE) / 2, n - 1)
    return NormalDist().cdf(-math.sqrt(n / (n - 1)) * quantile)


def _resampled_means(values: np.ndarray, seed: int) -> np.ndarray:
    picks = np.random.default_rng(seed).integers(0, len(values), size=(RESAMPLES, len(values)))
    return values[picks].mean(axis=1)


def _between(means: np.ndarray, n: int) -> tuple[float, float]:
    tail = _tail(n)
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def mean_interval(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Mean of the values with its bootstrap interval.

    Raises:
        ValueError: no values.
    """
    if not len(values):
        raise ValueError("an interval needs at least one value")
    array = np.asarray(values, dtype=np.float64)
    value = float(array.mean())
    if len(array) == 1 or float(np.ptp(array)) == 0.0:
        return Interval(value, value, value)
    low, high = _between(_resampled_means(array, seed), len(array))
    return Interval(value, low, high)


def paired_ratio(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> Interval:
    """Ratio a / b of paired positive values: the geometric mean of the ratios with its bootstrap interval.

    Raises:
        ValueError: lengths differ, no values, or a value that is not positive.
    """
    if len(a) != len(b):
        raise ValueError("paired values must be equally many")
    if not all(x > 0 for x in (*a, *b)):
        raise ValueError("a ratio needs positive values")
    logs = mean_interval([math.log(x / y) for x, y in zip(a, b, strict=True)], seed=seed)
    return Interval(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high))


def ratio_of_means(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> Interval:
    """mean(a) / mean(b) of two unpaired sets, both resampled.

    Raises:
        ValueError: either is empty, or b's mean is not positive.
    """
    if not len(a) or not len(b):
        raise ValueError("a ratio needs values on both sides")
    top, bottom = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if bottom.mean() <= 0:
        raise ValueError("a ratio needs positive values")
    value = float(top.mean() / bottom.mean())
    if len(top) == 1 and len(bottom) == 1:
        return Interval(value, value, value)
    ratios = _resampled_means(top, seed) / _resampled_means(bottom, seed + 1)
    n = min(len(x) for x in (top, bottom) if len(x) > 1)
    low, high = _between(ratios, n)
    return Interval(value, low, high)


def slope(x: Sequence[float], y: Sequence[float]) -> Interval | None:
    """Least-squares slope of y over x with its t interval; None with fewer than three points or equal x."""
    if len(x) < 3 or len(x) != len(y):
        return None
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    centred = xs - xs.mean()
    spread = float((centred**2).sum())
    if spread == 0.0:
        return None
    value = float((centred * (ys - ys.mean())).sum() / spread)
    residual = ys - ys.mean() - value * centred
    error = math.sqrt(float((residual**2).sum()) / (len(xs) - 2) / spread)
    margin = t_quantile((1 + CONFIDENCE) / 2, len(xs) - 2) * error
    return Interval(value, value - margin, value + margin)
