"""A report as Markdown: the same figures as the HTML page, for a terminal, an issue or a pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import every_rank, facts, parts, sections, words
from .schema import validate_report

__all__ = ["markdown_cell", "markdown_table", "render_markdown"]


def _cell(text: Any) -> str:
    out = str(text).replace("\\", "\\\\")
    for mark in "`*_[]<>|#":
        out = out.replace(mark, "\\" + mark)
    return " ".join(out.split())


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]


def _code(text: str, language: str = "") -> list[str]:
    fence = "```"
    while fence in text:
        fence += "`"
    return [fence + language, text, fence, ""]


def markdown_cell(text: Any) -> str:
    """A text on one line, with Markdown's marks escaped."""
    return _cell(text)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, and an empty one; cells are escaped."""
    return _table(heads, rows)


def render_markdown(report: Mapping[str, Any]) -> str:
    """The page as Markdown; every text from the report is escaped.

    Raises:
        ConfigError, SchemaVersionError: see `validate_report`.
    """
    validate_report(report)
    out: list[str] = []
    banner = facts.simulated_banner(report)
    if banner is not None:
        head, _, rest = banner.partition(":")
        out += [f"> **{head}:**{_cell(' ' + rest) if not rest.startswith(' ') else ' ' + _cell(rest)}", ""]
    verdict = report["verdict"]
    out += [f"# {words.verdict_title(verdict['name'])}", "", _cell(verdict["summary"]), ""]
    rows = [
        [line.name, line.text, line.target, "" if line.met is None else "met" if line.met else "missed", line.detail]
        for line in facts.headlines(report)
    ]
    out += _table(("Figure", "Value", "Target", "", "Detail"), rows)
    out += _trials(report)
    if report["tuned"] is not None:
        out += ["## Use it", "", *_code("\n".join(words.python_lines(report)), "python")]
    if verdict["advice"]:
        out += ["## What to do next", "", *[f"- {_cell(line)}" for line in verdict["advice"]], ""]
    if code := words.batch_lines(report):
        out += ["In the training loop, if you take the advice:", "", *_code("\n".join(code), "python")]
    out += _rates(report) + _parts(report) + _memory(report) + _ranks(report) + _comparisons(report)
    if report["preflight"]:
        rows = [[fact["name"], sections.fact_value(fact), fact["source"]] for fact in report["preflight"]]
        out += ["## Preflight", "", *_table(("Fact", "Value", "Source"), rows)]
    out += ["## Do it again", "", *_code(words.reproduce_command(report), "sh")]
    out += [f"wellfed {_cell(report['tool_version'])}. Every figure is in `report.json` beside this page."]
    return "\n".join(out) + "\n"


def _trials(report: Mapping[str, Any]) -> list[str]:
    if not report["trials"]:
        return []
    rows = []
    for trial in report["trials"]:
        middle, predicted = trial["median"], trial.get("predicted_samples_per_second")
        rows.append(
            [
                trial["label"] + (" (chosen)" if trial["id"] == report["chosen"] else ""),
                "none made" if predicted is None else words.rate(predicted),
                words.rate(middle.get("samples_per_second"), facts.trial_reason(trial, "samples_per_second")),
                words.ratio(middle.get("fed_ratio"), facts.trial_reason(trial, "fed_ratio")),
                words.share(middle.get("wait_share"), facts.trial_reason(trial, "wait_share")),
                words.percent(middle.get("util_percent"), facts.trial_reason(trial, "util_percent")),
                words.bytes_text(middle.get("peak_bytes"), facts.trial_reason(trial, "peak_bytes")),
            ]
        )
    heads = ("Settings", "Predicted", "Measured", "Fed ratio", "Waiting", "Utilization", "Peak memory")
    gain = facts.speedup(report)
    lead = [] if gain is None else [f"{gain[0]:.2f} times the samples a second of stock torch."]
    if gain is not None and gain[1] is not None:
        lead = [f"{lead[0][:-1]} (95% interval {gain[1]:.2f} to {gain[2]:.2f})."]
    return ["## Trials", "", *lead, *([""] if lead else []), *_table(heads, rows)]


def _rates(report: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            f"step on cached batches, batch {entry['batch_size']}",
            ", ".join(map(words.number, entry["samples_per_second"])),
        ]
        for entry in report["ceilings"]
    ] + [
        [
            f"loader alone, {entry['backend']}, workers {entry['num_workers']}, batch {entry['batch_size']}",
            ", ".join(map(words.number, entry["samples_per_second"])),
        ]
        for entry in report["loader_rates"]
    ]
    if not rows:
        return []
    binds = report["verdict"].get("binds")
    lead = [f"What binds: {_cell(binds)}.", ""] if binds else []
    return ["## What binds", "", *lead, *_table(("Part", "Samples/s, each round"), rows)]


def _parts(report: Mapping[str, Any]) -> list[str]:
    out: list[str] = []
    stages = [[f"{name}: {meaning}", *figures] for (name, meaning), figures in parts.stage_rows(report)]
    reading, predictions = parts.reading_rows(report), parts.prediction_rows(report)
    if stages or reading:
        out += ["## Where each second goes", ""]
    for heads, rows in ((parts.STAGE_HEADS, stages), (parts.READING_HEADS, reading)):
        out += _table(_plain(heads), rows) if rows else []
    if predictions:
        out += ["## Predicted and measured", "", *_table(_plain(parts.PREDICTION_HEADS), predictions)]
    return out


def _plain(heads: Sequence[str]) -> list[str]:
    return [head.lstrip("#") for head in heads]


def _memory(report: Mapping[str, Any]) -> list[str]:
    memory = report["memory"]
    if memory is None:
        return []
    rows = [
        [
            str(probe["batch_size"]),
            "ran out of memory"
            if probe["out_of_memory"]
            else words.bytes_text(probe["peak_bytes"], probe.get("error")),
        ]
        for probe in memory["probes"]
    ]
    cap = words.bytes_text(facts.cap_bytes(report), "the device does not say its memory")
    return ["## Memory", "", f"Cap: {_cell(cap)}.", "", *_table(("Batch size", "Peak memory"), rows)]


def _ranks(report: Mapping[str, Any]) -> list[str]:
    rows = every_rank.rank_rows(report)
    if not rows:
        return []
    heads = _plain(every_rank.RANK_HEADS)
    return ["## Every rank", "", _cell(every_rank.rank_words(report)), "", *_table(heads, rows)]


def _comparisons(report: Mapping[str, Any]) -> list[str]:
    if not report["comparisons"]:
        return []
    labels = {trial["id"]: trial["label"] for trial in report["trials"]}
    rows = [
        [
            labels[c["a"]],
            labels[c["b"]],
            f"{c['ratio']:.3f}",
            f"{c['low']:.3f} to {c['high']:.3f}" if facts.decided(c) else "too few rounds",
            str(c["rounds"]),
            facts.conclusion(c),
        ]
        for c in report["comparisons"]
    ]
    heads = ("Settings", "Against", "Ratio", "95% interval", "Rounds", "Conclusion")
    return ["## Comparisons", "", *_table(heads, rows)]
