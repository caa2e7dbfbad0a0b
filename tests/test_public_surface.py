"""The public names, in one place: a change here is a change users see."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import wellfed.converters
import wellfed.pipeline

REPOSITORY = Path(__file__).resolve().parent.parent

PIPELINE = [
    "ColorJitter",
    "DataLoader",
    "LoaderConfig",
    "LoaderSettings",
    "Mix",
    "RandAugment",
    "RandomErasing",
    "RandomGrayscale",
    "Source",
    "TrivialAugmentWide",
    "TuneRequest",
    "TunedConfig",
    "WellfedError",
    "as_torch_loader",
    "open_source",
    "tune",
]
ERRORS = {
    # what the command line ends with (design section 9)
    "WellfedError": 1,
    "CorruptSampleError": 1,
    "DamagedDatasetError": 1,
    "ResourceError": 1,
    "SampleError": 1,
    "SampleRejectedError": 1,
    "SourceChangedError": 1,
    "StepError": 1,
    "TransformError": 1,
    "WorkerError": 1,
    "ConfigError": 2,
    "DeviceError": 2,
    "MissingDependencyError": 2,
    "SchemaVersionError": 2,
    "TunedConfigMismatchError": 2,
    "UsageError": 2,
}


def modules_with_all() -> list[str]:
    names = []
    for folder in ("pipeline", "converters"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            if "\n__all__ = [" in path.read_text("utf-8"):
                parts = path.relative_to(REPOSITORY).with_suffix("").parts
                names.append(".".join(("wellfed", *(parts[:-1] if parts[-1] == "__init__" else parts))))
    return sorted(names)


def test_the_pipeline_exports_these() -> None:
    assert wellfed.pipeline.__all__ == PIPELINE
    assert set(PIPELINE) <= set(dir(wellfed.pipeline))


def test_the_errors_and_their_exit_codes() -> None:
    errors = importlib.import_module("wellfed.pipeline.errors")
    assert sorted(errors.__all__) == sorted(ERRORS)
    assert {name: getattr(errors, name).exit_code for name in ERRORS} == ERRORS
    assert all(issubclass(getattr(errors, name), errors.WellfedError) for name in ERRORS)


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"wellfed\.pipeline.*no attribute 'Dataloader'"):
        _ = wellfed.pipeline.Dataloader


@pytest.mark.parametrize("name", modules_with_all())
def test_what_a_module_promises_is_there_and_explained(name: str) -> None:
    module = importlib.import_module(name)
    for promised in module.__all__:
        value = getattr(module, promised)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{name}.{promised} has no docstring"


def test_importing_the_package_is_light() -> None:
    # given a fresh interpreter, when the packages and the configurations are imported
    program = (
        "import json, sys, wellfed.pipeline, wellfed.converters\n"
        "wellfed.pipeline.LoaderSettings, wellfed.pipeline.WellfedError\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / ".typing")},
    )
    assert run.returncode == 0, run.stderr
    # then neither torch nor numpy came with them
    assert {"torch", "numpy", "lmdb", "PIL"} & set(json.loads(run.stdout)) == set()
