"""Medians, spread and paired ratios of the raw values."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any


def summarize(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each row: median and range of images/s, CPU seconds for 10,000 images, start-up, and the ratio to its peer.

    A ratio is the median over rounds of the row's rate over its peer's in the same round. `ratio_without_start_up`
    takes from each side's time the median of its start-up.
    """
    return {name: _row(row, rows) for name, row in rows.items()}


def _row(row: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    rates = [value["images_per_second"] for value in row["values"]]
    summary: dict[str, Any] = {
        "images_per_second": round(statistics.median(rates), 1),
        "lowest": round(min(rates), 1),
        "highest": round(max(rates), 1),
        "start_up_seconds": round(_start_up(row), 3),
        "cpu_seconds_per_10000": _cpu(row),
        "peer": row["peer"],
        "wanted": row["wanted"],
    }
    if row["peer"] is not None and row["peer"] in rows:
        peer = rows[row["peer"]]
        pairs = list(zip(row["values"], peer["values"], strict=True))
        ratios = [own["images_per_second"] / other["images_per_second"] for own, other in pairs]
        steady = [_steady(own, row) / _steady(other, peer) for own, other in pairs]
        summary["ratio"] = round(statistics.median(ratios), 3)
        summary["ratio_lowest"], summary["ratio_highest"] = round(min(ratios), 3), round(max(ratios), 3)
        summary["ratio_without_start_up"] = round(statistics.median(steady), 3)
    return summary


def _start_up(row: Mapping[str, Any]) -> float:
    return statistics.median(row["start_up"]) if row["start_up"] else 0.0


def _steady(value: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    """Images/s without start-up; that of a peer which prints its rate has none in it."""
    if "images" not in value:
        return float(value["images_per_second"])
    # A run as short as its own start-up says nothing; it must not divide by zero either.
    return float(value["images"] / max(value["seconds"] - _start_up(row), value["seconds"] / 10))


def _cpu(row: Mapping[str, Any]) -> float | None:
    """User and system time of all processes; None for a peer that prints its rate, whose time holds more."""
    spent = [
        (value["user_seconds"] + value["system_seconds"]) / value["images"] * 10_000
        for value in row["values"]
        if "images" in value
    ]
    return round(statistics.median(spent), 2) if spent else None


def table(summary: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| row | img/s (lowest..highest) | start-up s | CPU s / 10,000 | ratio (spread) | without start-up | wanted |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in summary.items():
        cells = [
            name,
            f"{row['images_per_second']:,.0f} ({row['lowest']:,.0f}..{row['highest']:,.0f})",
            f"{row['start_up_seconds']:.2f}",
            "" if row["cpu_seconds_per_10000"] is None else f"{row['cpu_seconds_per_10000']:.2f}",
        ]
        if "ratio" in row:
            spread = f"{row['ratio_lowest']:.2f}..{row['ratio_highest']:.2f}"
            cells += [f"{row['ratio']:.2f} ({spread})", f"{row['ratio_without_start_up']:.2f}", str(row["wanted"])]
        else:
            cells += ["", "", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
