"""The report of several ranks: one line a rank, stragglers, and where scaling is lost; as HTML and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from . import rank_facts as facts
from . import words
from .markdown import markdown_cell, markdown_table
from .markup import Cell, figure, note, page, section, table
from .svg import Axis, Row, row_chart
from .write import write_pages

__all__ = ["render_ranks_html", "render_ranks_markdown", "write_ranks_report"]


def render_ranks_html(report: Mapping[str, Any]) -> str:
    """The page, drawn from the report's JSON alone; every text is escaped.

    Raises:
        ConfigError, SchemaVersionError: see `validate_ranks`.
    """
    facts.validate_ranks(report)
    banner = facts.banner(report)
    body = [
        "" if banner is None else f'<div class="sim" role="note"><p><strong>{escape(banner)}</strong></p></div>',
        _header(report),
        "<main>",
        _ranks(report),
        _stragglers(report),
        _scaling(report),
        "</main>",
        f"<footer>wellfed {escape(report['tool_version'])}. Raw samples of every window are in the JSON.</footer>",
    ]
    return page(f"{words.plural(report['world_size'], 'rank')}: {facts.heading(report)[0]}", body)


def _header(report: Mapping[str, Any]) -> str:
    found, (title, good) = report["scaling"], facts.heading(report)
    created = report["created"].replace("T", " ").replace("+00:00", " UTC")
    machines = words.plural(report["machines"], "machine")
    tiles = [
        ("Samples a second", words.rate(found["fed"], facts.NOT_RUN), "all ranks together, with their loaders"),
        (
            "Scaling efficiency",
            words.share(found["efficiency"], found["reason"]),
            f"of {report['world_size']} x one GPU",
        ),
        (
            "Left by communication",
            words.share(found["communication"], found["reason"]),
            "ceiling of all over the ideal",
        ),
        ("Left by the loaders", words.share(found["loader"], found["reason"]), "fed over the ceiling of all"),
    ]
    shown = "".join(
        f'<div class="tile"><dt>{escape(head)}</dt><dd>'
        f'<span class="value{" none" if text.startswith("not measured") else ""}">{escape(text)}</span>'
        f'<span class="detail">{escape(detail)}</span></dd></div>'
        for head, text, detail in tiles
    )
    tone = "" if good is None else ' class="passed"' if good else ' class="missed"'
    return (
        f'<header><p class="kicker"><b>wellfed ranks</b> · {words.plural(report["world_size"], "rank")} on '
        f"{machines} · {escape(_devices(report))} · {escape(created)}</p><h1{tone}>{escape(title)}</h1>"
        f'<p class="summary">{escape(facts.scaling_words(report))}</p><dl class="tiles">{shown}</dl></header>'
    )


def _devices(report: Mapping[str, Any]) -> str:
    return ", ".join(dict.fromkeys(rank["device"]["name"] for rank in report["ranks"]))


def _ranks(report: Mapping[str, Any]) -> str:
    late = {one["rank"] for one in report["stragglers"] if one["kind"] == "loading"}
    rows: list[list[Cell]] = [
        [(facts.rank_name(rank, report), rank.get("worker_cores") or ""), *facts.rank_figures(rank)]
        for rank in report["ranks"]
    ]
    trained = [rank for rank in report["ranks"] if rank["fed"] is not None]
    charts = ""
    if trained:
        charts = _chart(report, trained, late, "wait_share", 100.0, "Waiting for data, share of the time")
        if any(rank["fed"]["util_percent"] is not None for rank in trained):
            beside = _chart(report, trained, set(), "util_percent", 1.0, "GPU utilization")
            charts = f'<div class="pair">{charts}{beside}</div>'
    lead = note(
        "All ranks go at the pace of the slowest, so samples a second hardly differ between them; how long each waits "
        "for its own batches does."
    )
    return section("Ranks", lead + charts + table(facts.HEADS, rows), "ranks")


def _chart(
    report: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], late: set[int], name: str, scale: float, title: str
) -> str:
    rows = []
    for rank in ranks:
        value = rank["fed"][name]
        reason = rank["fed"]["util_reason"] if name == "util_percent" else None
        rows.append(
            Row(
                label=facts.rank_name(rank, report),
                figure=words.percent(None if value is None else scale * value, reason),
                bar=None if value is None else scale * value,
                tone="bad" if rank["rank"] in late else "chosen",
            )
        )
    shown = [row.bar for row in rows if row.bar is not None]
    axis = Axis(low=0, high=100, unit="%") if name == "util_percent" else Axis.holding([0.0, 1.0, *shown], unit="%")
    chart = row_chart(name, rows, axis, title=title, description="A bar for each rank.")
    return figure(title, chart, "Red ones straggle in loading." if late else "", "")


def _stragglers(report: Mapping[str, Any]) -> str:
    lines = [*facts.straggler_lines(report), *facts.not_judged(report)]
    rule = note(
        "A rank straggles in loading where it waits longer than the median of the others at the same step, by more "
        "than 5% of a step with 95% confidence; in its step where by itself that takes more than 5% longer than the "
        "median of the others' in every window."
    )
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return section("Stragglers", (f'<ul class="advice">{items}</ul>' if items else "<p>None.</p>") + rule, "stragglers")


def _scaling(report: Mapping[str, Any]) -> str:
    found, world = report["scaling"], report["world_size"]
    rates = [None if found["one"] is None else world * found["one"], found["ceiling"], found["fed"]]
    tones = ("stock", "candidate", "chosen")
    rows = [
        Row(label=label, figure=text, bar=rate, tone=tone)
        for (label, text, _), rate, tone in zip(facts.scaling_rows(report), rates, tones, strict=True)
    ]
    present = [rate for rate in rates if rate is not None]
    chart = ""
    if present:
        chart = figure(
            "Samples a second of all ranks",
            row_chart(
                "scaling",
                rows,
                Axis.holding(present, unit="/s"),
                title="Samples a second of all ranks",
                description="The ideal, the step on cached batches, and training with the loaders.",
            ),
            "",
            "",
        )
    source = note(f"One GPU by itself: {report['one_gpu_source']}.") if found["one"] is not None else ""
    cells: list[list[Cell]] = [list(row) for row in facts.scaling_rows(report)]
    return section(
        "Where scaling is lost",
        chart + table(("What", "#Samples/s", "#Left of the line above"), cells) + source,
        "scaling",
    )


def render_ranks_markdown(report: Mapping[str, Any]) -> str:
    """The page as Markdown; every text from the report is escaped.

    Raises:
        ConfigError, SchemaVersionError: see `validate_ranks`.
    """
    facts.validate_ranks(report)
    banner = facts.banner(report)
    out = [] if banner is None else [f"> **{markdown_cell(banner)}**", ""]
    out += [f"# {facts.heading(report)[0]}", "", markdown_cell(facts.scaling_words(report)), ""]
    out += markdown_table(
        [head.lstrip("#") for head in facts.HEADS],
        [[facts.rank_name(rank, report), *facts.rank_figures(rank)] for rank in report["ranks"]],
    )
    out += [f"- {markdown_cell(line)}" for line in (*facts.straggler_lines(report), *facts.not_judged(report))]
    out += ["", "## Where scaling is lost", ""]
    out += markdown_table(("What", "Samples/s", "Left of the line above"), facts.scaling_rows(report))
    return "\n".join(out).rstrip() + "\n"


def write_ranks_report(report: Mapping[str, Any], directory: str | Path) -> dict[str, Path]:
    """Write ranks.json, ranks.html and ranks.md into `directory`, made where missing.

    Returns:
        The three paths by "json", "html" and "md".

    Raises:
        ConfigError, SchemaVersionError: see `validate_ranks`; nothing is written then.
        ResourceError: the folder cannot be written.
    """
    html, md = render_ranks_html(report), render_ranks_markdown(report)
    return write_pages(report, Path(directory) / "ranks", html=html, md=md)
