"""The part of a report that a tune on several ranks adds."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from wellfed.pipeline.errors import ConfigError
from wellfed.pipeline.report import render_html, render_markdown, validate_report
from wellfed.pipeline.report.every_rank import rank_rows


def rank(speed: float, **other: Any) -> dict[str, Any]:
    found = {"util_percent": 90.0, "util_reason": None, "peak_bytes": 3 << 30, "memory_reason": None}
    return {"samples_per_second": speed, "wait_share": 0.1, **found, **other}


@pytest.fixture
def on_two(report: dict[str, Any]) -> dict[str, Any]:
    """The sample, as if two ranks had held it for three windows."""
    report = deepcopy(report)
    report["ranks"] = {
        "world_size": 2,
        "global_batch": 512,
        "samples_per_second": 1234.0,
        "devices": ["host GPU-a", None],
    }
    speeds = [(610.0, 605.0), (630.0, 600.0), (617.0, 620.0)]
    window = report["hold"]["windows"][0]
    report["hold"]["windows"] = [
        {**window, "ranks": [rank(first), rank(second, wait_share=0.25, peak_bytes=peak << 30)]}
        for (first, second), peak in zip(speeds, (4, 5, 4), strict=True)
    ]
    return report


def test_every_rank_has_a_line_on_both_pages(on_two: dict[str, Any]) -> None:
    rows = rank_rows(on_two)
    # medians over the three windows, the fullest moment of each GPU
    assert rows == [
        ["rank 0, host GPU-a", "617/s", "10.0%", "90.0%", "3.00 GiB"],
        ["rank 1", "605/s", "25.0%", "90.0%", "5.00 GiB"],
    ]
    page, text = render_html(on_two), render_markdown(on_two)
    for words in ("Every rank", "2 ranks measured together, global batch 512, 1,234/s"):
        assert words in page
        assert words in text
    assert "| rank 1 | 605/s | 25.0% | 90.0% | 5.00 GiB |" in text


def test_what_a_rank_did_not_measure_has_its_reason(on_two: dict[str, Any]) -> None:
    for window in on_two["hold"]["windows"]:
        window["ranks"][1].update(util_percent=None, util_reason="MIG", peak_bytes=None, memory_reason="no NVML")
    assert rank_rows(on_two)[1] == ["rank 1", "605/s", "25.0%", "not measured: MIG", "not measured: no NVML"]


def test_a_report_without_a_hold_shows_the_chosen_rounds(on_two: dict[str, Any]) -> None:
    chosen = next(trial for trial in on_two["trials"] if trial["id"] == on_two["chosen"])
    chosen["rounds"][0].setdefault("window", {})["ranks"] = [rank(500.0), rank(400.0)]
    on_two["hold"] = None
    assert [row[1] for row in rank_rows(on_two)] == ["500/s", "400/s"]
    assert "the chosen settings&#x27; rounds" in render_html(on_two)


def test_one_rank_has_no_such_part(report: dict[str, Any]) -> None:
    assert rank_rows(report) == []
    assert "Every rank" not in render_html(report) + render_markdown(report)


@pytest.mark.parametrize(
    ("damage", "place"),
    [
        (lambda report: report["ranks"].pop("devices"), "ranks"),
        (lambda report: report["ranks"]["devices"].pop(), r"ranks\.devices"),
        (lambda report: report["hold"]["windows"][1]["ranks"].pop(), r"hold\.windows\[1\]\.ranks"),
        (lambda report: report["hold"]["windows"][2]["ranks"][1].pop("wait_share"), r"hold\.windows\[2\]\.ranks\[1\]"),
    ],
)
def test_damage_is_named(on_two: dict[str, Any], damage: Any, place: str) -> None:
    validate_report(on_two)
    damage(on_two)
    with pytest.raises(ConfigError, match=place):
        validate_report(on_two)
