from __future__ import annotations

import math

import numpy as np
import pytest

from wellfed.pipeline.tune.statistics import mean_interval, paired_ratio, ratio_of_means, slope, t_quantile


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.7062), (2, 4.30265), (4, 2.77645), (10, 2.22814), (30, 2.04227)]
)
def test_t_quantiles_agree_with_the_printed_tables(degrees: int, expected: float) -> None:
    # Abramowitz and Stegun, table 26.10, two-sided 5%.
    assert t_quantile(0.975, degrees) == pytest.approx(expected, rel=0.002)


def test_one_value_or_equal_values_have_no_width() -> None:
    assert mean_interval([3.0]) == mean_interval([3.0, 3.0, 3.0])
    assert (mean_interval([3.0]).low, mean_interval([3.0]).high) == (3.0, 3.0)


def test_the_bootstrap_of_many_values_agrees_with_the_normal_interval() -> None:
    values = np.random.default_rng(1).normal(10.0, 2.0, 400)
    interval = mean_interval(values.tolist(), seed=3)
    half = 1.96 * values.std(ddof=1) / math.sqrt(400)
    assert interval.value == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.04)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.04)


def test_five_values_cover_the_truth_as_often_as_promised() -> None:
    draw = np.random.default_rng(5)
    hits = 0
    for number in range(400):
        interval = mean_interval(draw.normal(0.0, 1.0, 5).tolist(), seed=number)
        hits += interval.low <= 0 <= interval.high
    # A plain percentile bootstrap of five covers about 83%.
    assert hits / 400 > 0.87


def test_the_same_seed_gives_the_same_interval() -> None:
    values = [1.0, 2.0, 4.0, 3.0, 5.0]
    assert mean_interval(values, seed=7) == mean_interval(values, seed=7)


def test_a_paired_ratio_cancels_what_rounds_have_in_common() -> None:
    # b halves from round to round, a is always a tenth faster.
    b = [100.0, 50.0, 25.0, 200.0, 75.0]
    interval = paired_ratio([1.1 * x for x in b], b)
    assert interval.value == pytest.approx(1.1)
    assert interval.low == pytest.approx(1.1)
    assert interval.high == pytest.approx(1.1)


def test_ratios_refuse_what_has_none() -> None:
    with pytest.raises(ValueError, match="equally many"):
        paired_ratio([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="positive"):
        paired_ratio([1.0], [0.0])
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])


def test_ratio_of_means_of_constant_sets_is_exact() -> None:
    interval = ratio_of_means([90.0, 90.0], [100.0, 100.0, 100.0])
    assert (interval.value, interval.low, interval.high) == (0.9, 0.9, 0.9)


def test_slope_by_hand() -> None:
    # x 0 1 2 3, y 1 3 2 4: slope 4/5, residuals .3 -.7... give a standard error of sqrt(1.8/2/5).
    interval = slope([0, 1, 2, 3], [1, 3, 2, 4])
    assert interval is not None
    assert interval.value == pytest.approx(0.8)
    assert interval.high - interval.value == pytest.approx(4.30265 * math.sqrt(1.8 / 2 / 5), rel=1e-4)


def test_a_slope_needs_three_points_and_different_x() -> None:
    assert slope([0, 1], [0, 1]) is None
    assert slope([1, 1, 1], [0, 1, 2]) is None
