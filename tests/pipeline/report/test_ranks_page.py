"""The pages of several ranks: the same figures in HTML, Markdown and lines of text."""

from __future__ import annotations

import copy
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from wellfed.pipeline.errors import ConfigError, SchemaVersionError
from wellfed.pipeline.monitor.figures import scaling
from wellfed.pipeline.report import rank_lines, render_ranks_html, render_ranks_markdown, write_ranks_report


def rank(number: int, **fed: Any) -> dict[str, Any]:
    return {
        "rank": number,
        "local_rank": number,
        "machine": 0,
        "device": {
            "id": f"cuda:{number}",
            "name": "NVIDIA H200",
            "simulated": False,
            "memory_total_bytes": 140 * 2**30,
        },
        "worker_cores": f"cores {16 * number}-{16 * number + 15}, near cuda:{number} (NVML), for 1 of 4 local ranks",
        "fed": {
            "samples_per_second": 1100.0,
            "step_seconds": 0.232,
            "wait_share": 0.02,
            "util_percent": 96.5,
            "util_reason": None,
            "peak_bytes": 35 * 2**30,
            "memory_reason": None,
            **fed,
        },
        "ceiling": None,
        "own": None,
        "windows": {"fed": [], "ceiling": [], "own": []},
    }


@pytest.fixture
def report() -> dict[str, Any]:
    """Four ranks of one machine; rank 2 waits longer, and rank 3's step is slower."""
    return {
        "schema": "wellfed-ranks",
        "schema_version": 1,
        "created": "2026-12-03T07:00:00+00:00",
        "tool_version": "0.1.0",
        "versions": {"torch": "2.9"},
        "world_size": 4,
        "machines": 1,
        "ranks": [rank(0), rank(1), rank(2, wait_share=0.12), rank(3, util_percent=None, util_reason="MIG <on>")],
        "stragglers": [
            {"rank": 2, "kind": "loading", "excess_share": 0.1, "low_share": 0.08},
            {"rank": 3, "kind": "step", "excess_share": 0.07, "low_share": 0.06},
        ],
        "not_judged": {"loading": None, "step": None},
        "scaling": {**vars(scaling(4, one=1250.0, ceiling=4500.0, fed=4400.0))},
        "one_gpu_source": "as given",
    }


STRAGGLERS = [
    "rank 2 on cuda:2 straggles in loading: it waits 23.2 ms, 10.0% of a step, longer for its batches than the other "
    "ranks (at least 8.0%), and they wait for it. Look at its storage, its cores and who shares them.",
    "rank 3 on cuda:3 straggles in its step: by itself it takes 7.0% longer than the other ranks' (at least 6.0%), and "
    "they wait for it. Look at its clocks, its temperature and who shares the GPU.",
]


def test_lines_of_a_log(report: dict[str, Any]) -> None:
    lines = rank_lines(report)

    assert lines[0] == ("rank 0 on cuda:0: 1,100/s, step 232 ms, waiting 2.0%, GPU 96.5%, memory 35.0 GiB, 25%")
    assert "GPU not measured: MIG <on>" in lines[3]
    assert lines[4:] == STRAGGLERS


class Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def test_the_page_says_what_the_lines_say(report: dict[str, Any]) -> None:
    words = Words()
    words.feed(render_ranks_html(report))

    assert {"script", "link", "img"} & set(words.tags) == set()
    assert "2 ranks of 4 straggle" in words.text
    # 4400 of 5000; 4500 of 5000; 4400 of 4500
    assert "Scaling efficiency: 88.0% of 4 times one GPU." in words.text
    assert "leave 90.0%, and of that the loaders leave 97.8%." in words.text
    for text in (*STRAGGLERS, "1,100/s", "232 ms", "12.0%", "96.5%", "35.0 GiB, 25%", "MIG <on>", "5,000/s", "0.978"):
        assert text in words.text, text
    assert "cores 16-31, near cuda:1 (NVML)" in words.text


def test_markdown_has_the_same_figures(report: dict[str, Any]) -> None:
    text = render_ranks_markdown(report)

    assert text.startswith("# 2 ranks of 4 straggle\n")
    assert "| rank 2 on cuda:2 | 1,100/s | 232 ms | 12.0% | 96.5% | 35.0 GiB, 25% |" in text
    assert "not measured: MIG \\<on\\>" in text
    assert "| All ranks, cached batches | 4,500/s | 0.900 |" in text
    assert "| All ranks, with their loaders | 4,400/s | 0.978 |" in text


def test_nothing_measured_is_said_and_never_zero(report: dict[str, Any]) -> None:
    report["stragglers"] = []
    report["not_judged"] = {"loading": "12 steps are too few, 20 are needed", "step": "it was not run"}
    report["scaling"] = vars(scaling(4, one=None, ceiling=None, fed=4400.0))
    for each in report["ranks"]:
        each["fed"] = None

    for text in (render_ranks_markdown(report), render_ranks_html(report)):
        assert "4 ranks" in text
        assert "Whether a rank straggles in loading is not known: 12 steps are too few, 20 are needed." in text
        assert "one GPU by itself and the step of all ranks on cached batches had no step after its warm-up" in text
        assert "0.0%" not in text
    assert (
        rank_lines(report)[0]
        == "rank 0 on cuda:0: not measured: training with the loader had no step after its warm-up"
    )


def test_no_straggler_is_good_news_only_of_what_was_judged(report: dict[str, Any]) -> None:
    report["stragglers"] = []
    assert render_ranks_markdown(report).startswith("# No rank straggles in loading or its step\n")
    report["not_judged"]["step"] = "it was not run"
    assert render_ranks_markdown(report).startswith("# No rank straggles in loading\n")


def test_loaders_that_hold_all_ranks_back_are_no_good_news(report: dict[str, Any]) -> None:
    # given no straggler, and 4000 samples/s of 4500: a fed ratio of 0.889, under 0.90
    report["stragglers"] = []
    report["scaling"] = vars(scaling(4, one=1250.0, ceiling=4500.0, fed=4000.0))

    assert render_ranks_markdown(report).startswith("# The loaders feed the ranks 88.9% of what they could train on\n")
    assert '<h1 class="missed">' in render_ranks_html(report)
    report["scaling"] = vars(scaling(4, one=1250.0, ceiling=4500.0, fed=4050.0))
    assert '<h1 class="passed">' in render_ranks_html(report)


def test_machines_and_simulation_are_named(report: dict[str, Any]) -> None:
    assert "SIMULATED" not in render_ranks_html(report)
    report["machines"] = 2
    report["ranks"][3]["machine"] = 1
    report["ranks"][0]["device"]["simulated"] = True

    assert rank_lines(report)[3].startswith("rank 3 on cuda:3, machine 1: ")
    assert "SIMULATED ACCELERATOR" in render_ranks_html(report)
    assert render_ranks_markdown(report).startswith("> **SIMULATED ACCELERATOR")


def test_three_files_are_written(report: dict[str, Any], tmp_path: Path) -> None:
    paths = write_ranks_report(report, tmp_path / "new")

    assert json.loads(paths["json"].read_text()) == report
    assert paths["html"].read_text() == render_ranks_html(report)
    assert paths["md"].read_text() == render_ranks_markdown(report)


@pytest.mark.parametrize(
    ("place", "value", "error", "message"),
    [
        (("schema",), "wellfed-report", ConfigError, "must be a JSON object of schema 'wellfed-ranks'"),
        (("schema_version",), 2, SchemaVersionError, "reads reports of ranks up to schema version 1"),
        (("world_size",), "4", ConfigError, r"the top level.world_size of a report must be a whole number"),
        (("ranks", 1, "fed", "util_percent"), "much", ConfigError, r"ranks\[1\].fed.util_percent"),
        (("stragglers", 0, "rank"), None, ConfigError, r"stragglers\[0\].rank"),
    ],
)
def test_a_damaged_report_is_refused(
    report: dict[str, Any], place: tuple[Any, ...], value: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    damaged = copy.deepcopy(report)
    inside: Any = damaged
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value

    with pytest.raises(error, match=message):
        write_ranks_report(damaged, tmp_path)
    assert list(tmp_path.iterdir()) == []
