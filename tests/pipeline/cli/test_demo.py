"""`wellfed demo`: real images, conversion and verification on a few samples; the tuner is a fake."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wellfed.pipeline.config import TunedConfig, TuneRequest
from wellfed.pipeline.demo.folder import claim
from wellfed.pipeline.demo.script import training_script
from wellfed.pipeline.errors import StepError


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def requests(sample_report: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[TuneRequest]:
    got: list[TuneRequest] = []

    def run_tune(request: TuneRequest, *, progress: Any) -> SimpleNamespace:
        got.append(request)
        progress("round 1 of 5", 0.25)
        sample_report["request"] = request.to_dict()
        sample_report["verdict"]["name"] = "data_limited"
        return SimpleNamespace(
            report=sample_report, tuned=TunedConfig.from_dict(sample_report["tuned"]), verdict="data_limited"
        )

    monkeypatch.setattr(importlib.import_module("wellfed.pipeline.tune"), "run_tune", run_tune, raising=False)
    return got


def without_images_and_converters(monkeypatch: pytest.MonkeyPatch, *problems: str) -> None:
    """Makes and converts nothing; verification finds `problems`."""
    found = SimpleNamespace(problems=problems)
    for module, name, fake in (
        ("wellfed.pipeline.demo.photolike", "make_photolike", lambda root, **options: None),
        ("wellfed.converters.run", "convert", lambda source, destination, **options: None),
        ("wellfed.converters.verify", "verify", lambda dataset, **options: found),
    ):
        monkeypatch.setattr(importlib.import_module(module), name, fake)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_goes_from_nothing_to_a_report_and_again(wellfed: Any, requests: list[TuneRequest]) -> None:
    ended = wellfed("demo", "--samples", 40, "--device", "simulated")

    assert ended.code == 0, ended.err
    expected = [
        ".wellfed-demo",
        "images",
        "lmdb",
        "report.html",
        "report.json",
        "report.md",
        "train.py",
        "tuned.json",
        "wds",
    ]
    assert names(Path("demo")) == expected
    assert len(list(Path("demo/images").rglob("*.jpg"))) == 40
    assert (requests[0].data, requests[0].step, requests[0].device) == ("demo/wds", "resnet50", "simulated")
    assert requests[0].batch_sizes == (16, 32)  # a batch larger than the set could not be loaded
    assert requests[0].hold_seconds == 60.0
    for step in ("Make 40 photo-like JPEGs", "Convert to webdataset", "Convert to lmdb", "Verify", "Tune", "done in"):
        assert step in ended.err
    lines = [
        "from wellfed.pipeline import DataLoader",
        'loader = DataLoader("demo/wds", tuned="demo/tuned.json", shuffle=True, drop_last=True, augment="train")',
        "for images, labels in loader:",
    ]
    script = Path("demo/train.py").read_text("utf-8")
    for line in lines:
        assert line in ended.out
        assert line in script
    assert "demo/report.html" in ended.out
    assert "Limited by the data [data_limited]" in ended.out

    Path("demo/mine.txt").write_text("keep", "utf-8")
    Path("demo/images/stale.jpg").write_text("x", "utf-8")
    assert wellfed("demo", "--samples", 32).code == 0

    assert names(Path("demo")) == sorted([*expected, "mine.txt"])
    assert not Path("demo/images/stale.jpg").exists()
    assert len(list(Path("demo/images").rglob("*.jpg"))) == 32


def test_a_foreign_folder_is_refused_and_untouched(wellfed: Any, requests: list[TuneRequest]) -> None:
    Path("mine").mkdir()
    Path("mine/images").write_text("precious", "utf-8")

    ended = wellfed("demo", "--directory", "mine")

    assert ended.code == 2
    assert "only into an empty folder or one that an earlier demo made" in ended.err
    assert names(Path("mine")) == ["images"]
    assert Path("mine/images").read_text("utf-8") == "precious"
    assert requests == []


def test_a_file_is_no_folder(wellfed: Any) -> None:
    Path("file").write_text("x", "utf-8")

    assert wellfed("demo", "--directory", "file").code == 2


def test_a_link_in_the_demos_place_is_not_followed() -> None:
    Path("precious").mkdir()
    Path("precious/photo.jpg").write_text("mine", "utf-8")
    Path("demo").mkdir()
    Path("demo/.wellfed-demo").write_text("", "utf-8")
    Path("demo/images").symlink_to(Path("precious").resolve())

    claim(Path("demo"))

    assert names(Path("precious")) == ["photo.jpg"]
    assert names(Path("demo")) == [".wellfed-demo"]


def test_an_error_before_the_report_exits_as_usual(wellfed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_tune(request: TuneRequest, *, progress: Any) -> None:
        raise StepError("the step must not raise", got="no", remedy="Mend it.")

    monkeypatch.setattr(importlib.import_module("wellfed.pipeline.tune"), "run_tune", run_tune, raising=False)

    without_images_and_converters(monkeypatch)

    assert wellfed("demo", "--samples", 32).code == 1
    assert not Path("demo/report.html").exists()


def test_the_script_is_whole_python(tmp_path: Path) -> None:
    lines = ("from wellfed.pipeline import DataLoader", 'loader = DataLoader("a")', "for images, labels in loader: ...")
    script = tmp_path / "train.py"
    script.write_text(training_script(lines, path="demo/train.py", classes=10), "utf-8")

    checked = subprocess.run(
        [sys.executable, "-m", "py_compile", str(script)], capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stderr
    assert "    for images, labels in loader:\n" in script.read_text("utf-8")


def test_a_dataset_that_does_not_verify_ends_the_demo(wellfed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without_images_and_converters(monkeypatch, "photos-000000.tar: sample 3 differs")

    ended = wellfed("demo", "--samples", 32)

    assert ended.code == 1
    assert "must verify" in ended.err
    assert "sample 3 differs" in ended.err
