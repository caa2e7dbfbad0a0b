"""The measured loop, on a clock that moves only when something takes time."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from wellfed.pipeline.errors import StepError, UsageError
from wellfed.pipeline.training import CachedBatches, DeviceWindow, measure, open_accelerator
from wellfed.pipeline.training.host_memory import HostMemory


class Device:
    """Only what the loop asks of an accelerator; it writes down what happened."""

    kind = "simulated"

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.events: list[str] = []

    def synchronize(self) -> None:
        self.events.append("synchronize")
        self.clock.sleep(0.25)

    def copy(self, batch: Any) -> Any:
        return batch

    def start_window(self) -> None:
        self.events.append("start")

    def end_window(self) -> DeviceWindow:
        self.events.append("end")
        return DeviceWindow(util_percent=None, util_reason="no GPU", peak_bytes=7, memory_reason=None)


def images(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(size, 3, 2, 2, dtype=torch.uint8), torch.zeros(size, dtype=torch.int64)


def feed(clock: Any, wait: float, sizes: Any) -> Any:
    for size in sizes:
        clock.sleep(wait)
        yield images(size)


def step_taking(clock: Any, seconds: float) -> Any:
    return lambda x, y: clock.sleep(seconds)


def test_waits_steps_and_rate_are_counted_between_two_synchronizations(virtual_clock: Any) -> None:
    device: Any = Device(virtual_clock)
    done: list[int] = []

    window = measure(
        step_taking(virtual_clock, 0.5),
        feed(virtual_clock, 0.25, [4] * 100),
        device,
        seconds=3.0,
        clock=virtual_clock,
        on_step=lambda steps, seconds: done.append(steps),
    )

    # A step takes .75 s; the fourth ends at 3.0. The last synchronization adds .25 s.
    assert (window.steps, window.samples, window.batch_size) == (4, 16, 4)
    assert window.wait_seconds == pytest.approx([0.25] * 4)
    assert window.step_seconds == pytest.approx([0.5] * 4)
    assert window.wall_seconds == pytest.approx(3.25)
    assert window.samples_per_second == pytest.approx(16 / 3.25)
    assert window.wait_share == pytest.approx(1 / 3.25)
    assert device.events == ["synchronize", "start", "synchronize", "end"]
    assert done == [1, 2, 3, 4]
    assert (window.util_percent, window.util_reason, window.peak_bytes) == (None, "no GPU", 7)
    assert not window.exhausted


def test_it_ends_after_max_steps_or_the_last_batch(virtual_clock: Any) -> None:
    step = step_taking(virtual_clock, 0.1)
    device: Any = Device(virtual_clock)

    bounded = measure(step, feed(virtual_clock, 0, [2] * 9), device, seconds=99, max_steps=3, clock=virtual_clock)
    assert (bounded.steps, bounded.exhausted) == (3, False)

    short = measure(step, feed(virtual_clock, 0, [2, 2, 1]), device, seconds=99, clock=virtual_clock)
    assert (short.steps, short.samples, short.batch_size, short.exhausted) == (3, 5, 2, True)


def test_what_says_whether_to_go_on_takes_the_place_of_time_and_is_no_waiting(virtual_clock: Any) -> None:
    asked: list[tuple[int, float]] = []

    def go_on(steps: int, elapsed: float) -> bool:
        asked.append((steps, elapsed))
        virtual_clock.sleep(1.0)
        return steps < 3

    window = measure(
        step_taking(virtual_clock, 0.5),
        feed(virtual_clock, 0.25, [4] * 100),
        Device(virtual_clock),  # type: ignore[arg-type]
        seconds=0.1,
        clock=virtual_clock,
        go_on=go_on,
    )

    assert window.steps == 3
    # a step takes 0.75 s, and each answer 1 s
    assert asked == [(1, 0.75), (2, 2.5), (3, 4.25)]
    assert window.wait_seconds == (0.25, 0.25, 0.25)


def test_at_least_one_step_is_run(virtual_clock: Any) -> None:
    device: Any = Device(virtual_clock)
    window = measure(
        step_taking(virtual_clock, 5), feed(virtual_clock, 9, [1, 1]), device, seconds=0.001, clock=virtual_clock
    )
    assert window.steps == 1


def test_no_batch_is_an_error_and_the_window_is_closed(virtual_clock: Any) -> None:
    device: Any = Device(virtual_clock)
    with pytest.raises(UsageError, match="at least one batch"):
        measure(step_taking(virtual_clock, 1), iter([]), device, seconds=1, clock=virtual_clock)
    assert device.events[-1] == "end"


def test_an_error_of_the_step_passes_and_the_window_is_closed(virtual_clock: Any) -> None:
    device: Any = Device(virtual_clock)

    def fails(x: Any, y: Any) -> None:
        raise StepError("the step must run")

    with pytest.raises(StepError):
        measure(fails, feed(virtual_clock, 0, [1]), device, seconds=1, clock=virtual_clock)  # type: ignore[arg-type]
    assert device.events[-1] == "end"


def test_dictionaries_of_fields_are_batches_too(virtual_clock: Any) -> None:
    device: Any = Device(virtual_clock)
    x, y = images(3)
    window = measure(
        step_taking(virtual_clock, 1), iter([{"image": x, "class": y}]), device, seconds=9, clock=virtual_clock
    )
    assert window.samples == 3


def test_a_window_is_json(virtual_clock: Any) -> None:
    device: Any = Device(virtual_clock)
    window = measure(step_taking(virtual_clock, 1), feed(virtual_clock, 1, [2]), device, seconds=9, clock=virtual_clock)
    data = json.loads(json.dumps(window.to_dict()))
    assert data["samples"] == 2
    assert data["wait_seconds"] == [1.0]
    assert data["samples_per_second"] == pytest.approx(2 / 2.25)
    assert data["util_percent"] is None


def test_host_memory_is_sampled_at_about_2_hz() -> None:
    memory = HostMemory()
    memory.start(10.0)
    for now in (10.1, 10.4, 10.6, 10.9, 11.2):
        memory.sample(now)

    assert memory.samples_seconds == pytest.approx([0.0, 0.6, 1.2])
    assert all(size > 2**20 for size in memory.samples_bytes)


def test_cached_batches_rotate_over_three_different_ones() -> None:
    device = open_accelerator("simulated")
    batches = CachedBatches(device, 20, 8, seed=1, num_classes=5)

    first = [next(batches) for _ in range(3)]
    again = next(batches)

    assert again[0] is first[0][0]
    assert not torch.equal(first[0][0], first[1][0])
    assert first[0][0].shape == (20, 3, 8, 8)
    assert first[0][0].dtype == torch.uint8
    assert first[0][0].is_contiguous(memory_format=torch.channels_last)
    assert first[0][1].dtype == torch.int64
    assert int(first[0][1].max()) < 5
    assert torch.equal(next(CachedBatches(device, 20, 8, seed=1, num_classes=5))[0], first[0][0])
    with pytest.raises(UsageError, match="at least 3"):
        CachedBatches(device, 2, 8, count=2)
