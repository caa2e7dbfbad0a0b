"""Planted bottlenecks are named by the verdict; and where none is planted, none is."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Load = Callable[[str], Any]


def test_every_planted_cause_is_named_with_two_seeds(run_options: dict[str, Any], tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.planted", "--output", str(tmp_path / "out.json"), "--seeds", "2"],
        **{**run_options, "check": False},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert len(runs) == 20
    assert {one["cause"] for one in runs if one["named"]} == {one["cause"] for one in runs}
    assert "| slow storage | 2 of 2 | data_limited | storage |" in run.stdout


def test_a_verdict_on_another_cause_is_no_match(load: Load) -> None:
    causes, simulated = load("planted.causes"), load("planted.simulated")
    by_name = causes.BY_NAME
    # given a machine with enough cores, asked about as if it had too few
    wrong = dataclasses.replace(by_name["too few cores"], plant=by_name["nothing"].plant)
    found = simulated.tune_simulated(wrong, 0)
    assert found["named"] is False
    assert found["verdict"]["name"] == "passed"


def test_a_seed_settles_everything(load: Load) -> None:
    causes, simulated = load("planted.causes"), load("planted.simulated")
    cause = causes.BY_NAME["stragglers"]
    assert simulated.tune_simulated(cause, 3) == simulated.tune_simulated(cause, 3)


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_workers_of_the_virtual_loader_are_as_fast_as_their_cores(load: Load, backend: Any) -> None:
    pipeline = load("planted.pipeline")
    import numpy as np

    from wellfed.pipeline.config import LoaderSettings

    # given 10 ms a sample and nothing else, 4 workers on 4 cores
    plant = pipeline.Plant(cores=4, decode_seconds=0.010, read_seconds=0.0, gil_share=0.0, storage_rate=1e9)
    clock = pipeline.Clock()
    settings = LoaderSettings(backend=backend, num_workers=4, batch_size=16)
    batches = pipeline.Batches(plant, settings, 16, 224, clock, np.random.default_rng(0))
    for _ in range(20):
        next(batches)
    started = clock()
    for _ in range(100):
        next(batches)
    # then 1,600 samples at 400 a second
    assert clock() - started == pytest.approx(4.0, rel=0.03)
