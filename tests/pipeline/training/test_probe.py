"""Probing memory in a child process that leaves nothing behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from wellfed.pipeline.training import StepSpec, probe_memory
from wellfed.pipeline.training import probe as probe_module
from wellfed.pipeline.training.simulated import CONTEXT_BYTES, MODELS

STEPS = """
import os, subprocess, sys, threading

def good():
    print("a line on standard output")
    return lambda images, labels: None

def bad():
    def step(images, labels):
        raise ValueError("no good")
    return step

def die():
    os._exit(3)

def hang():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    with open("pids.tmp", "w") as f:
        f.write(f"{os.getpid()} {child.pid}")
    os.rename("pids.tmp", "pids")
    threading.Event().wait()
"""


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "probed_steps.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spec(function: str) -> StepSpec:
    return StepSpec(name=f"probed_steps:{function}", image_size=8)


def test_a_reference_step_on_the_simulated_device_needs_no_child() -> None:
    model = MODELS["resnet50"]
    images = 3 * (16 * 3 * 224 * 224 + 16 * 8)

    probe = probe_memory(StepSpec(name="resnet50"), "simulated", 16, timeout_seconds=1)

    expected = CONTEXT_BYTES + 12 * model.parameters + 16 * model.sample_bytes + images
    assert (probe.peak_bytes, probe.out_of_memory, probe.error) == (expected, False, None)


def test_a_batch_that_does_not_fit_is_out_of_memory() -> None:
    probe = probe_memory(StepSpec(name="resnet50"), "simulated", 256, timeout_seconds=1)

    assert (probe.batch_size, probe.peak_bytes, probe.out_of_memory, probe.error) == (256, None, True, None)


def test_a_users_step_is_probed_in_a_child(steps: Path) -> None:
    probe = probe_memory(spec("good"), "simulated", 4, timeout_seconds=120)

    assert (probe.batch_size, probe.out_of_memory, probe.error) == (4, False, None)
    assert probe.peak_bytes is not None
    assert probe.peak_bytes > CONTEXT_BYTES


def test_a_step_that_raises_is_the_probes_error(steps: Path) -> None:
    probe = probe_memory(spec("bad"), "simulated", 4, timeout_seconds=120)

    assert (probe.peak_bytes, probe.out_of_memory) == (None, False)
    assert probe.error is not None
    assert "ValueError: no good" in probe.error


def test_a_child_that_dies_is_the_probes_error(steps: Path) -> None:
    probe = probe_memory(spec("die"), "simulated", 4, timeout_seconds=120)

    assert probe.error is not None
    assert "ended with code 3" in probe.error


def test_a_child_that_hangs_is_killed_with_what_it_started(steps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_wait = probe_module._wait

    def wait_until_it_hangs(child: Any, timeout_seconds: float) -> str | None:
        while not (steps / "pids").exists() and child.poll() is None:
            time.sleep(0.05)
        return real_wait(child, timeout_seconds)

    monkeypatch.setattr(probe_module, "_wait", wait_until_it_hangs)

    probe = probe_memory(spec("hang"), "simulated", 4, timeout_seconds=0.1)

    assert probe.error == "the probing process did not end within 0.1 s"
    pids = [int(pid) for pid in (steps / "pids").read_text().split()]
    assert len(pids) == 2
    for pid in pids:
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
