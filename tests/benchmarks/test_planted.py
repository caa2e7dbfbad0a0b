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


@pytest.fixture
def dataset(photos: Path, tmp_path: Path) -> Any:
    """Four photos, converted."""
    from wellfed.converters.run import convert

    convert(photos, tmp_path / "wds", output="webdataset")
    return str(tmp_path / "wds")


def test_a_slow_disk_is_shared_by_its_readers_and_gives_the_same_bytes(load: Load, dataset: str) -> None:
    import numpy as np

    from wellfed.pipeline.formats import open_source
    from wellfed.pipeline.formats.reading import read_rows, stretches_of

    clock = load("planted.pipeline").Clock()
    slow = load("planted.wrappers").SlowStorage(dataset, 10.0, clock=clock, sleep=clock.sleep)
    plain = open_source(dataset)
    rows = np.arange(4)
    try:
        # given 10 samples/s: one read takes 0.1 s, and four in one go 0.4 s more
        assert slow.read(2) == plain.read(2)
        assert clock() == pytest.approx(0.1)
        assert [bytes(one) for one in read_rows(slow, rows)] == [plain.read(row) for row in range(4)]
        assert clock() == pytest.approx(0.5)
        # a disk that nobody reads from saves nothing up
        clock.sleep(10.0)
        slow.read(0)
        assert clock() == pytest.approx(10.6)
        # and nobody reads past it
        assert stretches_of(slow, rows) is None
    finally:
        slow.close()
        plain.close()


def test_a_slow_copy_is_waited_for_once_a_batch(load: Load) -> None:
    import torch

    from wellfed.pipeline.training import open_accelerator

    accelerator: Any = open_accelerator("simulated")
    waits: list[float] = []
    load("planted.wrappers").slow_copy(accelerator, 80.0, sleep=waits.append)
    host = torch.zeros((8, 3, 4, 4), dtype=torch.uint8), torch.zeros(8, dtype=torch.int64)
    # given 8 samples at 80 a second
    resident = accelerator.copy(host)
    accelerator.copy(resident)
    accelerator.copy(host)
    assert waits == [0.1, 0.1]


@pytest.mark.parametrize(("burns", "least"), [("core", 0.02), ("interpreter", 0.02)])
def test_a_slow_transform_takes_its_time_of_a_core_and_changes_nothing(load: Load, burns: Any, least: float) -> None:
    import time

    transform = load("planted.wrappers").SlowTransform(least, burns)
    started = time.thread_time()
    image = object()
    assert transform(image, generator=None) is image
    assert time.thread_time() - started >= least


def test_one_photo_in_so_many_becomes_a_large_picture(load: Load, tmp_path: Path) -> None:
    from PIL import Image

    from wellfed.pipeline.demo.photolike import make_photolike

    photos = tmp_path / "photos"
    photos.mkdir()
    make_photolike(photos, count=10, classes=2)
    side = load("planted.wrappers").add_stragglers(photos, every=5, times=2.0)
    large = sorted(photos.rglob("*.png"))
    assert (len(large), len(list(photos.rglob("*.jpg")))) == (2, 8)
    assert [Image.open(path).size for path in large] == [(side, side)] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_what_is_planted_is_gone_afterwards(load: Load) -> None:
    import os

    from wellfed.pipeline.training.simulated import PRESETS
    from wellfed.pipeline.tune import run
    from wellfed.pipeline.tune.machine import loaders

    live, live_run = load("planted.live"), load("planted.live_run")
    before = loaders.make_loader, loaders.stock_loader, run.open_accelerator, dict(PRESETS), os.sched_getaffinity(0)
    with live_run.planted(live.Setup(copy_rate=10.0, transform_seconds=0.1, cores=1, samples_per_second=77.0)):
        assert len(os.sched_getaffinity(0)) == 1
        opened: Any = run.open_accelerator("simulated:planted")
        assert opened.preset.samples_per_second == 77.0
        assert loaders.make_loader is not before[0]
    assert before == (
        *(loaders.make_loader, loaders.stock_loader, run.open_accelerator),
        *(dict(PRESETS), os.sched_getaffinity(0)),
    )


def test_live_plants_bind_on_any_machine(load: Load) -> None:
    live = load("planted.live")
    assert len({cause.name for cause in live.LIVE if cause.device == "simulated"}) == 11
    assert set(live.live_causes("cuda")) == {"tiny memory cap", "launches", "slow copy"}
    for rate, cores in ((700.0, 2), (9000.0, 16)):
        setups = {name: cause.setup(rate, cores) for name, cause in live.live_causes("simulated").items()}
        needed = {name: 0.9 * setup.samples_per_second for name, setup in setups.items()}
        assert needed["nothing"] < rate
        assert setups["slow storage"].storage_rate < needed["slow storage"] < rate
        assert rate / cores * setups["too few cores"].cores < needed["too few cores"] < rate
        assert setups["slow copy"].copy_rate < needed["slow copy"] < rate
        decode = cores / rate
        slow = setups["slow transform"].transform_seconds
        assert cores / (decode + slow) < needed["slow transform"] < rate
        # threads take turns in it, processes do not
        python = setups["tiny /dev/shm"].transform_seconds
        assert 1 / python < needed["tiny /dev/shm"] < cores / (decode + python)


def test_a_cause_that_cannot_be_planted_here_is_absent_with_the_reason(load: Load) -> None:
    import dataclasses

    live, live_run = load("planted.live"), load("planted.live_run")
    cause = dataclasses.replace(live.live_causes("simulated")["too few cores"], least_cores=10_000)
    run = live_run.run_live(cause, {False: "nowhere"}, budget=1.0, hold=1.0, seed=0)
    assert run["absent"].startswith("it needs 10000 cores, and there are ")
    assert "| not run: it needs 10000 cores" in load("planted.__main__").live_table([run])


def test_live_runs_take_the_place_of_earlier_ones(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main: Any = load("planted.__main__")
    monkeypatch.setattr(main, "make_datasets", lambda photos, work, causes: {False: "", True: ""})
    monkeypatch.setattr(main, "run_live", lambda cause, *_, **__: {"cause": cause.name, "how": "", "failed": "it did"})
    out = tmp_path / "out.json"
    # a run that failed is no success
    assert main.main(["--live", "--output", str(out), "--cause", "huge step", "slow copy"]) == 1
    named = {"named": True, "verdict": {"name": "passed", "binds": None, "advice": [], "summary": "fine"}}
    monkeypatch.setattr(main, "run_live", lambda cause, *_, **__: {"cause": cause.name, "how": "", **named})
    assert main.main(["--live", "--output", str(out), "--cause", "launches", "slow copy"]) == 1
    runs = json.loads(out.read_text())["runs"]
    assert [(run["cause"], "named" in run) for run in runs] == [
        *(("launches", True), ("huge step", False), ("slow copy", True)),
    ]
    with pytest.raises(SystemExit, match="something else"):
        main.main(["--live", "--output", str(out), "--device", "cuda"])


@pytest.mark.long
@pytest.mark.timeout(280)
def test_a_cause_is_named_in_real_time(run_options: dict[str, Any], photos: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.planted", "--live", "--output", str(tmp_path / "out.json")]
    command += ["--photos", str(photos), "--cause", "launches", "--budget", "20", "--hold", "6"]
    run = subprocess.run(command, **{**run_options, "check": False}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    (one,) = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert (one["named"], one["verdict"]["binds"]) == (True, "launches")
    assert "| launches | a step that launches for 100 ms" in run.stdout
