"""What the searches of many seeds lose to the best of the grid, and the share of its time that they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.errors import WellfedError
from wellfed.pipeline.tune.rig import rate

from .recording import MissingCallError, RecordedError, Recording
from .rigs import fed_key
from .search import Found, device_of, find, points_of_recording, request_of

WITHIN_PERCENT = 3.0
WANTED_SHARE = 0.95
WANTED_TIME = 0.10


@dataclass(frozen=True)
class Truth:
    """A point of the grid as it was recorded.

    Attributes:
        samples_per_second, util_percent: medians of its windows.
        peak_bytes: the most of them.
        meets: utilization above its target and memory under the cap, as far as they were measured.
        seconds: that measuring it took, opening included.
        failed: why there is no window; None where there is one.
    """

    settings: LoaderSettings
    samples_per_second: float
    util_percent: float | None
    peak_bytes: int | None
    meets: bool
    seconds: float
    failed: str | None = None


def truths_of(recording: Recording) -> list[Truth]:
    """Every recorded point of the grid."""
    request, total = request_of(recording), device_of(recording).memory_total_bytes
    found = []
    for point in points_of_recording(recording):
        answers = recording.calls.get(fed_key(point, point.batch_size), [])
        windows = [answer.replayed("fed") for answer in answers if answer.raised is None]
        seconds = sum(answer.seconds for answer in answers)
        if not windows:
            why = answers[0].message if answers else "it was not reached"
            found.append(Truth(point, 0.0, None, None, False, seconds, why or "no reason was given"))
            continue
        utils = [window.util_percent for window in windows if window.util_percent is not None]
        peak = max((window.peak_bytes for window in windows if window.peak_bytes is not None), default=None)
        util = median(utils) if utils else None
        busy = util is None or util > request.util_target
        fits = peak is None or not total or peak < request.memory_cap * total
        found.append(Truth(point, median(map(rate, windows)), util, peak, busy and fits, seconds))
    return found


def best_of(truths: Sequence[Truth]) -> Truth:
    """The most samples/s among the points that meet the targets; among all where none does."""
    return max(
        [truth for truth in truths if truth.meets] or truths,
        key=lambda truth: truth.samples_per_second,
    )


def replay(recording: Recording, seeds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Every seed's choice, and what follows from all."""
    truths = truths_of(recording)
    best = best_of(truths)
    by_settings = {truth.settings: truth for truth in truths}
    runs = []
    for seed in range(seeds):
        run: dict[str, Any] = {"seed": seed}
        try:
            run |= _run(find(recording, seed), by_settings, best)
        except (MissingCallError, RecordedError, WellfedError) as error:
            # Counts as missed: a seed that is left out would flatter the rest.
            run |= {"failed": f"{type(error).__name__}: {error}"}
        runs.append(run)
        say(f"seed {seed}: {run.get('failed') or _line(run)}")
    grid = sum(truth.seconds for truth in truths)
    return {
        "step": recording.head["step"],
        "device": recording.head["device"],
        "points": len(truths),
        "not_recorded": [truth.settings.to_dict() for truth in truths if truth.failed is not None],
        "grid_trial_seconds": round(grid, 1),
        "best": {"settings": best.settings.to_dict(), "samples_per_second": round(best.samples_per_second, 1)},
        "summary": summarize(runs, grid),
        "runs": runs,
    }


def _run(found: Found, truths: Mapping[LoaderSettings, Truth], best: Truth) -> dict[str, Any]:
    truth = truths[found.chosen]
    return {
        "chosen": found.chosen.to_dict(),
        "samples_per_second": round(truth.samples_per_second, 1),
        "meets": truth.meets or not best.meets,
        "regret_percent": round(100 * (1 - truth.samples_per_second / best.samples_per_second), 3),
        "trial_seconds": round(found.spent["fed"], 1),
        "stock_seconds": round(found.spent.get("stock", 0.0), 1),
        "search_seconds": round(sum(found.spent.values()), 1),
        "spent": {call: round(seconds, 1) for call, seconds in found.spent.items()},
        "rounds": max(len(record.rounds) for record in found.result.records),
        "trials": [
            {
                "label": record.trial.label,
                "rounds": len(record.rounds),
                "median": round(median(record.values()), 1) if record.rounds else None,
                "predicted": None if record.trial.predicted is None else round(record.trial.predicted, 1),
            }
            for record in found.result.records
        ],
    }


def _line(run: Mapping[str, Any]) -> str:
    return f"{_short(run['chosen'])}: regret {run['regret_percent']:.2f}%, {run['trial_seconds']:.0f} s in trials"


def _short(settings: Mapping[str, Any]) -> str:
    text = f"batch {settings['batch_size']}, {settings['backend']}, {settings['num_workers']} workers"
    if settings["prefetch_factor"] != LoaderSettings().prefetch_factor:
        text += f", prefetch {settings['prefetch_factor']}"
    if settings["backend"] == "hybrid":
        text += f", gpu_share {settings['gpu_share']:g}"
    if settings["backend"] in ("dali", "hybrid"):
        text += f", hw_decoder_load {settings['hw_decoder_load']:g}"
    return text


def summarize(runs: Sequence[Mapping[str, Any]], grid_seconds: float) -> dict[str, Any]:
    """Shares of all seeds, those that failed counted as missed."""
    ended = [run for run in runs if "failed" not in run]
    within = [run for run in ended if run["meets"] and run["regret_percent"] <= WITHIN_PERCENT]
    summary: dict[str, Any] = {
        "seeds": len(runs),
        "failed": len(runs) - len(ended),
        "within_3_percent": len(within),
        "reached": len(within) >= WANTED_SHARE * len(runs),
    }
    if not ended:
        return summary
    shares = sorted(run["trial_seconds"] / grid_seconds for run in ended)
    chosen = Counter(_short(run["chosen"]) for run in ended)
    return summary | {
        "worst_regret_percent": max(run["regret_percent"] for run in ended),
        "median_regret_percent": round(median(run["regret_percent"] for run in ended), 3),
        "trial_share_median": round(median(shares), 4),
        "trial_share_most": round(shares[-1], 4),
        "in_a_tenth": shares[-1] <= WANTED_TIME,
        "search_seconds_median": round(median(run["search_seconds"] for run in ended), 1),
        "chosen": dict(chosen.most_common()),
    }


def table(models: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, one row a recording, and below what was chosen."""
    lines = [
        "| step | seeds within 3% | worst | trials' share of the grid's time (most) | search | best of the grid |",
        "|---|---|---|---|---|---|",
    ]
    notes = []
    for model in models:
        found, best = model["summary"], model["best"]
        if found["failed"] < found["seeds"]:
            cells = [
                model["step"],
                f"{found['within_3_percent']} of {found['seeds']}",
                f"{found['worst_regret_percent']:.1f}%",
                f"{found['trial_share_median']:.1%} ({found['trial_share_most']:.1%}) "
                f"of {model['grid_trial_seconds']:,.0f} s",
                f"{found['search_seconds_median']:,.0f} s",
                f"{best['samples_per_second']:,.0f} img/s: {_short(best['settings'])}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
            notes += [f"{model['step']}: {count} chose {name}" for name, count in found["chosen"].items()]
        if found["failed"]:
            why = next(run["failed"] for run in model["runs"] if "failed" in run)
            notes.append(f"{model['step']}: {found['failed']} of {found['seeds']} failed, the first by {why}")
        if model["device"]["simulated"]:
            notes.append(f"{model['step']}: no result: the device is simulated")
    return "\n".join([*lines, *(f"\n{note}" for note in notes)])
