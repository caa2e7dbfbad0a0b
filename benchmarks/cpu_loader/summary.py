"""Medians, spread, and the claims, from the raw values."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.ratios import ratio
from .growth import WANTED, flat
from .rows import (
    BY_NAME,
    CLAIMS,
    FIRST_BATCH_SECONDS,
    PEAK_PSS_BYTES,
    PEERS,
    Claim,
)

Entry = Mapping[str, Any]


def summarize(document: Mapping[str, Any]) -> dict[str, Any]:
    """The claims with their ratios, limits and verdicts.

    A verdict is "reached" or "missed" by the median of the rounds' ratios, or "not a result" with the reason: a
    required peer was absent, or the sets or wellfed itself were.
    """
    entries: Sequence[Entry] = document["entries"]
    missing = [peer.name for peer in PEERS if peer.required and peer.name in document["absent"]]
    claims = [_claim(claim, entries, missing) for claim in CLAIMS]
    return {"claims": claims, "limits": _limits(entries, document["growth"])}


def rates(entry: Entry) -> list[float]:
    """Images/s of each round."""
    return [value["images_per_second"] for value in entry["values"]]


def _best(entries: Sequence[Entry]) -> Entry | None:
    return max(entries, key=lambda entry: statistics.median(rates(entry)), default=None)


def _claim(claim: Claim, entries: Sequence[Entry], missing: Sequence[str]) -> dict[str, Any]:
    own = _best([e for e in entries if e["set"] == claim.own_set and BY_NAME[e["peer"]].own])
    others = [e for e in entries if e["set"] == claim.other_set and not BY_NAME[e["peer"]].own]
    if claim.against == "antialiased":
        others = [e for e in others if e["filters"] != "none"]
    elif claim.against != "all":
        others = [e for e in others if e["peer"] == claim.against]
    other = _best(others)
    row: dict[str, Any] = {"name": claim.name, "wanted": claim.wanted}
    if own is None or other is None:
        return {**row, "verdict": "not a result", "why": "wellfed or its peer did not run on these images"}
    row |= {"own": _name(own), "other": _name(other), "ratio": ratio(rates(own), rates(other))}
    if missing:
        return {**row, "verdict": "not a result", "why": f"absent: {', '.join(missing)}"}
    return {**row, "verdict": "reached" if row["ratio"]["median"] >= claim.wanted else "missed"}


def _name(entry: Entry) -> str:
    setting = f"{entry['decoder'] + ', ' if entry['decoder'] else ''}{entry['workers']} workers"
    return f"{entry['peer']} ({setting})"


def _limits(entries: Sequence[Entry], growth: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What wellfed alone must keep; of the backend that loaded the original files fastest."""
    limits = []
    measured = [e for e in entries if BY_NAME[e["peer"]].own and "peak_bytes" in e]
    own = _best(measured)
    if own is not None:
        first = statistics.median(value["first_batch_seconds"] for value in own["values"])
        limits.append(_limit("seconds from import to the first batch", _name(own), first, FIRST_BATCH_SECONDS))
        peak = own["peak_bytes"]["Pss"]
        limits.append(_limit("peak PSS of the process tree, bytes", _name(own), peak, PEAK_PSS_BYTES))
    if growth is not None:
        mine = growth["wellfed"]
        limits.append(
            {
                "name": f"growth after 100 batches, MB an epoch, {growth['samples']:,} samples, 8 workers",
                "of": "wellfed processes",
                "value": mine["megabytes_per_epoch"],
                "low": mine["low"],
                "high": mine["high"],
                "wanted": WANTED,
                "verdict": flat(mine),
            }
        )
    return limits


def _limit(name: str, of: str, value: float, most: float) -> dict[str, Any]:
    verdict = "reached" if value <= most else "missed"
    return {"name": name, "of": of, "value": value, "wanted": f"at most {most:g}", "verdict": verdict}


def tables(document: Mapping[str, Any]) -> str:
    """Markdown: the claims, the limits, everyone measured, and who was absent and why."""
    lines = ["| claim | wellfed | against | ratio (95% interval) | wanted | |", "|---|---|---|---|---|---|"]
    for row in document["summary"]["claims"]:
        numbers = row.get("ratio")
        found = f"{numbers['median']:.2f} ({numbers['low']:.2f} to {numbers['high']:.2f})" if numbers else ""
        verdict = row["verdict"] + (f": {row['why']}" if "why" in row else "")
        cells = [row["name"], row.get("own", ""), row.get("other", ""), found, f"{row['wanted']:g}", verdict]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| limit | of | measured | wanted | |", "|---|---|---|---|---|"]
    for row in document["summary"]["limits"]:
        lines.append(f"| {row['name']} | {row['of']} | {row['value']:,g} | {row['wanted']} | {row['verdict']} |")
    lines += [
        "",
        "| images | loader | filter | img/s (lowest..highest) | CPU s / 1,000 | first batch s | peak PSS MB "
        "| off Pillow (worst image) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ordered = sorted(document["entries"], key=lambda e: (e["set"], -statistics.median(rates(e))))
    lines += [_line(entry) for entry in ordered]
    lines += [f"\nabsent: {name}: {why.splitlines()[-1]}" for name, why in document["absent"].items()]
    return "\n".join(lines)


def _line(entry: Entry) -> str:
    found, values = rates(entry), entry["values"]
    cpu = statistics.median(value["cpu_seconds"] / value["images"] * 1000 for value in values)
    first = statistics.median(value["first_batch_seconds"] for value in values)
    pixels = entry.get("pixels", {})
    off = "" if pixels.get("mean") is None else f"{pixels['mean']:.2f} ({pixels['worst']:.1f})"
    peak = f"{entry['peak_bytes']['Pss'] / 1e6:,.0f}" if "peak_bytes" in entry else ""
    cells = [
        entry["set"],
        _name(entry),
        entry["filters"],
        f"{statistics.median(found):,.0f} ({min(found):,.0f}..{max(found):,.0f})",
        f"{cpu:.2f}",
        f"{first:.2f}",
        peak,
        off,
    ]
    return "| " + " | ".join(cells) + " |"
