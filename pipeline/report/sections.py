"""The sections a reader checks rather than reads: what the machine is, with which versions, how to do it again."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from . import words
from .markup import Cell, note, section, table

__all__ = ["environment", "fact_value", "plain", "preflight", "reproduce"]


def plain(value: Any) -> str:
    """Any JSON value as short text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (Mapping, list, tuple)) and not value:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(item) for item in value)
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return words.count(int(value))
    if isinstance(value, float):
        return words.number(value)
    return str(value)


def fact_value(fact: Mapping[str, Any]) -> str:
    """A preflight fact's value with its unit, or why there is none."""
    value, unit = fact["value"], fact.get("unit") or ""
    if value is None:
        return words.not_measured(fact.get("note"))
    if unit in ("B", "bytes") and isinstance(value, (int, float)) and not isinstance(value, bool):
        return words.bytes_text(value)
    return f"{plain(value)} {unit}".strip()


def preflight(report: Mapping[str, Any]) -> str:
    """Facts of the machine with where each comes from."""
    if not report["preflight"]:
        return ""
    rows: list[list[Cell]] = [
        [fact["name"], fact_value(fact), fact["source"], (fact.get("note") or "") if fact["value"] is not None else ""]
        for fact in report["preflight"]
    ]
    return section(
        "Preflight",
        note("Facts read before measuring.") + table(("Fact", "Value", "Source", "Note"), rows),
        "preflight",
    )


def _facts(entries: Mapping[str, Any]) -> str:
    pairs = "".join(
        f"<dt>{escape(str(name).replace('_', ' '))}</dt><dd>{escape(plain(value))}</dd>"
        for name, value in entries.items()
    )
    return f'<dl class="facts">{pairs}</dl>'


def environment(report: Mapping[str, Any]) -> str:
    """Dataset, device, machine, versions and where the time went."""
    data = report["dataset"]
    repeated = data["repeated_times"]
    dataset = {
        "name": data["name"],
        "kind": data["kind"],
        "samples": words.count(data["samples"]),
        "classes": words.count(data["classes"]),
        "mean size": words.bytes_text(data.get("mean_bytes"), "the source does not say"),
        "repeated": "no"
        if repeated <= 1
        else f"{repeated} times by index, so that an epoch is long enough to measure; the DataLoader never repeats",
        "fingerprint": data["fingerprint"],
    }
    device = {
        "name": report["device"]["name"],
        "kind": report["device"]["kind"],
        "simulated": report["device"]["simulated"],
        "memory": words.bytes_text(report["device"]["memory_total_bytes"], "the device does not say"),
        **(report["device"].get("description") or {}),
    }
    took = {name: words.seconds(value) for name, value in report["seconds"].items()}
    return section(
        "Environment",
        f"<h3>Dataset</h3>{_facts(dataset)}<h3>Device</h3>{_facts(device)}<h3>Machine</h3>{_facts(report['machine'])}"
        f"<h3>Versions</h3>{_facts(report['versions'])}<h3>Time spent</h3>{_facts(took)}",
        "environment",
    )


def reproduce(report: Mapping[str, Any]) -> str:
    """The command line."""
    return section(
        "Do it again",
        f"<pre><code>{escape(words.reproduce_command(report))}</code></pre>"
        + note(
            "The order of samples and their crops follow from the seed; rates vary with the machine, which is why "
            "rounds are interleaved and intervals given."
        ),
        "again",
    )
