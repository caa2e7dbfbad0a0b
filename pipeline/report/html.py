"""A report as one HTML page: self-contained, readable offline, on a phone, on paper and without seeing the charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from . import charts, facts, parts, sections, words
from .every_rank import every_rank
from .markup import Cell, figure, note, page, section, table
from .schema import validate_report
from .svg import bullet

__all__ = ["render_html"]


def render_html(report: Mapping[str, Any]) -> str:
    """The page, drawn from the report's JSON alone; every text is escaped.

    Raises:
        ConfigError, SchemaVersionError: see `validate_report`.
    """
    validate_report(report)
    name = report["verdict"]["name"]
    title = f"{words.verdict_title(name)}: {report['request'].get('step', '')} on {report['dataset']['name']}"
    if report["device"]["simulated"]:
        title = f"Simulated: {title}"
    body = [_banner(report), _header(report), "<main>"]
    body += [
        _before_after(report),
        _use(report),
        _advice(report),
        _binding(report),
        parts.differential(report),
        _trials(report),
        parts.predictions(report),
        _memory(report),
        _hold(report),
        every_rank(report),
        _comparisons(report),
        sections.preflight(report),
        sections.environment(report),
        sections.reproduce(report),
    ]
    body += ["</main>", _footer(report)]
    return page(title, body)


def _banner(report: Mapping[str, Any]) -> str:
    text = facts.simulated_banner(report)
    if text is None:
        return ""
    head, _, rest = text.partition(":")
    return f'<div class="sim" role="note"><p><strong>{escape(head)}:</strong>{escape(rest)}</p></div>'


def _header(report: Mapping[str, Any]) -> str:
    name = report["verdict"]["name"]
    tone = "passed" if name == "passed" else "missed"
    created = report["created"].replace("T", " ").replace("+00:00", " UTC").replace("Z", " UTC")
    return (
        f'<header><p class="kicker"><b>wellfed {escape(report["kind"])}</b> · '
        f"{escape(str(report['request'].get('step', '')))} on {escape(report['dataset']['name'])} · "
        f"{escape(words.device_label(report))} · {escape(created)}</p>"
        f'<h1 class="{tone}">{escape(words.verdict_title(name))}</h1>'
        f'<p class="summary">{escape(report["verdict"]["summary"])}</p>'
        f'<dl class="tiles">{"".join(map(_tile, range(9), facts.headlines(report)))}</dl></header>'
    )


def _tile(position: int, headline: facts.Headline) -> str:
    judged = ""
    if headline.met is not None:
        judged = f' <span class="{"met" if headline.met else "miss"}">{"met" if headline.met else "missed"}</span>'
    absent = " none" if headline.text.startswith("not measured") else ""
    gauge = ""
    if headline.goal is not None:
        gauge = bullet(
            f"tile{position}",
            headline.value,
            headline.goal,
            title=f"{headline.name}: {headline.text}, {headline.target}",
            good=headline.met is not False,
        )
    return (
        f'<div class="tile"><dt>{escape(headline.name)}</dt><dd><span class="value{absent}">{escape(headline.text)}'
        f'</span>{gauge}<span class="detail">{escape(headline.target)}{judged}</span>'
        f'<span class="detail">{escape(headline.detail)}</span></dd></div>'
    )


def _before_after(report: Mapping[str, Any]) -> str:
    stock, own = facts.stock_trial(report), facts.subject(report)
    current = next((trial for trial in report["trials"] if trial["role"] == "current"), None)
    shown: list[Mapping[str, Any]] = []
    for trial in (stock, current, own):
        if trial is not None and trial not in shown:
            shown.append(trial)
    if not shown:
        return section("Before and after", note("No settings could be run against the step."), "before")
    gain = facts.speedup(report)
    if gain is None:
        lead = note("There is no stock torch run in this report to compare with.")
    else:
        interval = "" if gain[1] is None else f", 95% interval {gain[1]:.2f} to {gain[2]:.2f} over paired rounds"
        lead = (
            f"<p><strong>{gain[0]:.2f} times</strong> the samples a second of stock torch{escape(interval)}. "
            "Stock torch is <code>torch.utils.data.DataLoader</code> without workers, Pillow and transforms v2, on the "
            "same step, data and machine, in turn with the others.</p>"
        )
    rows = [_figures(report, trial) for trial in shown]
    return section(
        "Before and after",
        lead
        + figure(
            "Samples a second",
            charts.before_after(report, shown),
            "Bars are medians over the rounds; the thin line on a bar spans all of them. Waiting is the share of the "
            "time in which the step waits for data.",
            table(_FIGURE_HEADS, rows, chosen=[trial is own for trial in shown]),
        ),
        "before",
    )


_FIGURE_HEADS = ("Settings", "#Samples/s", "#Fed ratio", "#Waiting", "#GPU util", "#Peak memory")


def _figures(report: Mapping[str, Any], trial: Mapping[str, Any]) -> list[Cell]:
    middle = trial["median"]

    def reason(name: str) -> str | None:
        return facts.trial_reason(trial, name)

    settings = trial["settings"] or {}
    # The tuner's own labels already say the settings.
    said = not settings or f"batch {settings.get('batch_size')}" in trial["label"]
    return [
        (trial["label"], "" if said else words.settings_text(settings)),
        words.rate(middle.get("samples_per_second"), reason("samples_per_second")),
        words.ratio(middle.get("fed_ratio"), reason("fed_ratio")),
        words.share(middle.get("wait_share"), reason("wait_share")),
        words.percent(middle.get("util_percent"), reason("util_percent")),
        words.bytes_text(middle.get("peak_bytes"), reason("peak_bytes")),
    ]


def _use(report: Mapping[str, Any]) -> str:
    if report["tuned"] is None:
        return ""
    lines = "\n".join(words.python_lines(report))
    settings = words.settings_text(report["tuned"].get("settings"))
    return section(
        "Use it",
        f"<p>The tuned config holds: {escape(settings)}. These three lines use it:</p>"
        f"<pre><code>{escape(lines)}</code></pre>"
        + note(
            "Images arrive as uint8 NCHW in channels-last memory, labels as int64"
            + ("" if report["device"]["simulated"] else ", both on the device")
            + ". The config is checked against machine and dataset when it is loaded."
        ),
        "use",
    )


def _advice(report: Mapping[str, Any]) -> str:
    advice: Sequence[str] = report["verdict"]["advice"]
    if not advice:
        return ""
    items = "".join(f"<li>{escape(str(line))}</li>" for line in advice)
    code = "\n".join(words.batch_lines(report))
    paste = "" if not code else f"{note('In the training loop, if you take it:')}<pre><code>{escape(code)}</code></pre>"
    return section("What to do next", f'<ul class="advice">{items}</ul>{paste}', "advice")


def _legend(entries: Iterable[tuple[str, str, str]]) -> str:
    items = "".join(f'<li class="{tone}"><i class="{shape}"></i>{escape(text)}</li>' for tone, shape, text in entries)
    return f'<ul class="legend" aria-hidden="true">{items}</ul>'


def _binding(report: Mapping[str, Any]) -> str:
    if not report["ceilings"] and not report["loader_rates"]:
        return ""
    binds = report["verdict"].get("binds")
    lead = f"<p>What binds: <strong>{escape(str(binds))}</strong>.</p>" if binds else ""
    rows: list[list[Cell]] = []
    every = [round_ for trial in report["trials"] for round_ in trial["rounds"]]
    no_util, no_memory = words.reason_of(every, "util_reason"), words.reason_of(every, "memory_reason")
    for entry in report["ceilings"]:
        util = [value for value in entry.get("util_percent") or [] if value is not None]
        reason = entry.get("util_reason") or no_util
        rows.append(
            [
                "Step on cached batches",
                str(entry["batch_size"]),
                _raw(entry["samples_per_second"]),
                words.percent(sum(util) / len(util) if util else None, reason),
                words.bytes_text(entry.get("peak_bytes"), entry.get("memory_reason") or no_memory),
            ]
        )
    for entry in report["loader_rates"]:
        workers = entry["num_workers"]
        label = f"{entry['backend']}, {workers} worker{'' if workers == 1 else 's'}"
        rows.append(
            [("Loader alone", label), str(entry["batch_size"]), _raw(entry["samples_per_second"]), "no step ran", ""]
        )
    measured = report.get("parts") or {}
    for name, key in (("Reading, one thread", "read"), ("Copy to the device", "copy")):
        if (speed := measured.get(f"{key}_samples_per_second")) is not None:
            rows.append([name, "", words.number(speed), "no step ran", ""])
    return section(
        "What binds",
        lead
        + note(
            "The ceiling is the same step on batches that are already on the device. A loader slower than the needed "
            "rate starves the step whatever its settings."
        )
        + figure(
            "The step's ceiling against the loader alone",
            _legend([("ceiling", "", "step on cached batches"), ("loader", "", "loader alone")])
            + charts.binding(report),
            "Bars are medians; dots are the single rounds.",
            table(("Part", "#Batch", "#Samples/s, each round", "#GPU utilization", "#Peak memory"), rows),
        ),
        "binds",
    )


def _raw(values: Sequence[float | None]) -> str:
    return ", ".join("none" if value is None else words.number(value) for value in values) or "no round ended"


def _trials(report: Mapping[str, Any]) -> str:
    if not report["trials"]:
        return ""
    own = facts.subject(report)
    rows = []
    for trial in report["trials"]:
        predicted, rates = trial.get("predicted_samples_per_second"), trial["median"].get("samples_per_second")
        cells = _figures(report, trial)
        if trial.get("left"):
            cells[0] = (cells[0][0], "; ".join(text for text in (cells[0][1], str(trial["left"])) if text))
        off = "" if predicted is None or not rates else f"{100 * (predicted / rates - 1):+.0f}% off"
        cells.insert(1, "none made" if predicted is None else (words.rate(predicted), off))
        cells[2] = (str(cells[2]), words.plural(len(trial["rounds"]), "round"))
        rows.append(cells)
    heads = ("Settings", "#Predicted", "#Measured", *_FIGURE_HEADS[2:])
    return section(
        "Trials",
        note(
            "Settings were run against the step in turn, round by round, so that what changes on the machine meets all "
            "of them alike."
        )
        + figure(
            "All rounds of all trials, samples a second",
            _legend(
                [
                    ("chosen", "round", "chosen"),
                    ("candidate", "round", "candidate"),
                    ("current", "round", "your present settings"),
                    ("stock", "round", "stock torch"),
                    ("plain", "turned", "predicted"),
                ]
            )
            + charts.trials(report),
            "A dot is one round; a diamond is what the model predicted before running it.",
            table(heads, rows, chosen=[trial is own for trial in report["trials"]]),
        ),
        "trials",
    )


def _memory(report: Mapping[str, Any]) -> str:
    memory = report["memory"]
    if memory is None:
        return ""
    fit, cap = memory["fit"], facts.cap_bytes(report)
    parts = []
    if cap is not None:
        parts.append(f"The cap is {words.bytes_text(cap)}, {100 * memory['cap_share']:.0f}% of the device.")
    if fit is not None:
        parts.append(
            f"The line through the probes: {words.bytes_text(fit['intercept_bytes'])} and "
            f"{words.bytes_text(fit['bytes_per_sample'])} a sample."
        )
    if memory["largest_batch_size"] is not None:
        parts.append(f"Largest batch size measured under the cap: {memory['largest_batch_size']}.")
    rows: list[list[Cell]] = [
        [
            str(probe["batch_size"]),
            "ran out of memory"
            if probe["out_of_memory"]
            else words.bytes_text(probe["peak_bytes"], probe.get("error")),
            ""
            if cap is None or probe["peak_bytes"] is None
            else ("under" if probe["peak_bytes"] < cap else "over") + f" by {_gap(cap, probe['peak_bytes'])}",
        ]
        for probe in memory["probes"]
    ]
    chart = charts.memory(report) if any(probe["peak_bytes"] is not None for probe in memory["probes"]) else ""
    return section(
        "Memory",
        f"<p>{escape(' '.join(parts))}</p>"
        + figure(
            "Peak device memory at each batch size",
            chart,
            "Each probe ran in a process of its own. The dashed line is the fit; a cross ran out of memory.",
            table(("Batch size", "#Peak memory", "#Against the cap"), rows),
        ),
        "memory",
    )


def _gap(cap: float, peak: float) -> str:
    return words.bytes_text(abs(cap - peak))


def _hold(report: Mapping[str, Any]) -> str:
    hold = report["hold"]
    if hold is None:
        if report["kind"] == "bench":
            return ""
        return section("The hold", note("not measured: no settings reached the hold"), "hold")
    crossed = hold["epochs_crossed"]
    text = (
        f"The chosen settings ran alone for {words.seconds(hold['seconds'])} and crossed {crossed} epoch "
        f"boundar{'y' if crossed == 1 else 'ies'}."
    )
    host = hold.get("host_memory") or {}
    if host.get("slope_bytes_per_second") is not None:
        text += (
            f" Host memory changed by {host['slope_bytes_per_second'] / 1e6:+.3f} MB a second "
            f"(95% interval {host['low'] / 1e6:+.3f} to {host['high'] / 1e6:+.3f})."
        )
    else:
        text += f" Growth of host memory: {words.not_measured(host.get('reason') or 'too few windows')}."
    workers = hold.get("worker_memory") or {}
    if workers.get("slope_bytes_per_second") is not None:
        text += (
            f" Of it that of the {workers['processes']} worker processes: "
            f"{workers['slope_bytes_per_second'] / 1e6:+.3f} MB a second ({workers['low'] / 1e6:+.3f} to "
            f"{workers['high'] / 1e6:+.3f})."
        )
    windows = facts.hold_rows(report)
    digits = 0 if all(row["end"] - row["start"] >= 1 for row in windows) else 1
    rows: list[list[Cell]] = [
        [
            f"{row['start']:.{digits}f} to {row['end']:.{digits}f} s",
            words.rate(row["samples_per_second"], "window of no length"),
            words.percent(row["util_percent"], row["util_reason"]),
            words.share(row["wait_share"], "no step ended"),
        ]
        for row in windows
    ]
    times = table(("Time", "#Samples/s", "#GPU utilization", "#Waiting for data"), rows)
    utilization = charts.hold_utilization(report)
    reason = words.reason_of([hold, *hold["windows"]], "util_reason")
    return section(
        "The hold",
        f"<p>{escape(text)}</p>"
        + (
            figure("GPU utilization over the hold", utilization, "", "")
            if utilization
            else note(f"GPU utilization: {words.not_measured(reason)}")
        )
        + figure("Samples a second over the hold", charts.hold_rate(report), "", times),
        "hold",
    )


def _comparisons(report: Mapping[str, Any]) -> str:
    if not report["comparisons"]:
        return ""
    labels = {trial["id"]: trial["label"] for trial in report["trials"]}
    rows: list[list[Cell]] = [
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
    return section(
        "Comparisons",
        note(
            "Ratios of samples a second, paired by round. Better or worse is said only where the 95% interval leaves "
            "out 1."
        )
        + figure(
            "Ratios with their 95% intervals",
            charts.comparisons(report),
            "",
            table(("Settings", "Against", "#Ratio", "#95% interval", "#Rounds", "Conclusion"), rows),
        ),
        "comparisons",
    )


def _footer(report: Mapping[str, Any]) -> str:
    return (
        f"<footer>wellfed {escape(report['tool_version'])}. Every figure on this page is in <code>report.json</code> "
        f"beside it (schema {escape(report['schema'])} {report['schema_version']}), with the raw samples behind it."
        "</footer>"
    )
