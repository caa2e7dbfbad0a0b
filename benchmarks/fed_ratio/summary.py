"""Fed ratios with their intervals, whether the ceiling was fast enough, and what binds where a ratio is missed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.ratios import ratio
from ..common.windows import median_of, no_result, rates
from .feeds import FLOOR_DEVICE

_CARRIES = 1.1
"""A loader that alone is less than this much faster than the step cannot hide its unevenness."""


def summarize(run: Mapping[str, Any]) -> dict[str, Any]:
    """The ceiling, each feed's ratio, the best feed, and a verdict: "reached", "missed" or "not a result"."""
    ceiling = rates(run["ceiling"])
    middle = statistics.median(ceiling)
    feeds = [_feed(feed, ceiling, middle) for feed in run["feeds"]]
    summary: dict[str, Any] = {
        "ceiling": round(middle, 1),
        "ceiling_lowest": round(min(ceiling), 1),
        "ceiling_highest": round(max(ceiling), 1),
        "ceiling_util_percent": median_of([window["util_percent"] for window in run["ceiling"]]),
        "floor": run["floor"],
        "feeds": feeds,
        "best": None,
    }
    why = _why_not(run, middle)
    if feeds:
        best = max(feeds, key=lambda feed: feed["ratio"]["median"])
        summary["best"] = best["feed"]
        summary["verdict"] = "reached" if best["ratio"]["median"] >= run["wanted"] else "missed"
        if summary["verdict"] == "missed" and not why:
            summary["binds"] = best["binds"]
    else:
        why = why or "every feed was absent"
    if why:
        summary |= {"verdict": "not a result", "why": why}
    return summary


def _why_not(run: Mapping[str, Any], ceiling: float) -> str | None:
    device = run["device"]
    if why := no_result(simulated=device["simulated"], rounds=run["rounds"]):
        return why
    if FLOOR_DEVICE not in device["name"]:
        return f"the promise and its floor are for an {FLOOR_DEVICE}, and this is {device['name']}"
    if ceiling < run["floor"]:
        return f"the ceiling is below its floor of {run['floor']:,g} img/s, which flatters the ratio"
    return None


def _feed(feed: Mapping[str, Any], ceiling: Sequence[float], middle: float) -> dict[str, Any]:
    windows, alone = feed["windows"], feed["loader_alone"]
    found = ratio(rates(windows), ceiling)
    lost = 1 - found["median"]  # type: ignore[operator]
    if alone < _CARRIES * middle:
        binds = f"the loader: alone it gives {alone:,.0f} img/s, and the step takes {middle:,.0f}"
    else:
        binds = (
            f"the GPU: the loader alone gives {alone:,.0f} img/s, the step takes {middle:,.0f}, and beside it "
            f"the step loses {lost:.0%}"
        )
    return {
        "feed": feed["feed"],
        "samples_per_second": round(statistics.median(rates(windows)), 1),
        "ratio": found,
        "util_percent": median_of([window["util_percent"] for window in windows]),
        "wait_share": round(statistics.median(window["wait_share"] for window in windows), 3),
        "loader_alone": alone,
        "binds": binds,
    }


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, one row for each feed, and below what was not measured and why."""
    lines = [
        "| model | feed | img/s | ceiling | fed ratio (95% interval) | wanted | GPU-Util % | waits for data "
        "| loader alone | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    notes = []
    for run in runs:
        summary = run["summary"]
        for feed in summary["feeds"]:
            found = feed["ratio"]
            best = feed["feed"] == summary["best"]
            cells = [
                run["configuration"],
                feed["feed"],
                f"{feed['samples_per_second']:,.0f}",
                f"{summary['ceiling']:,.0f}",
                f"{found['median']:.3f} ({found['low']:.3f} to {found['high']:.3f})",
                f"{run['wanted']:.2f}",
                "" if feed["util_percent"] is None else f"{feed['util_percent']:.0f}",
                f"{feed['wait_share']:.0%}",
                f"{feed['loader_alone']:,.0f}",
                summary["verdict"] if best else "",
            ]
            lines.append("| " + " | ".join(cells) + " |")
        notes += [f"{run['configuration']}: {feed} is absent: {why}" for feed, why in run["absent"].items()]
        for name in ("why", "binds"):
            if name in summary:
                notes.append(f"{run['configuration']}: {summary['verdict']}: {summary[name]}")
    return "\n".join([*lines, *(f"\n{note}" for note in notes)])
