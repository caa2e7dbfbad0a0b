"""`wellfed doctor`: facts and the three questions."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from wellfed.pipeline.cli import doctor as doctor_module
from wellfed.pipeline.cli.doctor import doctor
from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.training.learning_rate import advise_learning_rate
from wellfed.pipeline.training.watch import watch_gpus


def run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(doctor)
    return CliRunner().invoke(app, ["--seconds", "0.5", *arguments])


def no_gpu(monkeypatch: pytest.MonkeyPatch, fake_nvml: Any) -> None:
    fake_nvml.init_error = fake_nvml.NVMLError("NVML Shared Library Not Found")
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake_nvml)


def test_without_a_gpu_every_question_is_answered(monkeypatch: pytest.MonkeyPatch, fake_nvml: Any) -> None:
    no_gpu(monkeypatch, fake_nvml)

    result = run()

    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "usable cores" in text
    assert "How much device memory is free? Not measured: NVML cannot start: NVML Shared Library Not Found." in text
    assert "Is the GPU fed? Not measured: NVML cannot start" in text
    assert "Give --batch-size, --base-batch, --base-lr, --optimizer" in text


def test_json_is_one_document_on_stdout(monkeypatch: pytest.MonkeyPatch, fake_nvml: Any) -> None:
    no_gpu(monkeypatch, fake_nvml)

    document = json.loads(run("--json").stdout)

    assert document["schema"] == "wellfed-doctor"
    assert document["questions"]["device_memory_free"]["free_bytes"] is None
    assert document["questions"]["gpu_fed"]["reason"].startswith("NVML cannot start")
    assert document["versions"]["torch"]
    assert any(fact["name"] == "usable cores" and fact["value"] >= 1 for fact in document["facts"])


def test_with_a_gpu_memory_utilization_and_processes_are_named(monkeypatch: pytest.MonkeyPatch, fake_nvml: Any) -> None:
    fake_nvml.samples_error = fake_nvml.NVMLError("Not Supported")
    fake_nvml.compute = [(999_999_999, 10)]
    fake_nvml.total, fake_nvml.used = 80 * 2**30, 20 * 2**30
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake_nvml)

    text = " ".join(run().output.split())

    assert "gpu 0 (NVIDIA Fake): 60.0 GiB of 80.0 GiB are free" in text
    assert "gpu 0: GPU-Util 55% over 0.5 s, used by a process (pid 999999999): under 70%, so it waits" in text


def test_the_learning_rate_question(monkeypatch: pytest.MonkeyPatch, fake_nvml: Any) -> None:
    no_gpu(monkeypatch, fake_nvml)

    text = " ".join(
        run("--batch-size", "1024", "--base-batch", "256", "--base-lr", "0.1", "--optimizer", "sgd").output.split()
    )

    assert "learning rate 0.4 (linear rule, 4 times 0.1; Goyal et al. 2017" in text
    assert "in 5 to 10 epochs of warm-up" in text
    assert "must be watched on validation data" in text
    partial = " ".join(run("--batch-size", "1024", "--base-batch", "256").output.split())
    assert "Give --base-lr, --optimizer:" in partial


def test_a_wrong_optimizer_ends_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch, fake_nvml: Any) -> None:
    result = run("--batch-size", "8", "--base-batch", "8", "--base-lr", "0.1", "--optimizer", "lion")

    assert isinstance(result.exception, UsageError)


def test_square_root_for_adam_and_no_warm_up_for_a_smaller_batch() -> None:
    adam = advise_learning_rate(optimizer="adam", batch_size=1024, base_batch=256, base_learning_rate=0.001)
    assert (adam.learning_rate, adam.rule, adam.warmup_epochs) == (0.002, "square root", None)
    smaller = advise_learning_rate(optimizer="sgd", batch_size=64, base_batch=256, base_learning_rate=0.1)
    assert (smaller.learning_rate, smaller.warmup_epochs) == (0.025, None)
    with pytest.raises(UsageError, match="base rate must be positive"):
        advise_learning_rate(optimizer="sgd", batch_size=64, base_batch=256, base_learning_rate=float("nan"))


def test_watching_names_what_could_not_be_read(fake_nvml: Any) -> None:
    fake_nvml.mig = 1
    gpus, reason = watch_gpus(1.0, nvml=fake_nvml, sleep=lambda seconds: None)

    assert reason is None
    assert gpus[0]["util_percent"] is None
    assert gpus[0]["util_reason"] == "MIG is on, and NVML has no GPU-Util for an instance"
    assert "MIG" in doctor_module._fed_text(gpus[0], 1.0)
    fake_nvml.count = 0
    assert watch_gpus(1.0, nvml=fake_nvml) == ([], "the driver shows no GPU")
