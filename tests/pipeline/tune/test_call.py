"""`wellfed.pipeline.tune(...)` from a script: with and without a main guard, and steps that cannot be imported."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import wellfed.pipeline
from wellfed.pipeline.config import LoaderSettings, TuneRequest
from wellfed.pipeline.errors import ConfigError, UsageError
from wellfed.pipeline.training import name_of_step
from wellfed.pipeline.tune.call import tune
from wellfed.pipeline.tune.outcome import TuneOutcome

REPOSITORY = Path(__file__).resolve().parents[3]

SCRIPT = """
import os, sys
with open("runs", "a") as file:
    file.write(f"{{__name__}} {{sys.argv[1:]}}\\n")
import torch
from wellfed.pipeline import tune

def build(device, num_classes):
    model = torch.nn.Linear(3, num_classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    def step(images, labels):
        loss = torch.nn.functional.cross_entropy(model(images.float().mean((2, 3))), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    step.model, step.optimizer = model, optimizer
    return step

{guard}
    found = tune(
        "photos", step=build, device="simulated", budget_seconds="3s", hold_seconds=1, batch_sizes=[8], image_size=32,
        base_batch=4, util_target=0, fed_target=0,  # within reach: nothing more is measured for advice
    )
    with open("after", "a") as file:
        file.write("once\\n")
    found.save("out/tuned.json")
    with found.loader(batch_size=4) as loader:
        images, labels = next(iter(loader))
        assert images.shape == (4, 3, 32, 32), images.shape
        assert len(loader) == 2
    print(found.report["batch_advice"]["learning_rate"]["learning_rate"], found.report["memory"]["probes"])
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos" / "cat"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for number in range(9):
        Image.fromarray(draw.integers(0, 255, (40, 48, 3), dtype=np.uint8)).save(folder / f"{number}.jpg")
    return tmp_path


@pytest.mark.parametrize("guard", [pytest.param("if __name__ == '__main__':", marks=pytest.mark.long), "if True:"])
def test_a_script_tunes_itself_once_whether_guarded_or_not(photos: Path, guard: str) -> None:
    (photos / "mytrain.py").write_text(SCRIPT.format(guard=guard))
    run = subprocess.run(
        [sys.executable, "mytrain.py", "--mine"],
        cwd=photos,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / ".typing")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    # then the process that tried the batch size ran what stands above the call, with the same arguments, and no more
    assert (photos / "runs").read_text().splitlines() == ["__main__ ['--mine']", "mytrain ['--mine']"]
    assert (photos / "after").read_text() == "once\n"
    # and the probe succeeded; 0.25 at a batch of 4 is 0.5 at one of 8
    rate, probes = run.stdout.split(" ", 1)
    assert float(rate) == 0.5
    assert "'error': None" in probes
    saved = json.loads((photos / "out" / "tuned.json").read_text())
    assert saved["step"]["name"] == "mytrain:build"
    assert len(saved["step"]["source_sha256"]) == 64
    assert saved["settings"]["batch_size"] == 8


def build(device: str) -> Callable[..., None]:
    raise AssertionError("no test builds it")


def test_an_importable_function_has_a_name() -> None:
    assert name_of_step("train:build") == "train:build"
    assert name_of_step(build) == f"{__name__}:build"
    assert name_of_step(os.path.join) == "posixpath:join"


class _Builder:
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda: None, "a lambda, which has no name"),
        (functools.partial(build, "cpu"), "an object of type partial"),
        (_Builder(), "an object of type _Builder"),
        (7, "an object of type int"),
    ],
)
def test_what_cannot_be_imported_is_refused_with_the_reason(step: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        name_of_step(step)
    assert "child processes import it again" in str(caught.value)


def test_a_closure_is_refused_before_anything_is_opened() -> None:
    def inner(device: str) -> Callable[..., None]:
        return build(device)

    with pytest.raises(UsageError, match=r"inner, a closure: it is there only while the function around it runs"):
        wellfed.pipeline.tune("nowhere", step=inner)


def test_a_name_that_holds_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = build
    monkeypatch.setattr(sys.modules[__name__], "build", print)
    with pytest.raises(UsageError, match="under which name the module holds something else"):
        name_of_step(original)


def test_a_function_of_a_notebook_is_refused_with_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    main = type(sys)("__main__")
    exec("def build(device): ...", main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(UsageError, match=r"%%writefile mystep.py, and give step='mystep:build'"):
        name_of_step(main.build)


def test_a_script_that_another_file_hides_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given the script jobs/fit.py, run from a folder that has a fit.py of its own
    (tmp_path / "jobs").mkdir()
    for place in (tmp_path, tmp_path / "jobs"):
        (place / "fit.py").write_text("def build(device): ...\n")
    main = type(sys)("__main__")
    main.__file__ = str(tmp_path / "jobs" / "fit.py")
    exec("def build(device): ...", main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="must be what `import fit` finds"):
        name_of_step(main.build)
    monkeypatch.chdir(tmp_path / "jobs")
    assert name_of_step(main.build) == "fit:build"


def test_its_arguments_are_the_requests() -> None:
    wanted = {field.name: field.default for field in dataclasses.fields(TuneRequest) if field.name != "data"}
    given = {p.name: p.default for p in inspect.signature(tune).parameters.values() if p.kind is p.KEYWORD_ONLY}
    del given["progress"]
    assert {n: d for n, d in given.items() if n != "step"} == {n: d for n, d in wanted.items() if n != "step"}


def test_present_settings_come_as_objects_or_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample_report: dict[str, Any]
) -> None:
    seen: list[TuneRequest] = []

    def run_tune(request: TuneRequest, **rest: Any) -> None:
        seen.append(request)

    monkeypatch.setattr("wellfed.pipeline.tune.run.run_tune", run_tune)
    settings = LoaderSettings(num_workers=3)
    (tmp_path / "now.json").write_text(settings.to_json())
    (tmp_path / "old.json").write_text(json.dumps(sample_report["tuned"]))
    for current in (settings, tmp_path / "now.json", str(tmp_path / "old.json")):
        tune("set", step="resnet50", current=current)
    assert [request.current.num_workers for request in seen if request.current] == [3, 3, 2]
    with pytest.raises(ConfigError, match="must be a readable JSON file"):
        tune("set", step="resnet50", current=tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("argument", "kind"), [({"batch_sizes": 64}, ConfigError), ({"batch_sizes": "16,32"}, ConfigError),
                           ({"progress": 3}, UsageError)]
)  # fmt: skip
def test_an_argument_of_another_type_is_refused_before_anything_is_opened(
    argument: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=next(iter(argument))):
        tune("no-such-folder", step="resnet18", **argument)


def test_a_torch_dataset_is_refused() -> None:
    with pytest.raises(UsageError, match="stored dataset or an open Source"):
        wellfed.pipeline.tune([1, 2, 3], step="resnet50")  # type: ignore[arg-type]


def test_a_loader_of_an_outcome_takes_tail_instead_of_drop_last(photos: Path, sample_report: dict[str, Any]) -> None:
    from wellfed.pipeline.config import TunedConfig
    from wellfed.pipeline.formats import open_source
    from wellfed.pipeline.hardware import fingerprint

    with closing(open_source(str(photos / "photos"))) as source:
        values = {**sample_report["tuned"], "machine": fingerprint(), "versions": {}}
        values["dataset"] = {"fingerprint": source.fingerprint, "samples": 9}
        tuned = TunedConfig.from_dict(values)
    outcome = TuneOutcome(
        report={}, tuned=tuned, verdict="passed", interrupted=False, source=str(photos / "photos"), device="cpu"
    )
    with outcome.loader(tail="partial", batch_size=4, image_size=tuned.step["image_size"]) as loader:
        assert len(loader) == 3
