"""The real rig, small: images from Pillow, the simulated device, a budget of seconds."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from wellfed.pipeline.config import LoaderSettings, TunedConfig, TuneRequest
from wellfed.pipeline.errors import ConfigError, ResourceError, TunedConfigMismatchError
from wellfed.pipeline.hardware.nvml import GpuProcess
from wellfed.pipeline.report import validate_report
from wellfed.pipeline.training.sharing import Sharers
from wellfed.pipeline.training.simulated import SimulatedAccelerator
from wellfed.pipeline.tune import run_bench, run_tune


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (root / label).mkdir()
        for number in range(12):
            pixels = draw.integers(0, 255, (40, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / label / f"{number}.jpg", quality=80)
    return root


def leftovers() -> list[str]:
    """Living workers and threads of ours; the two servers that multiprocessing keeps for itself are none of them."""
    this = psutil.Process()
    found = [t.name for t in threading.enumerate() if t.name.startswith("wellfed")]
    for child in this.children(recursive=True):
        if child.status() == psutil.STATUS_ZOMBIE:  # ended, and not yet collected by its server
            continue
        line = " ".join(child.cmdline())
        server = child.ppid() == this.pid and ("forkserver" in line or "resource_tracker" in line)
        if not server:
            found.append(line)
    return found


def test_a_small_tune_ends_with_a_valid_report_and_leaves_nothing(folder: Path) -> None:
    seen: list[float] = []
    request = TuneRequest(
        data=str(folder),
        step="resnet50",
        device="simulated",
        budget_seconds=6,
        hold_seconds=1.5,
        batch_sizes=(16,),
        image_size=64,
    )
    outcome = run_tune(request, progress=lambda message, share: seen.append(share))
    report = outcome.report
    validate_report(report)
    assert outcome.verdict == report["verdict"]["name"] == outcome.tuned.verdict
    assert outcome.tuned.settings.batch_size == 16
    assert outcome.tuned.dataset["samples"] == 24
    # 200 batches of 16 from 24 samples: 3,200 / 24 rounded up
    assert report["dataset"]["repeated_times"] == 134
    assert {t["role"] for t in report["trials"]} == {"candidate", "stock"}
    assert report["device"]["simulated"] is True
    assert report["hold"]["epochs_crossed"] >= 1
    assert report["hold"]["seconds"] >= 1.5
    assert report["memory"]["chosen_probed"] is True
    assert outcome.tuned.measured["probe_bytes"] == report["memory"]["probes"][0]["peak_bytes"] > 0
    assert seen[-1] == 1.0
    assert leftovers() == []


def test_bench_measures_settings_beside_stock_torch(folder: Path) -> None:
    settings = LoaderSettings(backend="threads", num_workers=1, batch_size=16)
    report = run_bench(
        str(folder), "resnet50", "simulated", settings=settings, against_torch=True, seconds_per_round=0.1
    )
    validate_report(report)
    assert report["kind"] == "bench"
    assert [t["role"] for t in report["trials"]] == ["candidate", "stock"]
    assert all(len(t["rounds"]) == 5 for t in report["trials"])
    assert report["hold"] is None
    assert report["comparisons"][0]["rounds"] == 5


def test_bench_takes_an_image_size_and_a_tuned_config_keeps_its_own(folder: Path) -> None:
    settings = LoaderSettings(backend="threads", num_workers=1, batch_size=16)
    report = run_bench(str(folder), "resnet50", "simulated", settings=settings, image_size=48, seconds_per_round=0.05)
    assert report["request"]["image_size"] == 48
    with pytest.raises(ConfigError, match=r"image_size must be between 8 and 4096; got 4\."):
        run_bench(str(folder), "resnet50", "simulated", settings=settings, image_size=4)

    step = {"name": "resnet50", "device": "simulated", "image_size": 32}
    dataset = {"fingerprint": "ab", "samples": 24}
    tuned = TunedConfig(
        settings=settings, verdict="passed", dataset=dataset, machine={}, step=step, versions={}, measured={}
    )
    with pytest.raises(TunedConfigMismatchError, match="is for images of 32 pixels; got image size 48"):
        run_bench(str(folder), "resnet50", "simulated", settings=tuned, image_size=48)


def test_bench_refuses_a_device_that_others_use_unless_allowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a program of somebody else's with 3 GiB on the card
    others = Sharers(processes=(GpuProcess(1 << 30, 3 << 30),))
    monkeypatch.setattr(SimulatedAccelerator, "sharers", lambda self: others)
    settings = LoaderSettings(backend="threads", num_workers=1, batch_size=16)
    with pytest.raises(ResourceError, match=f"process {1 << 30} with 3072 MiB.*--allow-shared-gpu"):
        run_bench(str(folder), "resnet50", "simulated", settings=settings)
    report = run_bench(
        str(folder), "resnet50", "simulated", settings=settings, seconds_per_round=0.05, allow_shared_gpu=True
    )
    assert f"The device was shared with process {1 << 30} with 3072 MiB" in " ".join(report["verdict"]["advice"])
    assert report["request"]["allow_shared_gpu"] is True


@pytest.mark.parametrize(("at", "found"), [("round 1", False), ("round 2", True)])
def test_an_interrupt_closes_workers_and_gives_what_there_is(folder: Path, at: str, found: bool) -> None:
    def stop(message: str, share: float) -> None:
        if message.startswith(at):
            raise KeyboardInterrupt

    request = TuneRequest(
        data=str(folder), step="resnet50", device="simulated", budget_seconds=10, batch_sizes=(16,), image_size=64
    )
    if found:
        outcome = run_tune(request, progress=stop)
        validate_report(outcome.report)
        assert outcome.interrupted
        assert outcome.report["interrupted"] is True
        assert outcome.report["hold"] is None
        assert any(
            "Interrupted in the search: the best of 1 round " in line for line in outcome.report["verdict"]["advice"]
        )
        assert outcome.tuned.settings.batch_size == 16
        assert outcome.verdict == outcome.tuned.verdict
    else:
        with pytest.raises(KeyboardInterrupt):
            run_tune(request, progress=stop)
    assert leftovers() == []
