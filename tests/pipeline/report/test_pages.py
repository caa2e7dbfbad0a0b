"""The HTML and Markdown pages: what they say, that nothing escapes them, and that they need nothing else."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from wellfed.pipeline.errors import ConfigError, ResourceError, SchemaVersionError
from wellfed.pipeline.report import render_html, render_markdown, write_report

VOID = {"meta", "br", "img", "link", "input", "hr"}
HOSTILE = "<script>alert('x')</script>\"&`|*_[x](y)"


class Page(HTMLParser):
    """Collects text and tags, and fails on tags that do not nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "title", "desc"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def each_text(value: Any, change: Any, path: tuple[Any, ...] = ()) -> Any:
    """A copy with every text that is not a name of the schema changed."""
    fixed = {"schema", "kind", "role", "conclusion", "unit", "id", "a", "b", "chosen"}
    if isinstance(value, dict):
        return {key: each_text(item, change, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [each_text(item, change, path) for item in value]
    if isinstance(value, str) and path[-1] not in fixed and path != ("verdict", "name"):
        return change(value)
    return value


def test_the_verdict_and_its_figures_stand_first(report: dict[str, Any]) -> None:
    page = Page(render_html(report))

    assert page.text.index("SIMULATED ACCELERATOR: no GPU was used") < page.text.index("Passed")
    assert page.text.index("97.1%") < page.text.index("Before and after")
    for figure in ("97.1%", "at least 96.4% (95% bound)", "0.978", "2.01 GiB", "cap 5.60 GiB", "586/s"):
        assert figure in page.text
    assert "2.53 times the samples a second of stock torch, 95% interval 2.49 to 2.58" in page.text
    assert report["verdict"]["summary"] in page.text


def test_a_real_device_has_no_banner(report: dict[str, Any]) -> None:
    report["device"].update(simulated=False, kind="cuda", name="NVIDIA H200", preset=None)

    assert "SIMULATED" not in render_html(report)
    assert "SIMULATED" not in render_markdown(report)


def test_the_page_needs_nothing_from_elsewhere_and_is_small(report: dict[str, Any]) -> None:
    page = render_html(report)
    parsed = Page(page)

    assert len(page.encode()) < 150_000
    assert not [tag for tag, _ in parsed.tags if tag in ("script", "link", "img", "iframe", "object", "image", "use")]
    assert not [attrs for _, attrs in parsed.tags if {"src", "href", "xlink:href"} & attrs.keys()]
    assert "url(" not in page
    assert "@import" not in page
    assert set(re.findall(r"https?://[^\"\s<)]+", page)) == {"http://www.w3.org/2000/svg"}


def test_every_chart_is_named_and_ids_are_unique(report: dict[str, Any]) -> None:
    parsed = Page(render_html(report))

    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    charts = [attrs for tag, attrs in parsed.tags if tag == "svg" and attrs.get("role") == "img"]
    assert len(charts) == 10  # three gauges, before and after, binds, trials, memory, two of the hold, comparisons
    for attrs in charts:
        assert set((attrs["aria-labelledby"] or "").split()) <= set(ids)


def test_all_rounds_are_dots(report: dict[str, Any]) -> None:
    page = render_html(report)
    chart = page[page.index('aria-labelledby="trials-t') : page.index("</svg></figure>", page.index('"trials-t'))]

    assert chart.count('class="dot"') == sum(len(trial["rounds"]) for trial in report["trials"]) == 30
    assert chart.count('class="diamond"') == 5


def test_what_was_not_measured_says_why_and_is_never_zero(report: dict[str, Any]) -> None:
    for holder in [*(r for t in report["trials"] for r in t["rounds"]), *(t["median"] for t in report["trials"])]:
        holder["util_percent"] = holder["peak_bytes"] = None
        holder["util_reason"] = "MIG has no counter"
        holder["memory_reason"] = "NVML is absent"
    for window in report["hold"]["windows"]:
        window.update(
            util_percent=None, util_reason="MIG has no counter", peak_bytes=None, memory_reason="NVML is absent"
        )
    report["hold"].update(util_percent=None, util_low=None, peak_bytes=None, host_memory=None)
    for ceiling in report["ceilings"]:
        ceiling.update(util_percent=[None, None, None], peak_bytes=None)
    for probe in report["memory"]["probes"]:
        probe.update(peak_bytes=None, out_of_memory=False, error="the child ended")
    report["memory"]["fit"] = None

    for page in (Page(render_html(report)).text, render_markdown(report)):
        assert "not measured: MIG has no counter" in page
        assert "not measured: NVML is absent" in page
        assert "not measured: the child ended" in page
        assert "no reason recorded" not in page
        assert not re.search(r"(?<![\d.,])0(\.0)?% ", page)
        assert "None" not in page


def test_every_text_is_escaped(report: dict[str, Any]) -> None:
    hostile = each_text(report, lambda text: HOSTILE)
    hostile["tuned"]["settings"]["backend"] = HOSTILE

    page = render_html(hostile)

    parsed = Page(page)
    assert "<script" not in page
    assert "script" not in {tag for tag, _ in parsed.tags}
    assert "<script>alert('x')</script>" in unescape(page)
    outside_code = re.sub(r"```.*?```", "", render_markdown(hostile), flags=re.DOTALL)
    assert "<script" not in outside_code.replace("\\<", "")
    rows = [line for line in outside_code.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (3, 4, 6, 7, 8) for row in rows)


def test_nothing_measured_still_makes_a_page(report: dict[str, Any]) -> None:
    report.update(trials=[], comparisons=[], chosen=None, hold=None, memory=None, tuned=None, ceilings=[])
    report.update(loader_rates=[], preflight=[])
    report["verdict"] = {"name": "unmeasurable", "summary": "The step raised.", "advice": [], "binds": None}

    page = Page(render_html(report)).text

    assert "Could not be measured" in page
    assert "not measured: no settings could be run" in page
    assert "Could not be measured" in render_markdown(report)


def test_a_bench_has_no_hold_and_no_lines_of_python(report: dict[str, Any]) -> None:
    report.update(kind="bench", hold=None, memory=None, tuned=None, chosen=None)

    page = Page(render_html(report)).text

    assert "The hold" not in page
    assert "Use it" not in page
    assert "wellfed bench demo/wds --step resnet50 --device simulated --against torch" in page


def test_missed_targets_are_said_in_words_not_only_in_colour(report: dict[str, Any]) -> None:
    report["hold"].update(fed_low=0.899, util_low=70.0)

    page = Page(render_html(report)).text

    assert "target 0.90 or more missed" in page
    assert "target above 70% missed" in page


def test_markdown_has_the_same_figures(report: dict[str, Any]) -> None:
    page = render_markdown(report)

    assert page.startswith("> **SIMULATED ACCELERATOR:** no GPU was used.")
    assert "# Passed: the device stays fed" in page
    assert "| GPU utilization | 97.1% | target above 70% | met | at least 96.4% (95% bound) |" in page
    assert "2.53 times the samples a second of stock torch (95% interval 2.49 to 2.58)." in page
    assert (
        '```python\nfrom wellfed.pipeline import DataLoader\nloader = DataLoader("demo/wds", tuned="tuned.json"' in page
    )


def test_three_files_are_written_and_the_json_is_what_was_drawn(report: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "new" / "report"

    paths = write_report(report, folder)

    assert {kind: path.name for kind, path in paths.items()} == {
        "json": "report.json",
        "html": "report.html",
        "md": "report.md",
    }
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "report.json", "report.md"]
    read = json.loads(paths["json"].read_text("utf-8"))
    assert read == report
    assert paths["html"].read_text("utf-8") == render_html(read)
    assert paths["md"].read_text("utf-8") == render_markdown(read)


def test_a_bad_report_writes_nothing(report: dict[str, Any], tmp_path: Path) -> None:
    report["schema_version"] = 9
    with pytest.raises(SchemaVersionError):
        write_report(report, tmp_path / "out")
    report["schema_version"] = 1
    report["verdict"]["name"] = "fine"
    with pytest.raises(ConfigError):
        write_report(report, tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_is_an_error(report: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(ResourceError, match="must be writable"):
        write_report(report, tmp_path / "file" / "sub")


def with_parts(report: dict[str, Any]) -> dict[str, Any]:
    """The report with the model's predictions, a differential table and reading rates."""
    made = {"util_percent": 96.0, "host_bytes": 3 * 2**20, "device_bytes": 2 * 2**30, "limit": "step"}
    for trial in report["trials"]:
        trial["predicted"] = None if trial["role"] == "stock" else {**made, "samples_per_second": 602.0}
    report["trials"][0]["median"].update(samples_per_second=560.0, util_percent=100.0, peak_bytes=2.5 * 2**30)
    row = {"wait_share": 0.25, "reason": None}
    report["differential"] = {
        "settings": report["trials"][0]["settings"],
        "batch_size": 64,
        "rows": [
            {"stage": "step", "samples_per_second": 1000.0, "seconds_per_sample": 1e-3}
            | {**row, "added_seconds_per_sample": None},
            {"stage": "bytes", "samples_per_second": 500.0, "seconds_per_sample": 2e-3}
            | {**row, "added_seconds_per_sample": 1e-3},
            {"stage": "storage", "samples_per_second": None, "seconds_per_sample": None}
            | {"wait_share": None, "added_seconds_per_sample": None, "reason": "LMDB's pages stay"},
        ],
    }
    report["parts"]["reading"] = [
        {"order": "random", "cache": "warm", "samples_per_second": 9000.0, "reason": None},
        {"order": "sequential", "cache": "cold", "samples_per_second": None, "reason": "a file system in memory"},
    ]
    return report


def test_predicted_and_measured_stand_beside_each_other(report: dict[str, Any]) -> None:
    changed = with_parts(report)
    for text in (Page(render_html(changed)).text, render_markdown(changed).replace("\\", "")):
        assert "Predicted and measured" in text
        # 602 of 560, 96 of 100, 2 of 2.5
        assert all(error in text for error in ("+7.5%", "-4.0%", "-20.0%"))
        assert "no prediction" in text  # of stock torch


def test_where_each_second_goes(report: dict[str, Any]) -> None:
    changed = with_parts(report)
    for text in (Page(render_html(changed)).text, render_markdown(changed).replace("\\", "")):
        assert "Where each second goes" in text
        assert "2,000 us" in text
        assert "+1,000 us" in text
        assert "not measured: LMDB's pages stay" in text
        assert "not measured: a file system in memory" in text
    assert 'aria-labelledby="stages-t' in render_html(changed)


def test_a_report_without_predictions_or_stages_has_no_such_sections(report: dict[str, Any]) -> None:
    for text in (render_html(report), render_markdown(report)):
        assert "Predicted and measured" not in text
        assert "Where each second goes" not in text


def test_damaged_predictions_and_stages_are_refused(report: dict[str, Any]) -> None:
    changed = with_parts(report)
    changed["trials"][0]["predicted"]["samples_per_second"] = "fast"
    with pytest.raises(ConfigError, match=r"trials\[0\].predicted.samples_per_second"):
        render_html(changed)
    changed["trials"][0]["predicted"] = None
    del changed["differential"]["rows"][1]["reason"]
    with pytest.raises(ConfigError, match=r"differential.rows\[1\]"):
        render_html(changed)
