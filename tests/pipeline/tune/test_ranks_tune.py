"""Whole tunes on two real ranks under torchrun: steps of DDP and FSDP2, and what goes wrong on one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wellfed.pipeline.report import validate_report

SCRIPT = Path(__file__).with_name("tune_on_ranks.py")


def torchrun(*arguments: object, cwd: Path, processes: int = 2) -> subprocess.CompletedProcess[str]:
    # Its time limit only keeps a run that hangs from holding up the tests.
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={processes}",
            *map(str, arguments),
        ],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ranks")
    (root / "photos" / "cat").mkdir(parents=True)
    draw = np.random.default_rng(0)
    for number in range(24):
        pixels = draw.integers(0, 255, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "photos" / "cat" / f"{number}.jpg")
    return root


@pytest.fixture(scope="module")
def ranks(photos: Path) -> list[dict[str, Any]]:
    """What each rank saw of each tune; see the script."""
    # The script's steps are imported from the folder that it is run in.
    script = photos / SCRIPT.name
    script.write_text(SCRIPT.read_text("utf-8"), "utf-8")
    done = torchrun(script, "photos", "out.json", cwd=photos)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads((photos / "out.json").read_text("utf-8"))
    assert len(found) == 2
    return found


@pytest.mark.parametrize("step", ["ddp", "full", "fsdp"])
def test_all_ranks_end_with_the_same_report_and_settings(ranks: list[dict[str, Any]], photos: Path, step: str) -> None:
    first, second = (rank[step] for rank in ranks)
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["report"] == second["report"]
    assert first["tuned"] == second["tuned"]
    report = first["report"]
    validate_report(report)
    assert report["tuned"]["settings"]["batch_size"] == 8
    assert report["ranks"]["world_size"] == 2
    assert report["ranks"]["global_batch"] == 16
    assert any("2 ranks together" in line and "global batch is 16" in line for line in report["verdict"]["advice"])
    # 0.1 at the base of 8 is 0.2 at a global batch of 16
    assert report["batch_advice"]["world_size"] == 2
    assert report["batch_advice"]["learning_rate"]["learning_rate"] == pytest.approx(0.2)
    # 200 batches of 8 on 2 ranks from 24 samples: 3,200 / 24 rounded up
    assert report["dataset"]["repeated_times"] == 134
    for window in report["hold"]["windows"]:
        assert [rank["rank"] for rank in window["ranks"]] == [0, 1]
    # and each rank loads its own batches with them
    assert first["loads"] == second["loads"] == [8, 3, 16, 16]


def test_a_process_group_is_left_as_it_was_found(ranks: list[dict[str, Any]]) -> None:
    assert [(rank["ddp"]["group"], rank["fsdp"]["group"]) for rank in ranks] == [(False, True)] * 2


def test_a_rank_that_runs_out_of_memory_within_a_collective_fails_that_batch_size_on_all(
    ranks: list[dict[str, Any]],
) -> None:
    for rank in (each["full"] for each in ranks):
        # 16 was tried, once more with the device to itself, and then only 8
        assert rank["built"].count(16) == 2
        assert rank["built"][-1] == 8
        assert [entry["batch_size"] for entry in rank["report"]["ceilings"]] == [8]


def test_a_step_that_raises_on_one_rank_ends_the_tune_on_all_with_the_same_error(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["wrong"] for rank in ranks)
    assert first == second
    assert first["error"] == "StepError"
    assert "at call 5; got ValueError: no good, on rank 1" in first["text"]


@pytest.mark.long
def test_the_command_writes_one_report_from_rank_0(photos: Path) -> None:
    script = photos / SCRIPT.name
    script.write_text(SCRIPT.read_text("utf-8"), "utf-8")
    done = torchrun(
        *("-m", "wellfed.pipeline", "tune", "photos", "--step", "tune_on_ranks:ddp", "--device", "simulated"),
        *("--budget", "4s", "--hold", "1s", "--batch-sizes", "8", "--image-size", "16", "--report", "report"),
        *("--output", "command.json"),
        cwd=photos,
    )
    # The step is all launches, so the verdict is not `passed`: rank 0 ends with 4, and torchrun with 1.
    assert "exitcode  : 4" in done.stderr
    assert "rank      : 0" in done.stderr
    assert done.stdout.count("Tuned config: command.json") == 1
    assert json.loads((photos / "command.json").read_text("utf-8"))["settings"]["batch_size"] == 8
    report = json.loads((photos / "report" / "report.json").read_text("utf-8"))
    validate_report(report)
    assert report["ranks"]["world_size"] == 2
    assert report["memory"]["probes"][0]["error"] is None


@pytest.mark.long
def test_a_step_of_ddp_is_measured_also_in_the_only_process_of_a_launcher(photos: Path) -> None:
    (photos / SCRIPT.name).write_text(SCRIPT.read_text("utf-8"), "utf-8")
    command = (
        *("-m", "wellfed.pipeline", "tune", "photos", "--step", "tune_on_ranks:ddp", "--device", "simulated"),
        *("--budget", "4s", "--hold", "1s", "--batch-sizes", "8", "--image-size", "16", "--report", "alone"),
        *("--output", "alone.json"),
    )
    done = torchrun(*command, cwd=photos, processes=1)
    assert done.stdout.count("Tuned config: alone.json") == 1, done.stderr
    report = json.loads((photos / "alone" / "report.json").read_text("utf-8"))
    validate_report(report)
    assert "ranks" not in report
    assert report["memory"]["probes"][0]["error"] is None
    # without a launcher there is no group, and the error says how to come to one
    done = subprocess.run(
        [sys.executable, *command], cwd=photos, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 1
    assert "process group has not been initialized" in done.stderr
    assert "Start with torchrun, as `torchrun --standalone --nproc-per-node 1" in done.stderr
