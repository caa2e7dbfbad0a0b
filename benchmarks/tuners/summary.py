"""What each choice was worth beside wellfed's, what it kept of the step's own speed, and what memory it took."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.ratios import ratio
from ..common.windows import median_of, no_result, rates
from .contestants import OWN

Windows = Sequence[Mapping[str, Any]]


def summarize(run: Mapping[str, Any]) -> dict[str, Any]:
    """A row for each contestant, and why it is no result where it is none."""
    summary: dict[str, Any] = {"rows": [_row(name, outcome, run) for name, outcome in run["contestants"].items()]}
    if why := no_result(simulated=run["device"]["simulated"], rounds=run["rounds"]):
        summary["no_result"] = why
    return summary


def _paired(own: Windows, other: Windows) -> dict[str, Any] | None:
    """The ratio over the rounds that both have; None without one."""
    by_round = {window["round"]: window for window in other}
    pairs = [(window, by_round[window["round"]]) for window in own if window["round"] in by_round]
    return ratio(rates([a for a, _ in pairs]), rates([b for _, b in pairs])) if pairs else None


def _row(name: str, outcome: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"contestant": name, "seconds": outcome.get("seconds")}
    if "choice" not in outcome:
        return row | {"none": outcome.get("absent") or outcome["error"]}
    choice, windows = outcome["choice"], run["windows"].get(name, [])
    row |= {"batch_size": choice["batch_size"], "loader": _loader(choice)}
    if name in run["failed"]:
        row["failed"] = run["failed"][name]
    if not windows:
        return row
    peaks = [window["peak_bytes"] for window in windows if window["peak_bytes"] is not None]
    share = max(peaks) / run["memory_total_bytes"] if peaks else None
    return row | {
        "samples_per_second": round(statistics.median(rates(windows)), 1),
        "wellfed_over_it": None if name == OWN else _paired(run["windows"].get(OWN, []), windows),
        "fed_ratio": _paired(windows, run["ceilings"][choice["batch_size"]]),
        "util_percent": median_of([window["util_percent"] for window in windows]),
        "peak_bytes": max(peaks, default=None),
        "memory_share": None if share is None else round(share, 4),
        "under_cap": None if share is None else share < run["memory_cap"],
    }


def _loader(choice: Mapping[str, Any]) -> str:
    settings = choice["settings"]
    name = "torch" if choice["loader"] == "torch" else f"wellfed {settings['backend']}"
    return f"{name}, {settings['num_workers']}"


def _interval(found: Mapping[str, Any] | None) -> str:
    return "" if found is None else f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def table(run: Mapping[str, Any]) -> str:
    """Markdown, one row for each contestant, and below what was not measured and why."""
    lines = [
        "| who chose | took | loader, workers | batch | img/s | wellfed over it | fed ratio | GPU-Util % | memory "
        "| cap |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    notes = []
    for row in run["summary"]["rows"]:
        name = row["contestant"]
        took = "" if row["seconds"] is None else f"{row['seconds']:.0f} s"
        for kind in ("none", "failed"):
            if kind in row:
                notes.append(f"{name}: {row[kind]}")
        if "none" in row:
            lines.append(f"| {name} | {took} | none | | | | | | | |")
            continue
        cells = [name, took, row["loader"], str(row["batch_size"])]
        if "samples_per_second" in row:
            util, share = row["util_percent"], row["memory_share"]
            cells += [
                f"{row['samples_per_second']:,.0f}",
                _interval(row["wellfed_over_it"]),
                _interval(row["fed_ratio"]),
                "" if util is None else f"{util:.0f}",
                "" if share is None else f"{share:.0%}",
                "" if share is None else "kept" if row["under_cap"] else "**broken**",
            ]
        else:
            cells += ["did not run", "", "", "", "", ""]
        lines.append("| " + " | ".join(cells) + " |")
    if why := run["summary"].get("no_result"):
        notes.append(f"not a result: {why}")
    return "\n".join([*lines, *(f"\n{note}" for note in notes)])
