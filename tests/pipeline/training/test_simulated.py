"""The simulated accelerator behaves as a device does."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from wellfed.pipeline.errors import DeviceError
from wellfed.pipeline.training import StepSpec, build_step, measure, open_accelerator
from wellfed.pipeline.training.simulated import CONTEXT_BYTES, MODELS, Preset, SimulatedAccelerator

CARD = Preset(name="card", label="test card", samples_per_second=100.0, memory_bytes=10 * 2**30, launch_seconds=0.1)


@pytest.fixture
def card(virtual_clock: Any) -> SimulatedAccelerator:
    return SimulatedAccelerator(CARD, clock=virtual_clock, sleep=virtual_clock.sleep)


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(size, 3, 4, 4, dtype=torch.uint8), torch.zeros(size, dtype=torch.int64)


def endless(size: int) -> Any:
    while True:
        yield batch(size)


def test_a_step_returns_after_its_launch_time_and_synchronize_waits_for_its_work(
    card: SimulatedAccelerator, virtual_clock: Any
) -> None:
    step = build_step(StepSpec(name="resnet50"), card, 50)

    step(*batch(50))
    assert virtual_clock.now == pytest.approx(0.1)

    card.synchronize()
    # 50 samples at 100 a second, begun when the launch was done.
    assert virtual_clock.now == pytest.approx(0.6)


def test_the_launcher_waits_once_the_queue_is_full(card: SimulatedAccelerator, virtual_clock: Any) -> None:
    step = build_step(StepSpec(name="resnet50"), card, 50)
    returned = []
    for _ in range(4):
        step(*batch(50))
        returned.append(round(virtual_clock.now, 6))

    # Work ends at .6, 1.1, 1.6: two steps may be queued, so the third returns when the first is done.
    assert returned == [0.1, 0.2, 0.6, 1.1]


def test_small_batches_are_launch_bound_and_large_ones_keep_the_device_busy(
    card: SimulatedAccelerator, virtual_clock: Any
) -> None:
    def window(size: int) -> Any:
        step = build_step(StepSpec(name="resnet50"), card, size)
        return measure(step, endless(size), card, seconds=50.0, clock=virtual_clock)

    small, large = window(5), window(100)

    # 0.05 s of work for each 0.1 s of launching; then 1 s of work for each.
    assert small.util_percent == pytest.approx(50, abs=1)
    assert small.samples_per_second == pytest.approx(50, abs=1)
    assert large.util_percent == pytest.approx(100, abs=1)
    assert large.samples_per_second == pytest.approx(100, abs=1)


def test_a_starved_device_is_idle_while_the_loop_waits(card: SimulatedAccelerator, virtual_clock: Any) -> None:
    def slow() -> Any:
        while True:
            virtual_clock.sleep(1.9)
            yield batch(100)

    step = build_step(StepSpec(name="resnet50"), card, 100)
    window = measure(step, slow(), card, seconds=60.0, clock=virtual_clock)

    # Every 2 s: 1.9 s waiting, 0.1 s launching, 1 s of work.
    assert window.util_percent == pytest.approx(50, abs=2)
    assert window.wait_share == pytest.approx(0.95, abs=0.03)
    assert window.util_samples[0] == 0.0
    assert max(window.util_samples) == 100.0


def test_memory_is_weights_activations_and_live_batches(card: SimulatedAccelerator, virtual_clock: Any) -> None:
    before = card.used_bytes
    assert before == CONTEXT_BYTES
    step = build_step(StepSpec(name="resnet50"), card, 8)
    weights = MODELS["resnet50"].parameters * 12
    assert card.used_bytes == before + weights

    held = [card.copy(batch(8)) for _ in range(2)]
    batch_bytes = 8 * 48 + 8 * 8
    assert card.used_bytes == before + weights + 2 * batch_bytes

    card.start_window()
    step(*held[0])
    window = card.end_window()
    assert window.peak_bytes == before + weights + 2 * batch_bytes + 8 * MODELS["resnet50"].sample_bytes
    assert window.memory_reason is None

    del held, step
    gc.collect()
    assert card.used_bytes == before


def test_a_batch_already_on_the_device_is_counted_once(card: SimulatedAccelerator) -> None:
    once = card.copy(batch(8))
    used = card.used_bytes
    again = card.copy(once)
    assert again[0] is once[0]
    assert card.used_bytes == used
    as_dictionary = card.copy({"image": once[0], "class": once[1], "note": "kept"})
    assert as_dictionary["note"] == "kept"
    assert card.used_bytes == used


def test_memory_runs_out_as_torch_says_it_and_the_device_goes_on(card: SimulatedAccelerator) -> None:
    step = build_step(StepSpec(name="resnet50"), card, 1000)
    used = card.used_bytes
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        step(*batch(1000))
    assert card.used_bytes == used
    step(*batch(10))


def test_larger_images_take_more_time_and_memory(card: SimulatedAccelerator, virtual_clock: Any) -> None:
    step = build_step(StepSpec(name="resnet50", image_size=448), card, 10)
    card.start_window()
    step(*batch(10))
    card.synchronize()
    assert virtual_clock.now == pytest.approx(0.1 + 4 * 0.1)
    weights = CONTEXT_BYTES + 12 * MODELS["resnet50"].parameters
    assert card.end_window().peak_bytes == weights + 4 * 10 * MODELS["resnet50"].sample_bytes


def test_a_users_step_runs_on_the_cpu_and_takes_resnet50s_device_time(
    card: SimulatedAccelerator, virtual_clock: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_simulated_step.py").write_text(
        "def build(device, batch_size):\n"
        "    assert (device, batch_size) == ('cpu', 50)\n"
        "    def step(images, labels):\n"
        "        return float(images.sum())\n"
        "    step.model = 'the model'\n"
        "    return step\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    step = build_step(StepSpec(name="own_simulated_step:build"), card, 50)

    assert step(*batch(50)) == 0.0
    assert step.model == "the model"
    card.synchronize()
    assert virtual_clock.now == pytest.approx(0.5)


def test_presets_by_name() -> None:
    small, large = open_accelerator("simulated"), open_accelerator("simulated:h200")
    assert (small.kind, small.name, small.torch_device) == ("simulated", "simulated", "cpu")
    assert small.memory_total_bytes == 8 * 2**30
    assert small.description["resnet50_samples_per_second"] == 600.0
    assert (large.name, large.memory_total_bytes) == ("simulated:h200", 141_000_000_000)
    assert large.description["resnet50_samples_per_second"] == 4600.0
    assert large.description["simulated"] is True


@pytest.mark.parametrize("device", ["tpu", "simulated:", "simulated:a100", "", "cpu", "cuda:x"])
def test_unknown_devices_are_refused(device: str) -> None:
    with pytest.raises(DeviceError):
        open_accelerator(device)


def test_resnet18_is_faster_by_the_measured_ratio(card: SimulatedAccelerator, virtual_clock: Any) -> None:
    step = build_step(StepSpec(name="resnet18"), card, 127)
    step(*batch(127))
    launched = virtual_clock.now
    card.synchronize()
    assert virtual_clock.now - launched == pytest.approx(1.27 * 4.65 / 12.7)
