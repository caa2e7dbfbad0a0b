"""What the model said against what was measured, and where each second goes: the same rows for HTML and Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from . import facts, words
from .markup import Cell, figure, note, section, table
from .svg import Axis, Row, row_chart

__all__ = [
    "PREDICTION_HEADS",
    "READING_HEADS",
    "STAGE_HEADS",
    "differential",
    "prediction_rows",
    "predictions",
    "reading_rows",
    "stage_rows",
]

PREDICTION_HEADS = (
    "Settings",
    "Predicted limit",
    "#Samples/s predicted",
    "#Measured",
    "#Error",
    "#Utilization predicted",
    "#Measured",
    "#Error",
    "#Device memory predicted",
    "#Measured",
    "#Error",
    "#Host memory predicted",
)
STAGE_HEADS = ("Stage", "#Samples/s", "#Time a sample", "#Added by this part", "#Waiting for data")
READING_HEADS = ("Reading, one thread", "From", "#Samples/s")

_STAGES = {
    "step": ("Step only", "on batches that lie on the device"),
    "bytes": ("Step and cached bytes", "adds decoding and the copy to the device"),
    "files": ("Step and cached files", "adds reading files from the page cache"),
    "storage": ("All", "adds waiting for the storage: pages were forgotten before each read"),
}
_CACHES = {"warm": "page cache", "cold": "storage"}


def _error(predicted: float | None, measured: float | None) -> str:
    if predicted is None or not measured:
        return ""
    return f"{100 * (predicted / measured - 1):+.1f}%"


def prediction_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """One row for each trial; empty where the report holds no predictions."""
    if not any("predicted" in trial for trial in report["trials"]):
        return []
    rows = []
    for trial in report["trials"]:
        made, middle = trial.get("predicted") or {}, trial["median"]
        row = [trial["label"], str(made.get("limit") or "no prediction")]
        for predicted, measured, write in (
            ("samples_per_second", "samples_per_second", words.rate),
            ("util_percent", "util_percent", words.percent),
            ("device_bytes", "peak_bytes", words.bytes_text),
        ):
            said, seen = made.get(predicted), middle.get(measured)
            reason = "no prediction" if not made else "its parts were not measured"
            row += [
                write(said, reason) if said is not None else f"none: {reason}",
                write(seen, facts.trial_reason(trial, measured)),
                _error(said, seen),
            ]
        host = made.get("host_bytes")
        rows.append([*row, "" if host is None else words.bytes_text(host)])
    return rows


def stage_rows(report: Mapping[str, Any]) -> list[tuple[tuple[str, str], list[str]]]:
    """Of the differential: each stage's name with its meaning, and its figures."""
    held = report.get("differential")
    rows = []
    for row in () if held is None else held["rows"]:
        seconds, added = row["seconds_per_sample"], row["added_seconds_per_sample"]
        figures = [
            words.rate(row["samples_per_second"], row["reason"]),
            "" if seconds is None else f"{1e6 * seconds:,.0f} us",
            "" if added is None else f"{1e6 * added:+,.0f} us",
            "" if row["wait_share"] is None else words.share(row["wait_share"]),
        ]
        rows.append((_STAGES.get(row["stage"], (row["stage"], "")), figures))
    return rows


def reading_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Reading in one thread, by order and by where from."""
    return [
        [
            "in sequence" if entry["order"] == "sequential" else "at random",
            _CACHES.get(entry["cache"], entry["cache"]),
            words.rate(entry["samples_per_second"], entry.get("reason")),
        ]
        for entry in (report.get("parts") or {}).get("reading") or []
    ]


def predictions(report: Mapping[str, Any]) -> str:
    """HTML of predicted against measured; nothing where there are no predictions."""
    found = prediction_rows(report)
    if not found:
        return ""
    own = facts.subject(report)
    rows: list[list[Cell]] = [[*row] for row in found]
    return section(
        "Predicted and measured",
        note(
            "The model predicts each setting from rates of the parts, before it is run. An error is of the prediction "
            "over the median of the rounds. The limit is the part that is predicted to set the pace."
        )
        + table(PREDICTION_HEADS, rows, chosen=[trial is own for trial in report["trials"]]),
        "predicted",
    )


def differential(report: Mapping[str, Any]) -> str:
    """HTML of where each second goes; nothing where that was not measured."""
    stages, reading = stage_rows(report), reading_rows(report)
    body = ""
    if stages:
        held = report["differential"]
        bars = [
            Row(label=name, figure=figures[0], bar=row["samples_per_second"], tone="ceiling" if not place else "loader")
            for place, ((name, _), figures, row) in enumerate(
                (name, figures, row) for (name, figures), row in zip(stages, held["rows"], strict=True)
            )
        ]
        chart = row_chart(
            "stages",
            bars,
            Axis.holding([bar.bar for bar in bars if bar.bar is not None], unit="/s"),
            title="Samples a second with one more part of the pipeline each",
            description="Step only, then fed from memory, from files in the page cache, and from the storage.",
        )
        settings = escape(words.settings_text(held["settings"]))
        cells: list[list[Cell]] = [[name, *figures] for name, figures in stages]
        body += (
            f"<p>The chosen settings ({settings}) with one more part of the pipeline each.</p>"
            + note(
                "What a part adds is what the step cannot hide. The samples are the same in all of them: at most "
                "128 MiB from the start of the set."
            )
            + figure("Where each second goes", chart, "", table(STAGE_HEADS, cells))
        )
    if reading:
        body += table(READING_HEADS, [[*row] for row in reading])
    return section("Where each second goes", body, "stages") if body else ""
