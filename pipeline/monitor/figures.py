"""What the windows of several ranks say together: rates, stragglers, and where scaling is lost.

Ranks of one job run in step: each waits for the slowest wherever gradients are exchanged. So a rank's samples a second
say nothing about itself, and what tells ranks apart is how long each waits for its own batches, and how fast its step
is without the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

import numpy as np

from ..training import Window
from ..tune.statistics import mean_interval

__all__ = [
    "EXCESS_SHARE",
    "RankFigures",
    "Scaling",
    "Straggler",
    "late_in_loading",
    "rank_figures",
    "scaling",
    "slow_in_step",
    "waits_by_step",
    "world_rate",
]

EXCESS_SHARE = 0.05
"""A rank straggles by more than this share of a step: below it the others hardly lose anything."""

BLOCKS = 10
"""Waits are compared in so many runs of consecutive steps: single waits come in bursts and are not independent."""

LEAST_STEPS = 2 * BLOCKS
LEAST_WINDOWS = 3


@dataclass(frozen=True, kw_only=True)
class RankFigures:
    """One rank over all its windows of a kind.

    Attributes:
        samples_per_second: median over the windows.
        step_seconds: mean wall time of a step, its wait included.
        wait_share: of the wall time, waiting for data; 0..1.
        util_percent: mean GPU-Util, weighted by time; None where a window has none, and then `util_reason` says why.
        peak_bytes: the most device memory in use; None where a window has none, and then `memory_reason` says why.
    """

    samples_per_second: float
    step_seconds: float
    wait_share: float
    util_percent: float | None
    util_reason: str | None
    peak_bytes: int | None
    memory_reason: str | None


def rank_figures(windows: Sequence[Window]) -> RankFigures:
    """The figures of one rank.

    Raises:
        ValueError: no windows.
    """
    if not windows:
        raise ValueError("figures need at least one window")
    wall = sum(window.wall_seconds for window in windows)
    utils = [(window.util_percent, window.wall_seconds) for window in windows]
    peaks = [window.peak_bytes for window in windows]
    measured = [(util, seconds) for util, seconds in utils if util is not None]
    held = [peak for peak in peaks if peak is not None]
    return RankFigures(
        samples_per_second=median(window.samples_per_second for window in windows),
        step_seconds=wall / sum(window.steps for window in windows),
        wait_share=min(1.0, sum(sum(window.wait_seconds) for window in windows) / wall),
        util_percent=sum(util * seconds for util, seconds in measured) / wall if len(measured) == len(utils) else None,
        util_reason=next((window.util_reason for window in windows if window.util_percent is None), None),
        peak_bytes=max(held) if len(held) == len(peaks) else None,
        memory_reason=next((window.memory_reason for window in windows if window.peak_bytes is None), None),
    )


def world_rate(ranks: Sequence[Sequence[Window]]) -> float | None:
    """Samples a second of all ranks together, median over their windows; None where a rank has no window.

    Of a window it is the samples of all ranks over the time of the slowest.
    """
    rates = [
        sum(window.samples for window in together) / max(window.wall_seconds for window in together)
        for together in zip(*ranks, strict=False)
    ]
    return median(rates) if rates else None


def waits_by_step(ranks: Sequence[Sequence[Window]]) -> list[list[float]]:
    """For each rank, what each step waited for its batch: only steps, window by window, that all ranks did."""
    found: list[list[float]] = [[] for _ in ranks]
    for together in zip(*ranks, strict=False):
        steps = min(window.steps for window in together)
        for waits, window in zip(found, together, strict=True):
            waits += window.wait_seconds[:steps]
    return found


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that the others wait for.

    Attributes:
        rank: its number.
        kind: "loading", it waits longer for its batches; "step", its step is slower.
        excess_share: by how much, as a share of the others' step.
        low_share: at least how much: the lower end of the 95% interval, or the least of the windows.
    """

    rank: int
    kind: Literal["loading", "step"]
    excess_share: float
    low_share: float


def late_in_loading(waits: Sequence[Sequence[float]], step_seconds: float) -> tuple[list[Straggler], str | None]:
    """Ranks whose loaders keep the others waiting.

    The rule: at each step a rank's wait is set against the median wait of the other ranks at the same step. The rank
    straggles where the mean of these differences is above 5% of a step: not only itself, but the lower end of its 95%
    interval over 10 runs of consecutive steps.

    Args:
        waits: for each rank, seconds that each step waited for its batch, the same steps for all.
        step_seconds: mean wall time of a step.

    Returns:
        The stragglers, worst first; and why nothing can be said, None where it can.
    """
    if len(waits) < 2:
        return [], "one rank has nobody to be compared with"
    steps = min(len(of_rank) for of_rank in waits)
    if steps < LEAST_STEPS:
        return [], f"{steps} steps are too few, {LEAST_STEPS} are needed"
    table = np.asarray([of_rank[:steps] for of_rank in waits], dtype=np.float64)
    found = []
    for rank in range(len(table)):
        beyond = (table[rank] - np.median(np.delete(table, rank, axis=0), axis=0)) / step_seconds
        interval = mean_interval([float(block.mean()) for block in np.array_split(beyond, BLOCKS)])
        if interval.low > EXCESS_SHARE:
            found.append(Straggler(rank=rank, kind="loading", excess_share=interval.value, low_share=interval.low))
    return sorted(found, key=lambda one: -one.excess_share), None


def slow_in_step(rates: Sequence[Sequence[float]]) -> tuple[list[Straggler], str | None]:
    """Ranks whose step is slower than the others' where no rank waits for another.

    The rule: in each of at least three windows the rank's step took more than 5% longer than the median of the other
    ranks' in the same window.

    Args:
        rates: for each rank, samples a second of each window of the step alone: cached batches, nothing exchanged.

    Returns:
        The stragglers, worst first; and why nothing can be said, None where it can.
    """
    if len(rates) < 2:
        return [], "one rank has nobody to be compared with"
    windows = min(len(of_rank) for of_rank in rates)
    if windows < LEAST_WINDOWS:
        return [], f"each rank's step by itself was measured {windows} times, {LEAST_WINDOWS} are needed"
    found = []
    for rank, own in enumerate(rates):
        others = [of_rank for other, of_rank in enumerate(rates) if other != rank]
        longer = [median(of_rank[n] for of_rank in others) / own[n] - 1 for n in range(windows)]
        if min(longer) > EXCESS_SHARE:
            found.append(Straggler(rank=rank, kind="step", excess_share=fmean(longer), low_share=min(longer)))
    return sorted(found, key=lambda one: -one.excess_share), None


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How much of world_size times one GPU is left, and who took the rest: efficiency = communication x loader.

    Attributes:
        world_size: ranks.
        one: samples a second of one GPU on cached batches, nothing exchanged.
        ceiling: of all ranks on cached batches, with the exchange of gradients.
        fed: of all ranks with their loaders.
        efficiency: fed over world_size x one.
        communication: ceiling over world_size x one; what the exchange, and waiting for the slowest, leaves.
        loader: fed over ceiling; the fed ratio of all ranks together.
        reason: which of them is None because it was not measured; None where all were.
    """

    world_size: int
    one: float | None
    ceiling: float | None
    fed: float | None
    efficiency: float | None
    communication: float | None
    loader: float | None
    reason: str | None


def scaling(world_size: int, *, one: float | None, ceiling: float | None, fed: float | None) -> Scaling:
    """The factors, each None where a rate behind it was not measured. See `Scaling` for the arguments."""
    ideal = None if one is None else world_size * one
    missing = [
        words
        for words, rate in (
            ("one GPU by itself", one),
            ("the step of all ranks on cached batches", ceiling),
            ("the step of all ranks with their loaders", fed),
        )
        if rate is None
    ]
    return Scaling(
        world_size=world_size,
        one=one,
        ceiling=ceiling,
        fed=fed,
        efficiency=_over(fed, ideal),
        communication=_over(ceiling, ideal),
        loader=_over(fed, ceiling),
        reason=f"{' and '.join(missing)} had no step after its warm-up" if missing else None,
    )


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
