"""The charts of a report: which figures go into which picture."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from statistics import median
from typing import Any

from . import facts, words
from .svg import Axis, Mark, Row, Series, line_chart, row_chart

__all__ = ["before_after", "binding", "comparisons", "hold_rate", "hold_utilization", "memory", "trials"]

GIB = float(1 << 30)


def _tone(report: Mapping[str, Any], trial: Mapping[str, Any]) -> str:
    own = facts.subject(report)
    if own is not None and trial["id"] == own["id"]:
        return "chosen"
    return str(trial["role"])


def _rates(trial: Mapping[str, Any]) -> list[float]:
    return [round_["samples_per_second"] for round_ in trial["rounds"]]


def _need(report: Mapping[str, Any]) -> list[Mark]:
    ceiling = facts.best_ceiling(report)
    if ceiling is None:
        return []
    target = report["request"].get("fed_target", 0.90)
    return [Mark(value=target * ceiling, label=f"needed: {target:.2f} of the ceiling = {words.rate(target * ceiling)}")]


def before_after(report: Mapping[str, Any], trials: list[Mapping[str, Any]]) -> str:
    """Samples/s of stock torch, the present settings and the chosen ones, with every round and their range."""
    rows = []
    for trial in trials:
        rates, middle = _rates(trial), trial["median"].get("samples_per_second")
        rows.append(
            Row(
                label=trial["label"],
                figure=words.rate(middle, facts.trial_reason(trial, "samples_per_second")),
                bar=middle,
                interval=(min(rates), max(rates)) if len(rates) > 1 else None,
                tone=_tone(report, trial),
            )
        )
    need = _need(report)
    axis = Axis.holding([*[v for t in trials for v in _rates(t)], *[mark.value for mark in need]], unit="/s")
    return row_chart(
        "before-after",
        rows,
        axis,
        title="Samples a second, before and after",
        description="Bars are medians; the line on each spans all rounds. The figures are in the table below.",
        marks=need,
    )


def binding(report: Mapping[str, Any]) -> str:
    """The step on cached batches against the loader alone: the lower of the two binds."""
    rows = []
    for entry in sorted(report["ceilings"], key=lambda entry: entry["batch_size"]):
        rates = entry["samples_per_second"]
        middle = median(rates) if rates else None
        rows.append(
            Row(
                label=f"Step on cached batches, batch {entry['batch_size']}",
                figure=words.rate(middle, entry.get("reason")),
                bar=middle,
                dots=rates,
                tone="ceiling",
            )
        )
    for entry in report["loader_rates"]:
        rates = entry["samples_per_second"]
        middle = median(rates) if rates else None
        workers = entry["num_workers"]
        rows.append(
            Row(
                label=f"Loader alone, {entry['backend']}, {workers} worker{'' if workers == 1 else 's'}",
                figure=words.rate(middle, entry.get("reason")),
                bar=middle,
                dots=rates,
                tone="loader",
            )
        )
    need = _need(report)
    values = [value for row in rows for value in (*row.dots, row.bar or 0.0)]
    return row_chart(
        "binding",
        rows,
        Axis.holding([*values, *[mark.value for mark in need]], unit="/s"),
        title="What the step could take and what the loader could give",
        description="Samples a second of the step on cached batches at each batch size, and of the loader alone.",
        marks=need,
    )


def trials(report: Mapping[str, Any]) -> str:
    """Every round of every trial as a dot, beside the model's prediction."""
    rows = []
    values: list[float] = []
    for trial in report["trials"]:
        rates, predicted = _rates(trial), trial.get("predicted_samples_per_second")
        values += [*rates, *([predicted] if predicted is not None else [])]
        rows.append(
            Row(
                label=trial["label"],
                figure=words.rate(trial["median"].get("samples_per_second"), "no round ended"),
                dots=rates,
                diamond=predicted,
                tone=_tone(report, trial),
            )
        )
    return row_chart(
        "trials",
        rows,
        Axis.holding(values, unit="/s"),
        title="All rounds of all trials",
        description="A dot is one round's samples a second; a diamond is what the model predicted.",
    )


def memory(report: Mapping[str, Any]) -> str:
    """Peak memory over batch size: probes, the line through them, and the cap."""
    facts_ = report["memory"]
    measured = [(p["batch_size"], p["peak_bytes"]) for p in facts_["probes"] if p["peak_bytes"] is not None]
    failed = [p["batch_size"] for p in facts_["probes"] if p["out_of_memory"]]
    sizes = [p["batch_size"] for p in facts_["probes"]] or [1]
    fit, cap = facts_["fit"], facts.cap_bytes(report)
    ceiling = max([peak for _, peak in measured] + ([cap] if cap else []), default=GIB)
    series = []
    if fit is not None and len(sizes) > 1:
        ends = (min(sizes), max(size for size, _ in measured) if measured else max(sizes))
        line = [(x, fit["intercept_bytes"] + fit["bytes_per_sample"] * x) for x in ends]
        series.append(Series(points=line, tone="fit", dots=False, dashed=True))
    names = [f"batch {size}: {words.bytes_text(peak)}" for size, peak in measured]
    series.append(Series(points=measured, tone="chosen", line=False, names=names))
    series.append(Series(points=[(size, ceiling) for size in failed], tone="bad", line=False, crosses=True))
    marks = [] if cap is None else [Mark(value=cap, label=f"cap {words.bytes_text(cap)}", tone="cap")]
    return line_chart(
        "memory",
        series,
        Axis.holding(sizes),
        Axis.holding([0.0, 1.12 * ceiling], unit=" GiB", scale=GIB),
        title="Peak device memory at each batch size",
        description="Dots are probes, each in its own process; crosses ran out of memory; the dashed line is the fit.",
        x_label="batch size",
        marks=marks,
    )


def _boundaries(report: Mapping[str, Any]) -> list[Mark]:
    ends = list(itertools.accumulate(window["wall_seconds"] for window in report["hold"]["windows"]))
    starts = [0.0, *ends]
    crossed = [number for number in report["hold"].get("crossed_in_windows") or () if 0 <= number < len(ends)]
    # One label says what the lines are; more would collide on a phone.
    labels = ["new epoch", *[""] * len(crossed)]
    return [
        Mark(value=(starts[n] + ends[n]) / 2, label=label, tone="epoch")
        for n, label in zip(crossed, labels, strict=False)
    ]


def _hold_axis(report: Mapping[str, Any]) -> Axis:
    total = sum(window["wall_seconds"] for window in report["hold"]["windows"])
    return Axis(low=0.0, high=total or 1.0)


def hold_utilization(report: Mapping[str, Any]) -> str:
    """Utilization over the hold, with its target; empty where it was not measured."""
    rows = [row for row in facts.hold_rows(report, most=120) if row["util_percent"] is not None]
    if not rows:
        return ""
    target = report["request"].get("util_target", 70.0)
    return line_chart(
        "hold-util",
        [Series(points=[((r["start"] + r["end"]) / 2, r["util_percent"]) for r in rows], tone="chosen")],
        _hold_axis(report),
        Axis(low=0, high=100, unit="%"),
        title="GPU utilization over the hold",
        description="One point for each measured window; the figures are in the table below.",
        x_label="seconds",
        marks=[Mark(value=target, label=f"target {target:g}%")],
        verticals=_boundaries(report),
        height=150,
    )


def hold_rate(report: Mapping[str, Any]) -> str:
    """Samples/s over the hold."""
    rows = [row for row in facts.hold_rows(report, most=120) if row["samples_per_second"] is not None]
    if not rows:
        return ""
    points = [((r["start"] + r["end"]) / 2, r["samples_per_second"]) for r in rows]
    need = _need(report)
    return line_chart(
        "hold-rate",
        [Series(points=points, tone="chosen")],
        _hold_axis(report),
        Axis.holding([*[y for _, y in points], *[mark.value for mark in need]], unit="/s"),
        title="Samples a second over the hold",
        description="One point for each measured window; the figures are in the table below.",
        x_label="seconds",
        marks=[Mark(value=mark.value, label=f"needed {words.rate(mark.value)}") for mark in need],
        verticals=_boundaries(report),
        height=150,
    )


def comparisons(report: Mapping[str, Any]) -> str:
    """Paired ratios with their intervals around 1."""
    labels = {trial["id"]: trial["label"] for trial in report["trials"]}
    tones = {"better": "good", "worse": "bad", "no difference": "plain"}
    rows = [
        Row(
            label=facts.comparison_text(comparison, labels),
            figure=f"{comparison['ratio']:.3f} ({comparison['low']:.3f} to {comparison['high']:.3f})"
            if facts.decided(comparison)
            else f"{comparison['ratio']:.3f}",
            point=comparison["ratio"],
            interval=(comparison["low"], comparison["high"]) if facts.decided(comparison) else None,
            tone=tones[comparison["conclusion"]],
        )
        for comparison in report["comparisons"]
    ]
    values = [value for c in report["comparisons"] for value in (c["low"], c["high"])]
    margin = 0.1 * max(abs(value - 1.0) for value in values) or 0.02
    return row_chart(
        "comparisons",
        rows,
        # Room on both sides of 1, where the reader looks.
        Axis.holding([*values, 1.0 - margin, 1.0 + margin], zero=False),
        title="Ratios of samples a second between settings, paired by round",
        description="A point is the ratio, its line the 95% interval; an interval that holds 1 is no difference.",
        marks=[Mark(value=1.0, label="equal", tone="epoch")],
    )
