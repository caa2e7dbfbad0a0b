"""The fed-ratio benchmark judges by its rules, and runs on the simulated device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Load = Callable[[str], Any]


def windows(*rates: float, util: float | None = 90.0) -> list[dict[str, Any]]:
    return [{"samples_per_second": rate, "util_percent": util, "wait_share": 0.1} for rate in rates]


@pytest.fixture
def run() -> dict[str, Any]:
    """Five rounds on an H200: a ceiling of 5,000, one feed at 4,900 and one at 4,500."""
    return {
        "configuration": "resnet50",
        "wanted": 0.97,
        "floor": 4400,
        "rounds": 5,
        "device": {"name": "NVIDIA H200", "simulated": False},
        "ceiling": windows(5000, 5000, 5000, 5000, 5000),
        "feeds": [
            {"feed": "dali", "windows": windows(*[4500] * 5), "loader_alone": 20000},
            {"feed": "threads", "windows": windows(*[4900] * 5, util=None), "loader_alone": 5400},
        ],
        "absent": {},
    }


def test_the_best_feed_decides(load: Load, run: dict[str, Any]) -> None:
    summary = load("fed_ratio.summary").summarize(run)
    dali, threads = summary["feeds"]
    assert (summary["best"], summary["verdict"]) == ("threads", "reached")
    assert (dali["ratio"]["median"], threads["ratio"]["median"]) == (0.9, 0.98)
    assert (dali["util_percent"], threads["util_percent"]) == (90.0, None)
    assert "binds" not in summary


@pytest.mark.parametrize(
    ("alone", "says"),
    [
        (20000, "the GPU: the loader alone gives 20,000 img/s, the step takes 5,000, and beside it the step loses 10%"),
        (5000, "the loader: alone it gives 5,000 img/s, and the step takes 5,000"),
    ],
)
def test_a_missed_ratio_says_what_binds(load: Load, run: dict[str, Any], alone: float, says: str) -> None:
    run["feeds"] = [{**run["feeds"][0], "loader_alone": alone}]
    summary = load("fed_ratio.summary").summarize(run)
    assert (summary["verdict"], summary["binds"]) == ("missed", says)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"floor": 5001}, "the ceiling is below its floor of 5,001 img/s, which flatters the ratio"),
        ({"rounds": 4}, "fewer than 5 rounds"),
        ({"device": {"name": "a card", "simulated": True}}, "the device is simulated"),
        (
            {"device": {"name": "NVIDIA A100", "simulated": False}},
            "the promise and its floor are for an H200, and this is NVIDIA A100",
        ),
        ({"feeds": []}, "every feed was absent"),
    ],
)
def test_no_result(load: Load, run: dict[str, Any], change: dict[str, Any], why: str) -> None:
    summary = load("fed_ratio.summary").summarize({**run, **change})
    assert (summary["verdict"], summary["why"]) == ("not a result", why)


def test_feeds_are_written_as_settings(load: Load) -> None:
    feeds = load("fed_ratio.feeds")
    settings = feeds.settings_of(
        "threads:num_workers=15,prefetch_factor=3,persistent_workers=false", batch_size=256, pin_memory=True
    )
    assert (settings.backend, settings.num_workers, settings.prefetch_factor) == ("threads", 15, 3)
    assert (settings.persistent_workers, settings.batch_size, settings.pin_memory) == (False, 256, True)


@pytest.mark.parametrize(
    ("feed", "says"),
    [
        ("magic", "this version has no backend 'magic'"),
        ("threads:colour=1", "loader settings have no field 'colour'"),
    ],
)
def test_a_feed_that_cannot_be_described_says_why(load: Load, feed: str, says: str) -> None:
    feeds = load("fed_ratio.feeds")
    with pytest.raises(feeds.UnknownFeedError, match=says):
        feeds.settings_of(feed, batch_size=1, pin_memory=False)


def test_two_calls_on_the_simulated_device_add_their_runs(
    load: Load, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = load("fed_ratio.__main__").main
    out = tmp_path / "out.json"
    command = ["--output", str(out), "--photos", str(photos)]
    command += ["--device", "simulated", "--rounds", "1", "--seconds", "0.2", "--batch-size", "8", "--image-size", "32"]
    first = ["--configurations", "resnet50", "resnet50-compiled", "--feeds", "threads:num_workers=1", "magic"]
    assert main([*command, *first]) == 0
    printed = capsys.readouterr().out
    assert main([*command, "--configurations", "resnet18-resized", "--feeds", "threads:num_workers=1"]) == 0

    resnet50, resnet18 = json.loads(out.read_text())["runs"]
    assert (resnet50["configuration"], resnet18["configuration"]) == ("resnet50", "resnet18-resized")
    (feed,) = resnet50["feeds"]
    (window,), (ceiling,) = feed["windows"], resnet50["ceiling"]
    assert window["samples"] > 0
    assert resnet50["summary"]["feeds"][0]["ratio"]["median"] == pytest.approx(
        window["samples_per_second"] / ceiling["samples_per_second"], abs=1e-3
    )
    assert feed["loader_alone"] > 0
    assert list(resnet50["absent"]) == ["magic"]
    assert resnet50["absent"]["magic"].startswith("this version has no backend 'magic'")
    assert (resnet50["summary"]["verdict"], resnet50["summary"]["why"]) == ("not a result", "the device is simulated")
    assert "resnet50-compiled: not run: the simulated device has no such step" in printed
