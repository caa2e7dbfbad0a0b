"""`wellfed bench`: what it measures, what it leaves, exit codes. The measuring is a fake."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from wellfed.pipeline.config import LoaderSettings, TunedConfig


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def bench_report(sample_report: dict[str, Any]) -> dict[str, Any]:
    sample_report.update(kind="bench", memory=None, hold=None, tuned=None)
    return sample_report


@pytest.fixture
def calls(bench_report: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    got: list[dict[str, Any]] = []

    def run_bench(data: str, step: str, device: str, **options: Any) -> dict[str, Any]:
        options.pop("progress")("round 1 of 5", 0.2)
        got.append({"data": data, "step": step, "device": device, **options})
        return bench_report

    monkeypatch.setattr(importlib.import_module("wellfed.pipeline.tune"), "run_bench", run_bench, raising=False)
    return got


def test_without_a_config_it_measures_the_defaults(wellfed: Any, calls: list[dict[str, Any]]) -> None:
    ended = wellfed("bench", "wds", "--step", "resnet18")

    assert ended.code == 0
    assert calls == [
        {
            "data": "wds",
            "step": "resnet18",
            "device": "auto",
            "settings": LoaderSettings(),
            "image_size": None,
            "against_torch": False,
            "allow_shared_gpu": False,
        }
    ]
    assert "2.53 times stock torch" in ended.out
    assert "DataLoader(" not in ended.out


def test_a_tuned_config_is_measured_as_one_so_that_its_fit_is_checked(
    wellfed: Any, calls: list[dict[str, Any]], bench_report: dict[str, Any]
) -> None:
    settings = LoaderSettings(num_workers=3)
    tuned = TunedConfig(
        settings=settings,
        verdict="passed",
        dataset={"fingerprint": "ab", "samples": 250},
        machine={},
        step={"name": "resnet50", "device": "simulated", "image_size": 224},
        versions={},
        measured={},
    )
    Path("tuned.json").write_text(tuned.to_json(), "utf-8")
    arguments = "bench wds --step resnet50 --config tuned.json --against torch --device simulated --report out"

    assert wellfed(*arguments.split()).code == 0

    assert calls[0]["settings"] == tuned
    assert calls[0]["against_torch"] is True
    assert calls[0]["device"] == "simulated"
    report = json.loads(Path("out/report.json").read_text("utf-8"))
    assert report == {**bench_report, "output": {"config": "tuned.json"}}
    assert "--config tuned.json --against torch" in Path("out/report.md").read_text("utf-8")


def test_a_shared_gpu_is_allowed_only_where_asked_and_the_report_repeats_it(
    wellfed: Any, calls: list[dict[str, Any]], bench_report: dict[str, Any]
) -> None:
    bench_report["request"]["allow_shared_gpu"] = True
    assert wellfed("bench", "wds", "--step", "resnet50", "--allow-shared-gpu", "--report", "out").code == 0
    assert calls[0]["allow_shared_gpu"] is True
    assert "--allow-shared-gpu" in Path("out/report.md").read_text("utf-8")


def test_an_image_size_is_passed_on(wellfed: Any, calls: list[dict[str, Any]]) -> None:
    assert wellfed("bench", "wds", "--step", "resnet50", "--image-size", "64").code == 0
    assert calls[0]["image_size"] == 64


def test_json_is_one_document_on_stdout(
    wellfed: Any, calls: list[dict[str, Any]], bench_report: dict[str, Any]
) -> None:
    assert json.loads(wellfed("bench", "wds", "--step", "resnet50", "--json").out) == {**bench_report, "output": {}}


def test_a_missed_verdict_exits_4(wellfed: Any, calls: list[dict[str, Any]], bench_report: dict[str, Any]) -> None:
    bench_report["verdict"]["name"] = "data_limited"

    assert wellfed("bench", "wds", "--step", "resnet50", "--report", "out").code == 4
    assert Path("out/report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--against tensorflow", "--against knows one peer, torch"),
        ("--config missing.json", "must be a readable JSON file"),
        ("--config range.json", "num_workers must be between 0 and 1024"),
        ("--config future.json", "a schema this wellfed does not know"),
    ],
)
def test_wrong_values_are_refused_before_anything_runs(
    wellfed: Any, calls: list[dict[str, Any]], arguments: str, message: str
) -> None:
    Path("range.json").write_text('{"num_workers": 5000}', "utf-8")
    Path("future.json").write_text('{"schema": "wellfed-tuned-config", "schema_version": 2}', "utf-8")

    ended = wellfed("bench", "wds", "--step", "resnet50", *arguments.split())

    assert ended.code == 2
    assert message in ended.err
    assert calls == []
