"""A tuned config used where something differs: each difference by itself, refused or warned of, in words."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wellfed.pipeline.config import LoaderSettings, TunedConfig
from wellfed.pipeline.errors import TunedConfigMismatchError
from wellfed.pipeline.hardware.versions import versions
from wellfed.pipeline.loader.step_source import step_source_sha256
from wellfed.pipeline.loader.tuned import check_tuned

MACHINE: dict[str, Any] = {
    "machine": "x86_64",
    "cpu_model": "A Processor",
    "usable_cores": 16,
    "memory_gib": 128,
    "gpus": [{"name": "NVIDIA H200", "memory_gib": 140}],
}
VERSIONS = {"wellfed": "1.0", "torch": "2.9.0", "nvidia-dali-cuda120": "1.50", "NVIDIA driver": "580.1", "numpy": "2.0"}
STEP = "def build(device):\n    return device\n"


@dataclass
class Stored:
    """The part of a Source that is looked at."""

    fingerprint: str = "a" * 64

    def __len__(self) -> int:
        return 1000


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Check a config that fits, with the given changes; the warnings of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mystep.py").write_text(f"import nowhere_to_be_found\n\n\n{STEP}")
    present = dict(VERSIONS)
    monkeypatch.setattr("wellfed.pipeline.loader.tuned.versions", lambda: present)

    def run(*, machine: dict[str, Any] | None = None, was: dict[str, str] | None = None, **now: Any) -> list[str]:
        tuned = TunedConfig(
            settings=LoaderSettings(),
            verdict="passed",
            dataset={"fingerprint": "a" * 64, "samples": 1000},
            machine=MACHINE,
            step={
                "name": "mystep:build",
                "device": now.pop("measured_on", "cuda:0"),
                "image_size": 224,
                "source_sha256": hashlib.sha256(STEP.rstrip().encode()).hexdigest(),
            },
            versions={**VERSIONS, **(was or {})},
            measured={},
        )
        arguments = {"source": Stored(), "image_size": 224, "device": "cuda", **now}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_tuned(tuned, machine={**MACHINE, **(machine or {})}, **arguments)
        return [str(warning.message) for warning in caught]

    return run


def test_where_nothing_differs_nothing_is_said(check: Callable[..., list[str]]) -> None:
    assert check() == []
    assert check(source=None, image_size=None, device=None) == []
    # numpy does not decide the speed
    assert check(was={"numpy": "1.0"}) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"source": Stored("b" * 64)},
            "dataset fingerprint aaaaaaaaaaaa (1000 samples) then, bbbbbbbbbbbb (1000 samples) now",
        ),
        ({"image_size": 160}, "image_size 224 then, 160 now"),
        ({"machine": {"usable_cores": 8}}, "usable_cores 16 then, 8 now"),
        ({"machine": {"memory_gib": 64}}, "memory_gib 128 then, 64 now"),
        ({"machine": {"cpu_model": "Another"}}, "cpu_model 'A Processor' then, 'Another' now"),
        ({"machine": {"gpus": []}}, "gpus NVIDIA H200 (140 GiB) then, none now"),
        (
            {"machine": {"gpus": [{"name": "NVIDIA A100", "memory_gib": 80}]}},
            "gpus NVIDIA H200 (140 GiB) then, NVIDIA A100 (80 GiB) now",
        ),
    ],
)
def test_another_dataset_size_or_machine_is_refused(
    check: Callable[..., list[str]], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(TunedConfigMismatchError) as caught:
        check(**change)
    # then this difference is named, and no other
    assert f"it was found on; got {message}. Run wellfed tune here" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"was": {"torch": "2.8.0"}}, "torch 2.8.0 then, 2.9.0 now"),
        ({"was": {"wellfed": "0.9"}}, "wellfed 0.9 then, 1.0 now"),
        ({"was": {"nvidia-dali-cuda120": "1.49"}}, "nvidia-dali-cuda120 1.49 then, 1.50 now"),
        ({"was": {"nvidia-dali-cuda130": "1.49"}}, "nvidia-dali-cuda130 1.49 then, not there now"),
        ({"was": {"NVIDIA driver": "570.2"}}, "NVIDIA driver 570.2 then, 580.1 now"),
        ({"measured_on": "simulated"}, "device simulated then, cuda now"),
    ],
)
def test_other_software_or_a_simulated_device_is_a_warning(
    check: Callable[..., list[str]], change: dict[str, Any], message: str
) -> None:
    (said,) = check(**change)
    assert said == f"a tuned config may no longer be the best: {message}. Run wellfed tune again to know."


def test_a_step_that_was_edited_is_a_warning(check: Callable[..., list[str]], tmp_path: Path) -> None:
    # what stands around the function is not the step
    (tmp_path / "mystep.py").write_text(f"LEARNING_RATE = 3\n{STEP}print('more')\n")
    assert check() == []
    (tmp_path / "mystep.py").write_text(STEP.replace("return device", "return device, 2"))
    (said,) = check()
    assert "the source of the step mystep:build was " in said
    # and where it is not found, nothing can be said
    (tmp_path / "mystep.py").unlink()
    assert check() == []


def test_the_source_of_a_step_is_found_without_running_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts" / "deep").mkdir(parents=True)
    (tmp_path / "parts" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "parts" / "deep" / "steps.py").write_text(
        "class Steps:\n    @staticmethod\n    def build():\n        return 1\n\nbuild = Steps.build\n"
    )
    expected = hashlib.sha256(b"@staticmethod\ndef build():\n    return 1").hexdigest()
    assert step_source_sha256("parts.deep.steps:Steps.build") == expected
    for unknown in ("resnet50", "parts.deep.steps:build", "parts.other:build", "posix:stat", "parts.deep.steps.more:x"):
        assert step_source_sha256(unknown) is None


def test_versions_name_the_driver_where_there_is_one(fake_nvml: Any) -> None:
    assert versions(nvml=fake_nvml)["NVIDIA driver"] == "580.95.05"
    fake_nvml.init_error = fake_nvml.NVMLError("no driver")
    assert "NVIDIA driver" not in versions(nvml=fake_nvml)
    assert versions(nvml=fake_nvml)["torch"].startswith("2.")
