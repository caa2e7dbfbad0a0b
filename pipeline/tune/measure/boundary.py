"""Whether workers are kept between epochs, judged by what real epoch boundaries cost either way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ...config import LoaderSettings
from ..rig import Rig

MIN_BOUNDARIES = 3
"""Of each kind, for a judgement: by chance all three of one kind are shorter than those of the other once in 20."""

BUDGET_SHARE = 0.05
"""Of a tune's budget: the most that epoch boundaries may take."""


def batches_before(settings: LoaderSettings) -> int:
    """Batches of the old epoch that are loaded to reach its end: every worker is at work then."""
    return max(2, settings.num_workers)


@dataclass(frozen=True)
class Boundaries:
    """Seconds from the last batch of an epoch to the first of the next, measured in turn; empty where not measured.

    Attributes:
        kept: with the workers of the epoch before.
        new: with workers that are started for the epoch.
    """

    kept: tuple[float, ...] = ()
    new: tuple[float, ...] = ()

    @property
    def judged(self) -> bool:
        return min(len(self.kept), len(self.new)) >= MIN_BOUNDARIES

    @property
    def keep(self) -> bool:
        """Whether to keep workers: unless every boundary with new ones was shorter than every one with those kept."""
        return not self.judged or max(self.new) >= min(self.kept)

    @property
    def medians(self) -> dict[bool, float]:
        """By whether workers are kept, as far as measured."""
        return {keep: median(taken) for keep, taken in ((True, self.kept), (False, self.new)) if taken}

    def to_dict(self) -> dict[str, Any]:
        """The report's `parts.boundary_seconds`: medians, and the raw values."""
        known = self.medians
        return {
            "kept": known.get(True),
            "new": known.get(False),
            "kept_rounds": list(self.kept),
            "new_rounds": list(self.new),
        }

    def words(self) -> str:
        """For the report's notes."""
        if not self.kept or not self.new:
            return "persistent_workers was not judged: the budget left no time for epoch boundaries."
        known, count = self.medians, min(len(self.kept), len(self.new))
        costs = (
            f"an epoch boundary takes {known[True]:.2f} s with workers that are kept and {known[False]:.2f} s with new "
            f"ones (median of {count} each, in turn)"
        )
        if self.judged:
            return f"persistent_workers={self.keep}: {costs}."
        return (
            f"persistent_workers was not judged, and workers are kept: {costs}, and a judgement needs "
            f"{MIN_BOUNDARIES} of each, for which the budget left no time."
        )


def measure_boundaries(
    rig: Rig, settings: LoaderSettings, *, samples_per_second: float, left: Callable[[], float], most: float
) -> Boundaries:
    """Cross boundaries of both kinds in turn, the other kind first each time, as far as time allows.

    Args:
        settings: with workers.
        samples_per_second: of these settings.
        left: seconds of the budget that are left.
        most: seconds that all of it may take.
    """
    kept: list[float] = []
    new: list[float] = []
    began = rig.clock()
    # The batches on both sides of the first pair are not free either: seconds, where one takes seconds.
    longest = 2 * (batches_before(settings) + 1) * settings.batch_size / samples_per_second
    for number in range(MIN_BOUNDARIES):
        # What is begun is measured to its end; a pair tells how long the next will take.
        if min(left(), most - (rig.clock() - began)) <= longest:
            break
        asked = rig.clock()
        for keep in (True, False) if number % 2 == 0 else (False, True):
            taken = rig.boundary_seconds(replace(settings, persistent_workers=keep))
            (kept if keep else new).append(taken)
        longest = max(longest, rig.clock() - asked)
    return Boundaries(tuple(kept), tuple(new))
