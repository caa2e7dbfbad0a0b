"""One live tune's choice beside the best of a recording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wellfed.pipeline.config import LoaderSettings

from .recording import Recording
from .replay import WITHIN_PERCENT, best_of, truths_of

BUDGET_SECONDS = 180.0


def compare(recording: Recording, report: Mapping[str, Any]) -> dict[str, Any]:
    """What a tune's report chose, held against the recorded grid.

    Its rate is the median of its own rounds: it chooses in the whole space, and the grid may not hold its point.

    Args:
        report: JSON of `wellfed tune`.
    """
    best = best_of(truths_of(recording))
    chosen = next(trial for trial in report["trials"] if trial["id"] == report["chosen"])
    speed = chosen["median"]["samples_per_second"]
    seconds = report["seconds"]
    before_hold = sum(seconds.get(name, 0.0) for name in ("preflight", "memory", "rates", "search", "differential"))
    return {
        "step": recording.head["step"],
        "chosen": LoaderSettings.from_dict(chosen["settings"]).to_dict(),
        "samples_per_second": round(speed, 1),
        "best": best.settings.to_dict(),
        "best_samples_per_second": round(best.samples_per_second, 1),
        "regret_percent": round(100 * (1 - speed / best.samples_per_second), 3),
        "within_3_percent": speed >= (1 - WITHIN_PERCENT / 100) * best.samples_per_second,
        "seconds_before_hold": round(before_hold, 1),
        "in_time": before_hold <= BUDGET_SECONDS,
        "seconds": seconds,
    }
