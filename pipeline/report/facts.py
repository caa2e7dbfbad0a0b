"""What the pages say, worked out from a report's JSON: which trial is which, headline figures, and their reasons.

The HTML and the Markdown page both draw from here, so that they never differ in a figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from . import words

__all__ = [
    "Headline",
    "best_ceiling",
    "cap_bytes",
    "chosen_trial",
    "comparison_text",
    "conclusion",
    "decided",
    "headlines",
    "held",
    "hold_rows",
    "simulated_banner",
    "speedup",
    "stock_trial",
    "subject",
    "trial_reason",
]

MIN_ROUNDS = 5

_REASONS = {
    "util_percent": ("util_reason",),
    "peak_bytes": ("memory_reason", "peak_reason", "peak_bytes_reason"),
    "fed_ratio": ("fed_reason", "ceiling_reason"),
    "wait_share": ("wait_reason",),
    "samples_per_second": ("error",),
}


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One figure of the verdict: its text, its target in words, and whether it was met (None: cannot be said)."""

    name: str
    text: str
    target: str
    met: bool | None
    value: float | None
    goal: float | None
    detail: str = ""


def stock_trial(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The stock torch loader's trial; where it was tried at more than one batch size, the last that ran."""
    stock = [trial for trial in report["trials"] if trial["role"] == "stock"]
    return next((trial for trial in reversed(stock) if trial["rounds"]), stock[-1] if stock else None)


def chosen_trial(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The trial of the chosen settings."""
    return next((trial for trial in report["trials"] if trial["id"] == report["chosen"]), None)


def subject(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The trial the report is about: the chosen one, otherwise the fastest that is not stock torch."""
    chosen = chosen_trial(report)
    if chosen is not None:
        return chosen
    own = [trial for trial in report["trials"] if trial["role"] != "stock"]
    return max(own, key=lambda trial: trial["median"].get("samples_per_second") or 0.0, default=None)


def trial_reason(trial: Mapping[str, Any], name: str) -> str | None:
    """Why a figure of a trial is None."""
    if not trial["rounds"]:
        return trial["left"]
    return words.reason_of(trial["rounds"], *_REASONS.get(name, ()))


def held(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures a verdict rests on: the hold's where there was one, otherwise the subject's medians."""
    if report["hold"] is not None:
        return report["hold"]
    trial = subject(report)
    return trial["median"] if trial is not None else {}


def _held_reason(report: Mapping[str, Any], name: str) -> str | None:
    if report["hold"] is not None:
        hold = report["hold"]
        return words.reason_of([hold, *hold["windows"]], *_REASONS[name])
    trial = subject(report)
    return trial_reason(trial, name) if trial is not None else "no settings could be run"


def cap_bytes(report: Mapping[str, Any]) -> float | None:
    """The memory cap; None where it, or the memory it is a share of, is not known."""
    total = report["device"]["memory_total_bytes"]
    if total is None:
        return None
    if report["memory"] is not None:
        return report["memory"]["cap_bytes"]
    # A bench probes no memory, yet is judged by the cap it was asked for.
    asked = report["request"].get("memory_cap")
    return None if asked is None else total * asked


def headlines(report: Mapping[str, Any]) -> list[Headline]:
    """Utilization, fed ratio, peak memory against the cap, and samples a second."""
    figures, request = held(report), report["request"]
    util, fed, peak = (figures.get(name) for name in ("util_percent", "fed_ratio", "peak_bytes"))
    util_low, fed_low = figures.get("util_low"), figures.get("fed_low")
    util_goal, fed_goal = request.get("util_target", 70.0), request.get("fed_target", 0.90)
    cap, total = cap_bytes(report), report["device"]["memory_total_bytes"]
    judged_util = util if util_low is None else util_low
    judged_fed = fed if fed_low is None else fed_low
    speed = figures.get("samples_per_second")
    found = [
        Headline(
            name="GPU utilization",
            text=words.percent(util, _held_reason(report, "util_percent")),
            target=f"target above {util_goal:g}%",
            met=None if judged_util is None else judged_util > util_goal,
            value=None if util is None else util / 100,
            goal=util_goal / 100,
            detail="" if util_low is None else f"at least {words.percent(util_low)} (95% bound)",
        ),
        Headline(
            name="Fed ratio",
            text=words.ratio(fed, _held_reason(report, "fed_ratio")),
            target=f"target {fed_goal:.2f} or more",
            met=None if judged_fed is None else judged_fed >= fed_goal,
            value=fed,
            goal=fed_goal,
            detail="" if fed_low is None else f"at least {words.ratio(fed_low)} (95% bound)",
        ),
        Headline(
            name="Peak memory",
            text=words.bytes_text(peak, _held_reason(report, "peak_bytes")),
            target="no cap known" if cap is None else f"cap {words.bytes_text(cap)}",
            met=None if peak is None or cap is None else peak < cap,
            value=None if peak is None or not total else peak / total,
            goal=None if cap is None or not total else cap / total,
            detail="" if peak is None or not total else f"{100 * peak / total:.0f}% of the device",
        ),
    ]
    gain = speedup(report)
    found.append(
        Headline(
            name="Samples a second",
            text=words.rate(speed, _held_reason(report, "samples_per_second")),
            target="" if gain is None else f"{gain[0]:.2f} times stock torch",
            met=None,
            value=None,
            goal=None,
            detail="" if gain is None or gain[1] is None else f"95% interval {gain[1]:.2f} to {gain[2]:.2f}",
        )
    )
    return found


def speedup(report: Mapping[str, Any]) -> tuple[float, float | None, float | None] | None:
    """Subject's samples/s over stock torch's with its interval; from the paired comparison where there is one."""
    stock, own = stock_trial(report), subject(report)
    if stock is None or own is None:
        return None
    for comparison in filter(decided, report["comparisons"]):
        if comparison["a"] == own["id"] and comparison["b"] == stock["id"]:
            return comparison["ratio"], comparison["low"], comparison["high"]
        if comparison["a"] == stock["id"] and comparison["b"] == own["id"] and comparison["low"] > 0:
            return 1 / comparison["ratio"], 1 / comparison["high"], 1 / comparison["low"]
    rates = [trial["median"].get("samples_per_second") for trial in (own, stock)]
    return (rates[0] / rates[1], None, None) if rates[0] and rates[1] else None


def decided(comparison: Mapping[str, Any]) -> bool:
    """Whether there were rounds enough for an interval to mean anything: five (design section 6)."""
    return comparison["rounds"] >= MIN_ROUNDS


def conclusion(comparison: Mapping[str, Any]) -> str:
    """A comparison's conclusion in words."""
    if not decided(comparison):
        return f"undecided: {words.plural(comparison['rounds'], 'round')}, {MIN_ROUNDS} are needed"
    return str(comparison["conclusion"])


def comparison_text(comparison: Mapping[str, Any], labels: Mapping[Any, str]) -> str:
    """One comparison as a sentence."""
    a, b = labels[comparison["a"]], labels[comparison["b"]]
    verb = {"better": "is faster than", "worse": "is slower than", "no difference": "does not differ from"}
    if not decided(comparison):
        return f"{a}, undecided against {b}"
    return f"{a} {verb[comparison['conclusion']]} {b}"


def simulated_banner(report: Mapping[str, Any]) -> str | None:
    """The words that stand above every page about a device that does not exist."""
    device = report["device"]
    if not device["simulated"]:
        return None
    preset = device.get("preset") or device["name"]
    return (
        f"SIMULATED ACCELERATOR: no GPU was used. The device is a model of one (preset {preset}). Reading, decoding "
        "and batching are real and were measured on this machine; device utilization, memory and step time are the "
        "model's."
    )


def hold_rows(report: Mapping[str, Any], most: int = 12) -> list[dict[str, Any]]:
    """The hold's windows as rows of at most `most`: when, samples/s, utilization, wait share.

    Neighbouring windows are joined where there are more; their samples/s is total samples over total seconds.
    """
    windows: Sequence[Mapping[str, Any]] = report["hold"]["windows"]
    rows: list[dict[str, Any]] = []
    start = 0.0
    size = max(1, math.ceil(len(windows) / most))
    for first in range(0, len(windows), size):
        part = windows[first : first + size]
        wall = sum(window["wall_seconds"] for window in part)
        utils = [window["util_percent"] for window in part if window.get("util_percent") is not None]
        waits = [sum(window["wait_seconds"]) for window in part if window.get("wait_seconds")]
        rows.append(
            {
                "start": start,
                "end": start + wall,
                "samples_per_second": sum(window["samples"] for window in part) / wall if wall else None,
                "util_percent": sum(utils) / len(utils) if utils else None,
                "util_reason": words.reason_of(part, "util_reason"),
                "wait_share": sum(waits) / wall if waits and wall else None,
            }
        )
        start += wall
    return rows


def best_ceiling(report: Mapping[str, Any]) -> float | None:
    """The ceiling of the chosen batch size, otherwise the highest: median samples/s."""
    own = subject(report)
    size = (own.get("settings") or {}).get("batch_size") if own is not None else None
    rates = {
        entry["batch_size"]: median(entry["samples_per_second"])
        for entry in report["ceilings"]
        if entry["samples_per_second"]
    }
    return rates[size] if size in rates else max(rates.values(), default=None)
