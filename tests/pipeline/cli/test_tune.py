"""`wellfed tune`: options to request, files left, what is printed, exit codes. The tuner itself is a fake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wellfed.pipeline.config import LoaderSettings, TunedConfig, TuneRequest
from wellfed.pipeline.errors import ResourceError, StepError

LINES = [
    "    from wellfed.pipeline import DataLoader",
    '    loader = DataLoader("demo/wds", tuned="tuned.json", shuffle=True, drop_last=True, augment="train")',
    "    for images, labels in loader: ...",
]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def requests(sample_report: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[TuneRequest]:
    """Replaces the tuner; the requests it got."""
    got: list[TuneRequest] = []

    def run_tune(request: TuneRequest, *, progress: Callable[[str, float], None]) -> SimpleNamespace:
        got.append(request)
        progress("round 1 of 5", 0.25)
        return SimpleNamespace(
            report=sample_report,
            tuned=TunedConfig.from_dict(sample_report["tuned"]),
            verdict=sample_report["verdict"]["name"],
            interrupted=sample_report.get("interrupted", False),
        )

    monkeypatch.setattr(wellfed_tune(), "run_tune", run_tune, raising=False)
    return got


def test_left_out_options_are_the_designs(wellfed: Any, requests: list[TuneRequest]) -> None:
    assert wellfed("tune", "some/wds", "--step", "resnet50").code == 0

    assert requests == [
        TuneRequest(
            data="some/wds",
            step="resnet50",
            device="auto",
            util_target=70.0,
            fed_target=0.90,
            memory_cap=0.70,
            budget_seconds=180.0,
            hold_seconds=60.0,
            batch_sizes=None,
            image_size=224,
            seed=0,
            current=None,
        )
    ]


def test_every_option_reaches_the_request(wellfed: Any, requests: list[TuneRequest]) -> None:
    current = LoaderSettings(backend="processes", num_workers=4, batch_size=32)
    Path("now.json").write_text(current.to_json(), "utf-8")

    arguments = "tune wds --step my.module:build --device cuda:1 --util-target 80 --fed-target 0.95 --memory-cap 0.5"
    arguments += " --budget 90s --hold 2m --batch-sizes 64,128 --image-size 160 --seed 7 --current now.json"
    assert wellfed(*arguments.split()).code == 0

    assert requests == [
        TuneRequest(
            data="wds",
            step="my.module:build",
            device="cuda:1",
            util_target=80.0,
            fed_target=0.95,
            memory_cap=0.5,
            budget_seconds=90.0,
            hold_seconds=120.0,
            batch_sizes=(64, 128),
            image_size=160,
            seed=7,
            current=current,
        )
    ]


def test_current_may_be_a_tuned_config(
    wellfed: Any, requests: list[TuneRequest], sample_report: dict[str, Any]
) -> None:
    Path("old.json").write_text(json.dumps(sample_report["tuned"]), "utf-8")

    assert wellfed("tune", "wds", "--step", "resnet50", "--current", "old.json").code == 0

    assert requests[0].current == LoaderSettings(
        backend="threads", num_workers=2, prefetch_factor=2, pin_memory=False, batch_size=64
    )


def test_it_prints_the_verdict_the_figures_and_the_three_lines(wellfed: Any, requests: list[TuneRequest]) -> None:
    ended = wellfed("tune", "demo/wds", "--step", "resnet50", "--report", "out")

    assert ended.code == 0
    assert ended.out.startswith("SIMULATED ACCELERATOR: ")
    assert "Passed: the device stays fed [passed]" in ended.out
    assert "GPU utilization   97.1%  (target above 70%, met; at least 96.4% (95% bound))" in ended.out
    assert "\n".join(LINES) in ended.out
    assert "Tuned config: tuned.json" in ended.out
    assert "Report: out/report.html" in ended.out
    assert "round 1 of 5" in ended.err
    assert sorted(path.name for path in Path("out").iterdir()) == ["report.html", "report.json", "report.md"]
    assert TunedConfig.load("tuned.json").settings.num_workers == 2
    assert json.loads(Path("out/report.json").read_text("utf-8"))["output"] == {"tuned": "tuned.json"}


@pytest.mark.parametrize("verdict", ["step_limited", "data_limited", "unmeasurable", "regressed"])
def test_every_other_verdict_exits_4_and_still_leaves_its_files(
    wellfed: Any, requests: list[TuneRequest], sample_report: dict[str, Any], verdict: str
) -> None:
    sample_report["verdict"]["name"] = verdict

    assert wellfed("tune", "wds", "--step", "resnet50", "--report", "out").code == 4
    assert Path("tuned.json").is_file()
    assert Path("out/report.html").is_file()


def test_files_go_where_the_command_was_given_also_where_the_step_changes_the_folder(
    wellfed: Any, requests: list[TuneRequest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tuner = wellfed_tune().run_tune
    (tmp_path / "runs").mkdir()

    def run_tune(request: TuneRequest, *, progress: Callable[[str, float], None]) -> SimpleNamespace:
        monkeypatch.chdir(tmp_path / "runs")
        return tuner(request, progress=progress)

    monkeypatch.setattr(wellfed_tune(), "run_tune", run_tune)
    wellfed("tune", "some/wds", "--step", "resnet50", "--report", "report")

    assert (tmp_path / "tuned.json").is_file()
    assert (tmp_path / "report" / "report.html").is_file()
    assert not list((tmp_path / "runs").iterdir())


def test_json_is_one_document_on_stdout(
    wellfed: Any, requests: list[TuneRequest], sample_report: dict[str, Any]
) -> None:
    ended = wellfed("tune", "wds", "--step", "resnet50", "--output", "best.json", "--json")

    assert json.loads(ended.out) == {**sample_report, "output": {"tuned": "best.json"}}


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_what_was_found_is_printed_also_where_its_files_cannot_be_written(
    wellfed: Any,
    requests: list[TuneRequest],
    sample_report: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    json_flag: list[str],
) -> None:
    def full(page: Any, folder: Path) -> None:
        raise ResourceError("'report.json' must be writable", got="No space left on device", remedy="Free space.")

    monkeypatch.setattr("wellfed.pipeline.report.write_report", full)
    ended = wellfed("tune", "wds", "--step", "resnet50", "--report", "out", *json_flag)
    assert ended.code == 1
    if json_flag:
        assert json.loads(ended.out)["verdict"] == sample_report["verdict"]
    else:
        assert sample_report["verdict"]["summary"] in ended.out
    assert ended.err.endswith("'report.json' must be writable; got No space left on device. Free space.\n")


def test_a_name_as_long_as_names_may_be_is_written(wellfed: Any, requests: list[TuneRequest]) -> None:
    name = "ü" * 125 + ".json"  # 255 bytes
    assert wellfed("tune", "wds", "--step", "resnet50", "--output", name).code == 0
    assert [path.name for path in Path().iterdir()] == [name]


def test_an_earlier_tuned_config_is_replaced(
    wellfed: Any, requests: list[TuneRequest], sample_report: dict[str, Any]
) -> None:
    earlier = json.loads(json.dumps(sample_report["tuned"]))
    earlier["settings"]["num_workers"] = 9
    Path("tuned.json").write_text(json.dumps(earlier), "utf-8")

    assert wellfed("tune", "wds", "--step", "resnet50").code == 0
    assert TunedConfig.load("tuned.json").settings.num_workers == 2


@pytest.mark.parametrize("content", ["print('mine')\n", "{}", '{"schema": "wellfed-loader-settings"}'])
def test_another_file_is_never_replaced(wellfed: Any, requests: list[TuneRequest], content: str) -> None:
    Path("train.py").write_text(content, "utf-8")

    ended = wellfed("tune", "wds", "--step", "resnet50", "--output", "train.py")

    assert ended.code == 2
    assert "only a tuned config is overwritten" in ended.err
    assert Path("train.py").read_text("utf-8") == content
    assert requests == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--budget soon", "a duration is a number"),
        ("--hold 0s", "a duration must be positive"),
        ("--batch-sizes 64,big", "whole numbers separated by commas"),
        ("--batch-sizes 64,0", "batch_sizes"),
        ("--fed-target 1.5", "fed_target must be between 0 and 1"),
        ("--memory-cap 0", "memory_cap must be between"),
        ("--current missing.json", "must be a readable JSON file"),
        ("--current text.json", "must be a readable JSON file"),
        ("--optimizer lion", "optimizer must be one of 'sgd', 'adam'"),
        ("--base-lr 0.1", "base_lr needs the batch at which it works"),
        ("--global-batch 0", "global_batch must be between 1 and"),
        ("--current unknown.json", "has fields that LoaderSettings does not know"),
        ("--output .", "the output must be a file"),
        ("--output text.json/tuned.json", "the folder of the output must be writable"),
        ("--report text.json", "the report needs a folder"),
        ("--report text.json/a/b", "the folder of the report must be writable"),
        (f"--output {'x' * 256}", "the place of the output must be one that can be written"),
        (f"--report {'x' * 256}/a", "the place of the report must be one that can be written"),
    ],
)
def test_wrong_values_are_refused_before_anything_runs(
    wellfed: Any, requests: list[TuneRequest], arguments: str, message: str
) -> None:
    Path("text.json").write_text("not json", "utf-8")
    Path("unknown.json").write_text('{"num_workers": 2, "threads": 3}', "utf-8")

    ended = wellfed("tune", "wds", "--step", "resnet50", *arguments.split())

    assert ended.code == 2
    assert message in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""
    assert requests == []


def test_an_interrupted_tune_leaves_the_best_so_far_and_exits_130(
    wellfed: Any, requests: list[TuneRequest], sample_report: dict[str, Any]
) -> None:
    sample_report["interrupted"] = True

    ended = wellfed("tune", "wds", "--step", "resnet50", "--report", "out")

    assert ended.code == 130
    assert "wellfed: interrupted." in ended.err
    assert TunedConfig.load("tuned.json").settings.num_workers == 2
    assert Path("out/report.html").is_file()


def test_advice_for_the_batch_is_asked_for_and_printed_with_its_lines(
    wellfed: Any, requests: list[TuneRequest], sample_report: dict[str, Any]
) -> None:
    sample_report["batch_advice"] = {"words": [], "lines": ["(loss / 4).backward()"]}
    arguments = "tune wds --step resnet50 --optimizer sgd --base-lr 0.1 --base-batch 256 --global-batch 512 --report o"

    ended = wellfed(*arguments.split())

    asked = requests[0]
    assert (asked.optimizer, asked.base_lr, asked.base_batch, asked.global_batch) == ("sgd", 0.1, 256, 512)
    assert "if you take the advice:\n\n    (loss / 4).backward()\n" in ended.out
    assert "```python\n(loss / 4).backward()\n```" in Path("o/report.md").read_text("utf-8")
    assert "<code>(loss / 4).backward()</code>" in Path("o/report.html").read_text("utf-8")


def test_a_step_that_raises_leaves_nothing(wellfed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_tune(request: TuneRequest, *, progress: object) -> None:
        raise StepError("the step must not raise", got="ValueError: no", remedy="Mend it.")

    monkeypatch.setattr(wellfed_tune(), "run_tune", run_tune, raising=False)

    ended = wellfed("tune", "wds", "--step", "resnet50", "--report", "out")

    assert ended.code == 1
    assert "the step must not raise" in ended.err
    assert list(Path.cwd().iterdir()) == []


def test_an_interrupt_exits_130_and_leaves_nothing(wellfed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_tune(request: TuneRequest, *, progress: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(wellfed_tune(), "run_tune", run_tune, raising=False)

    assert wellfed("tune", "wds", "--step", "resnet50", "--report", "out").code == 130
    assert list(Path.cwd().iterdir()) == []


def wellfed_tune() -> Any:
    # The fixture named `wellfed` hides the package in the tests.
    import importlib

    return importlib.import_module("wellfed.pipeline.tune")
