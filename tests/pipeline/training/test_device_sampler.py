"""Utilization and memory of a window from a fake NVML; no thread ever samples here, the tests do."""

from __future__ import annotations

from typing import Any

import pytest

from wellfed.pipeline.hardware import open_nvml
from wellfed.pipeline.hardware.nvml import Reading
from wellfed.pipeline.training.device_sampler import DeviceSampler

OWN = 10


class Clock:
    def __init__(self) -> None:
        self.us = 1_000_000

    def __call__(self) -> int:
        return self.us


@pytest.fixture
def clock() -> Clock:
    return Clock()


def sampler_of(nvml: Any, clock: Clock, baseline: int | None = None) -> DeviceSampler:
    return DeviceSampler(
        open_nvml(nvml).value.devices()[0],
        own_pids=lambda: frozenset([OWN]),
        baseline_bytes=baseline,
        now_us=clock,
        period_seconds=3600,
    )


def test_the_mean_is_of_the_samples_inside_the_window(fake_nvml: Any, clock: Clock) -> None:
    fake_nvml.samples = [(700_000, 5), (900_000, 5)]
    sampler = sampler_of(fake_nvml, clock)
    sampler.start()
    # The first covers 0.9 s to 1.1 s, so it began before the window did; the last ends after it.
    fake_nvml.samples += [(1_100_000, 0), (1_300_000, 60), (1_500_000, 90), (2_500_000, 1)]
    clock.us = 2_000_000

    window = sampler.stop()

    assert (window.util_percent, window.util_samples, window.util_reason) == (75.0, (60.0, 90.0), None)
    assert window.util_source == "NVML GPU-Util sample buffer"


def test_a_short_window_takes_the_sample_that_ends_in_it(fake_nvml: Any, clock: Clock) -> None:
    fake_nvml.samples = [(900_000, 5)]
    sampler = sampler_of(fake_nvml, clock)
    sampler.start()
    fake_nvml.samples += [(1_100_000, 40)]
    clock.us = 1_150_000

    assert sampler.stop().util_samples == (40.0,)


def test_the_buffer_is_drained_before_it_wraps(fake_nvml: Any, clock: Clock) -> None:
    sampler = sampler_of(fake_nvml, clock)
    sampler.start()
    fake_nvml.samples = [(1_100_000, 10)]
    sampler.sample(drain=True)
    # The driver forgot the first.
    fake_nvml.samples = [(1_200_000, 30)]
    clock.us = 1_300_000

    assert sampler.stop().util_samples == (10.0, 30.0)


def test_polling_only_where_there_is_no_buffer_and_then_it_says_so(fake_nvml: Any, clock: Clock) -> None:
    fake_nvml.samples_error = fake_nvml.NVMLError("Not Supported")
    sampler = sampler_of(fake_nvml, clock)
    sampler.start()
    fake_nvml.rate = 65
    sampler.sample(drain=False)

    window = sampler.stop()

    assert window.util_samples == (55.0, 65.0, 65.0)
    assert window.util_source is not None
    assert "polled" in window.util_source
    assert "Not Supported" in window.util_source


def test_neither_buffer_nor_polling_is_none_with_the_reason(fake_nvml: Any, clock: Clock) -> None:
    fake_nvml.samples_error = fake_nvml.NVMLError("Not Supported")
    fake_nvml.rate_error = fake_nvml.NVMLError("Not Supported")
    sampler = sampler_of(fake_nvml, clock)
    sampler.start()

    window = sampler.stop()

    assert (window.util_percent, window.util_reason) == (None, "nvmlDeviceGetSamples: Not Supported")


def test_mig_is_none_with_the_reason(fake_nvml: Any, clock: Clock) -> None:
    fake_nvml.mig = 1
    sampler = sampler_of(fake_nvml, clock)
    sampler.start()

    window = sampler.stop()

    assert window.util_percent is None
    assert window.util_reason == "MIG is on, and NVML has no GPU-Util for an instance"
    assert window.peak_bytes == 1000


def test_an_error_in_mid_window_does_not_pass_for_the_whole(fake_nvml: Any, clock: Clock) -> None:
    sampler = sampler_of(fake_nvml, clock)
    sampler.start()
    fake_nvml.samples = [(1_100_000, 99)]
    sampler.sample(drain=True)
    fake_nvml.samples_error = fake_nvml.NVMLError("GPU is lost")
    fake_nvml.memory_error = fake_nvml.NVMLError("GPU is lost")
    clock.us = 2_000_000

    window = sampler.stop()

    assert window.util_percent is None
    assert window.util_reason == "NVML failed in mid-window: nvmlDeviceGetSamples: GPU is lost"
    assert window.util_samples == (99.0,)
    assert window.peak_bytes is None
    assert window.memory_reason == "nvmlDeviceGetMemoryInfo: GPU is lost"


def test_a_window_without_a_sample_is_none(fake_nvml: Any, clock: Clock) -> None:
    sampler = sampler_of(fake_nvml, clock)
    sampler.start()

    assert sampler.stop().util_reason == "the window is shorter than NVML's sampling period"


def test_without_nvml_memory_may_come_from_elsewhere(clock: Clock) -> None:
    sampler = DeviceSampler(
        None,
        device_reason="NVML cannot start: no driver",
        memory_used=lambda: Reading(700),
        memory_source="cudaMemGetInfo",
        own_pids=frozenset,
        baseline_bytes=None,
        now_us=clock,
        period_seconds=3600,
    )
    sampler.start()

    window = sampler.stop(torch_peak_reserved_bytes=500)

    assert (window.util_percent, window.util_reason) == (None, "NVML cannot start: no driver")
    assert (window.peak_bytes, window.torch_peak_reserved_bytes) == (700, 500)


def test_peak_is_less_other_processes_where_nvml_lists_them(fake_nvml: Any, clock: Clock) -> None:
    fake_nvml.compute = [(OWN, 600), (77, 300)]
    sampler = sampler_of(fake_nvml, clock, baseline=111)
    sampler.start()
    fake_nvml.used = 1500
    sampler.sample(drain=False)
    # The other process grows later: only then is more taken off.
    fake_nvml.compute = [(OWN, 600), (77, 900)]
    fake_nvml.used = 1700

    window = sampler.stop()

    assert window.memory_samples == (700, 1200, 800)
    assert (window.peak_bytes, window.other_process_bytes) == (1200, 900)


@pytest.mark.parametrize("compute", [[], [(77, 300)], [(OWN, None), (77, 300)], [(OWN, 600), (77, None)]], ids=str)
def test_where_processes_are_hidden_the_baseline_is_taken_off(
    fake_nvml: Any, clock: Clock, compute: list[tuple[int, int | None]]
) -> None:
    fake_nvml.compute = compute
    sampler = sampler_of(fake_nvml, clock, baseline=400)
    sampler.start()

    window = sampler.stop()

    assert (window.peak_bytes, window.other_process_bytes) == (600, 400)
    assert "before this process" in (window.memory_source or "")


def test_without_a_baseline_nothing_is_taken_off_and_it_says_so(fake_nvml: Any, clock: Clock) -> None:
    sampler = sampler_of(fake_nvml, clock)
    sampler.start()

    window = sampler.stop()

    assert (window.peak_bytes, window.other_process_bytes) == (1000, None)
    assert "of all processes" in (window.memory_source or "")


def test_the_thread_samples_and_ends(fake_nvml: Any) -> None:
    import threading

    seen = threading.Event()
    count = 0

    def used() -> Reading:
        nonlocal count
        count += 1
        if count == 5:
            seen.set()
        return Reading(count)

    sampler = DeviceSampler(None, memory_used=used, own_pids=frozenset, baseline_bytes=None, period_seconds=0.001)
    sampler.start()
    assert seen.wait(30)
    assert sampler.stop().peak_bytes == count
    assert not [t for t in threading.enumerate() if t.name == "wellfed-device-sampler"]
