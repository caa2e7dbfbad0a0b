"""Figures of several ranks, with values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from wellfed.pipeline.monitor.figures import (
    RankFigures,
    late_in_loading,
    rank_figures,
    scaling,
    slow_in_step,
    waits_by_step,
    world_rate,
)
from wellfed.pipeline.training import Window


def window(**values: Any) -> Window:
    """10 steps of 4 samples in 2 seconds, of which it waits 0.625."""
    return Window(
        **{
            "batch_size": 4,
            "steps": 10,
            "samples": 40,
            "wall_seconds": 2.0,
            "wait_seconds": (0.0625,) * 10,
            "step_seconds": (0.1375,) * 10,
            "exhausted": False,
            "util_percent": 80.0,
            "util_reason": None,
            "util_source": "NVML",
            "util_samples": (80.0,),
            "peak_bytes": 1000,
            "memory_reason": None,
            "memory_source": "NVML",
            "memory_samples": (1000,),
            "other_process_bytes": None,
            "torch_peak_reserved_bytes": None,
            "host_rss_bytes": (),
            "host_rss_seconds": (),
            **values,
        }
    )


def test_figures_of_a_rank() -> None:
    # given 2 s at 20 samples/s and 80%, and 2 s at 40 samples/s (80 samples) and 50%, and no wait; then 1 s at 20%
    second = window(samples=80, wait_seconds=(0.0,) * 10, util_percent=50.0, peak_bytes=3000)
    third = window(steps=5, samples=30, wall_seconds=1.0, wait_seconds=(0.0,) * 5, util_percent=20.0)

    assert rank_figures([window(), second, third]) == RankFigures(
        samples_per_second=30.0,
        step_seconds=5 / 25,
        wait_share=0.125,
        util_percent=(2 * 80 + 2 * 50 + 20) / 5,
        util_reason=None,
        peak_bytes=3000,
        memory_reason=None,
    )


def test_what_one_window_lacks_is_none_with_its_reason() -> None:
    without = window(util_percent=None, util_reason="MIG", peak_bytes=None, memory_reason="hidden")

    found = rank_figures([window(), without])

    assert (found.util_percent, found.util_reason) == (None, "MIG")
    assert (found.peak_bytes, found.memory_reason) == (None, "hidden")
    with pytest.raises(ValueError, match="at least one window"):
        rank_figures([])


def test_all_ranks_together_take_the_time_of_the_slowest() -> None:
    # given windows of 40 samples: 80 in 2 s, and 80 in 4 s; the median of 40 and 20
    first, second = [window(), window()], [window(wall_seconds=1.0), window(wall_seconds=4.0)]

    assert world_rate([first, second]) == 30.0
    assert world_rate([first, []]) is None
    assert world_rate([]) is None


def test_a_rank_that_waits_longer_straggles_in_loading() -> None:
    # given steps of 100 ms, when rank 2 waits 12 ms and the others 1 ms and 3 ms: 10 ms beyond their median
    waits = [[0.001] * 40, [0.003] * 40, [0.012] * 40]

    stragglers, reason = late_in_loading(waits, 0.1)

    assert reason is None
    assert [(one.rank, one.kind) for one in stragglers] == [(2, "loading")]
    assert stragglers[0].excess_share == pytest.approx(0.10)
    assert stragglers[0].low_share == pytest.approx(0.10)


def test_the_bound_is_five_percent_of_a_step() -> None:
    assert [one.rank for one in late_in_loading([[0.0] * 40, [0.0051] * 40], 0.1)[0]] == [1]
    assert late_in_loading([[0.0] * 40, [0.0049] * 40], 0.1) == ([], None)


def test_waits_that_all_ranks_have_make_none_a_straggler() -> None:
    # Slow storage for all: the loaders bind, and none more than another.
    assert late_in_loading([[0.05] * 40] * 3, 0.1) == ([], None)


def test_one_long_wait_does_not_make_a_straggler() -> None:
    # given one wait of 4 s among 40 steps: on average a whole step, and in nine of ten runs of steps none
    waits = [[0.0] * 40, [0.0] * 17 + [4.0] + [0.0] * 22]

    assert late_in_loading(waits, 0.1) == ([], None)


def test_the_worst_loader_comes_first_and_ranks_are_cut_to_the_same_steps() -> None:
    waits = [[0.0] * 50, [0.02] * 40, [0.04] * 60, [0.0] * 40, [0.0] * 40]

    stragglers, _ = late_in_loading(waits, 0.1)

    assert [one.rank for one in stragglers] == [2, 1]


def test_waits_are_set_side_by_side_window_by_window() -> None:
    # given a first window in which rank 1 did a step less
    first = [window(steps=3, wait_seconds=(1.0, 2.0, 3.0)), window(steps=1, wait_seconds=(4.0,))]
    second = [window(steps=2, wait_seconds=(5.0, 6.0)), window(steps=1, wait_seconds=(7.0,))]

    assert waits_by_step([first, second]) == [[1.0, 2.0, 4.0], [5.0, 6.0, 7.0]]
    assert waits_by_step([first, []]) == [[], []]


def test_too_little_to_judge_loading() -> None:
    assert late_in_loading([[0.1] * 40], 0.1) == ([], "one rank has nobody to be compared with")
    assert late_in_loading([[0.1] * 40, [0.0] * 19], 0.1) == ([], "19 steps are too few, 20 are needed")


def test_a_rank_whose_step_is_slower_in_every_window() -> None:
    # given 100 samples/s of the others, and 80 and 90 of rank 1: 25% and 11% longer
    rates = [[100.0] * 3, [80.0, 90.0, 80.0], [100.0] * 3]

    stragglers, reason = slow_in_step(rates)

    assert reason is None
    assert [(one.rank, one.kind) for one in stragglers] == [(1, "step")]
    assert stragglers[0].excess_share == pytest.approx((0.25 + 1 / 9 + 0.25) / 3)
    assert stragglers[0].low_share == pytest.approx(1 / 9)


def test_a_rank_that_was_as_fast_once_is_no_straggler() -> None:
    assert slow_in_step([[100.0] * 3, [80.0, 96.0, 80.0]]) == ([], None)
    assert slow_in_step([[100.0] * 2, [80.0] * 2])[1] == (
        "each rank's step by itself was measured 2 times, 3 are needed"
    )
    assert slow_in_step([[100.0] * 3])[1] == "one rank has nobody to be compared with"


def test_scaling_is_communication_times_loader() -> None:
    # given 1000 samples/s on one GPU, 3600 on four with cached batches, 3240 with loaders
    found = scaling(4, one=1000.0, ceiling=3600.0, fed=3240.0)

    assert (found.communication, found.loader, found.efficiency) == (0.9, 0.9, 0.81)
    assert found.reason is None


def test_what_did_not_run_leaves_its_factors_out() -> None:
    found = scaling(4, one=None, ceiling=3600.0, fed=3240.0)
    assert (found.communication, found.loader, found.efficiency) == (None, 0.9, None)
    assert found.reason == "one GPU by itself had no step after its warm-up"

    found = scaling(2, one=10.0, ceiling=None, fed=15.0)
    assert (found.communication, found.loader, found.efficiency) == (None, None, 0.75)
    assert scaling(2, one=None, ceiling=None, fed=None).reason == (
        "one GPU by itself and the step of all ranks on cached batches and the step of all ranks with their loaders "
        "had no step after its warm-up"
    )
