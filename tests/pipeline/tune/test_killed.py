"""`wellfed tune` ended from outside, at any moment: nothing runs on, and an interrupt says so by its exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from PIL import Image

from wellfed.pipeline.config import TunedConfig

STEP = """
def build(device, batch_size):
    import torch
    model = torch.nn.Conv2d(3, 8, 3, stride=2)
    def step(images, labels):
        loss = model(images.float() / 255).square().mean()
        loss.backward()
        return loss
    return step
"""

MOMENTS = [
    "device memory: probing",
    "the step on cached batches",
    "reading, copying, and the loader alone",
    "round 1 of",
    "round 2 of",
    "holding",
]
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
IN_CI = [(MOMENTS[0], signal.SIGTERM, "killed_step:build"), (MOMENTS[3], signal.SIGKILL, "resnet50")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = tmp_path / "images" / "one"
    images.mkdir(parents=True)
    for number in range(24):
        Image.new("RGB", (48, 40), (number, 0, 0)).save(images / f"{number}.jpg")
    (tmp_path / "killed_step.py").write_text(STEP)
    return tmp_path


def left(family: list[psutil.Process], seconds: float) -> list[list[str]]:
    """Command lines of those that still run after so many seconds."""
    _, alive = psutil.wait_procs(family, timeout=seconds)
    found = []
    for process in alive:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
        except psutil.NoSuchProcess:
            continue
    return found


def end_at(folder: Path, moment: str, number: int, delay: float, step: str = "killed_step:build") -> None:
    command = [sys.executable, "-c", "from wellfed.pipeline.cli.start import main as main; main()", "tune", "images"]
    command += ["--step", step, "--device", "simulated", "--image-size", "32", "--batch-sizes", "4,16"]
    command += ["--budget", "40s", "--hold", "20s"]
    tuner = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert tuner.stderr is not None
    shared = set(os.listdir("/dev/shm"))
    said = ""
    try:
        for line in tuner.stderr:
            said += line
            if moment in line:
                break
        else:
            pytest.fail(f"the tune ended before {moment!r}: {said}")
        reader = threading.Thread(target=tuner.stderr.read, daemon=True)
        reader.start()
        time.sleep(delay)
        family = psutil.Process(tuner.pid).children(recursive=True)
        tuner.send_signal(number)
        code = tuner.wait(60)
    finally:
        tuner.kill()

    # torch's workers look for their parent every five seconds.
    assert left(family, 20) == []
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert not [name for name in set(os.listdir("/dev/shm")) - shared if str(tuner.pid) in name]
    found = sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")
    if "tuned.json" in found and number != signal.SIGKILL:  # the best so far, where a whole round was over
        TunedConfig.from_dict(json.loads((folder / "tuned.json").read_text()), where="tuned.json")
        found.remove("tuned.json")
    assert found == ["images", "killed_step.py"]


@pytest.mark.parametrize(("moment", "number", "step"), IN_CI)
def test_a_tune_that_is_ended_leaves_nothing(folder: Path, moment: str, number: int, step: str) -> None:
    end_at(folder, moment, number, 0.3, step)


@pytest.mark.long
@pytest.mark.parametrize("delay", [0.0, 0.7, 1.9])
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_tune_that_is_ended_at_any_moment_leaves_nothing(
    folder: Path, moment: str, number: int, delay: float
) -> None:
    end_at(folder, moment, number, delay)
