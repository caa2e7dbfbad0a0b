"""Every verdict on a card that only NVML sees: a fake NVML over the simulated device, real windows, a virtual clock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wellfed.pipeline.config import LoaderSettings, TuneRequest
from wellfed.pipeline.hardware.nvml import open_nvml
from wellfed.pipeline.training import StepSpec, Window, build_step, measure, probe_memory
from wellfed.pipeline.training.device_sampler import DeviceSampler
from wellfed.pipeline.training.host_memory import HostMemory
from wellfed.pipeline.training.simulated import PRESETS, SimulatedAccelerator
from wellfed.pipeline.training.variants import Variant
from wellfed.pipeline.tune.driver import Device, Driver
from wellfed.pipeline.tune.model.space import Limits
from wellfed.pipeline.tune.rig import Cache, Order, Supply, Trial, UnmeasuredError

SAMPLE_US = 200_000
OWN_PID, OTHER_PID = 4242, 77
STOCK_PACE = 150.0
"""Samples/s of one thread with Pillow."""


class SteadyMemory(HostMemory):
    """Host memory that does not depend on what else the tests do."""

    def _list_processes(self, now: float) -> None:
        self._listed_at = now

    def _take(self, now: float) -> None:
        self.samples_bytes.append(10**9)
        self.samples_seconds.append(now - self._started)
        self._sampled_at = now


class Card(SimulatedAccelerator):
    """The simulated device, whose utilization and memory nobody knows but the fake NVML."""

    def __init__(self, nvml: Any, clock: Any, *, launch_seconds: float, others_bytes: int = 0) -> None:
        base = PRESETS["simulated"]
        preset = type(base)(
            name="simulated",
            label=base.label,
            samples_per_second=base.samples_per_second,
            memory_bytes=base.memory_bytes,
            launch_seconds=launch_seconds,
        )
        super().__init__(preset, clock, clock.sleep)
        self.busy: list[tuple[float, float]] = []
        self.least_percent = 0  # other kernels than the step's keep the card that busy
        nvml.compute = [(OWN_PID, 1), (OTHER_PID, others_bytes)]
        nvml.nvmlDeviceGetSamples = self._samples
        # What torch's allocator keeps stays in use until it is given back.
        nvml.nvmlDeviceGetMemoryInfo = lambda handle, version=None: SimpleNamespace(
            total=self.memory_total_bytes, used=self._window_peak + others_bytes, free=0
        )
        self._module = nvml
        opened = open_nvml(nvml)
        self._sampler = DeviceSampler(
            None if opened.value is None else opened.value.devices()[0],
            device_reason=opened.reason,
            own_pids=lambda: frozenset([OWN_PID]),
            baseline_bytes=0,
            now_us=lambda: int(self._clock() * 1e6),
        )

    def enqueue(self, seconds: float) -> None:
        super().enqueue(seconds)
        self.busy.append((self._busy_until - seconds, self._busy_until))

    def _samples(self, handle: str, kind: int, since_us: int) -> Any:
        """The driver's buffer: whole percentages of each fifth of a second."""
        if self._module.mig:
            raise self._module.NVMLError("Not Supported")
        now, found = int(self._clock() * 1e6), []
        first = max(since_us, now - 3_000_000) // SAMPLE_US + 1
        for end in range(first * SAMPLE_US, now + 1, SAMPLE_US):
            low, high = (end - SAMPLE_US) / 1e6, end / 1e6
            # The sampling thread reads while steps are queued: a slice is taken at once.
            busy = sum(max(0.0, min(b, high) - max(a, low)) for a, b in self.busy[-200:])
            percent = max(self.least_percent, round(100 * busy / (high - low)))
            found.append(SimpleNamespace(timeStamp=end, sampleValue=SimpleNamespace(uiVal=percent)))
        if not found:
            raise self._module.NVMLError_NotFound("Not Found")
        return self._module.NVML_VALUE_TYPE_UNSIGNED_INT, found

    def start_window(self) -> None:
        self._sampler.start()

    def end_window(self) -> Any:
        return self._sampler.stop()


class Feed:
    """A loader of a fixed pace that works ahead by two batches."""

    def __init__(self, clock: Any, batch_size: int, pace: float, left: float) -> None:
        self.epochs_crossed = 0
        self._clock, self._batch_size, self._period, self._left = clock, batch_size, batch_size / pace, left
        self._ready = clock() + self._period
        self._batch = batch_of(batch_size)

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Any:
        now = self._clock()
        self._ready = max(self._ready, now - 2 * self._period)
        if self._ready > now:
            self._clock.sleep(self._ready - now)
        self._ready += self._period
        self._left -= self._batch_size
        if self._left < 0:
            self.epochs_crossed += 1
            self._left += 200 * self._batch_size
        return self._batch


def batch_of(size: int) -> Any:
    return torch.zeros(size, 3, 2, 2, dtype=torch.uint8), torch.zeros(size, dtype=torch.int64)


class NvmlRig:
    """Real steps, windows and samplers; loaders are paces."""

    def __init__(self, card: Card, clock: Any, pace: Any) -> None:
        self.card, self._clock, self.pace = card, clock, pace
        self.spec = StepSpec(name="resnet50")
        self.steps: dict[int, Any] = {}
        self.feeds: dict[str, Feed] = {}

    def clock(self) -> float:
        return float(self._clock())

    def compiling_seconds(self) -> float:
        return 0.0

    def probe(self, batch_size: int, settings: LoaderSettings | None = None) -> Any:
        return probe_memory(self.spec, "simulated", batch_size, timeout_seconds=1)

    def measured(self, batch_size: int, batches: Iterator[Any], seconds: float) -> Window:
        if batch_size not in self.steps:
            self.steps = {batch_size: build_step(self.spec, self.card, batch_size)}
            self.card.reset_peak()
        step = self.steps[batch_size]
        return measure(step, batches, self.card, seconds=seconds, clock=self._clock, host_memory=SteadyMemory())

    def ceiling(self, batch_size: int, seconds: float) -> Window:
        batch = self.card.copy(batch_of(batch_size))
        return self.measured(batch_size, iter(lambda: batch, None), seconds)

    def fed(self, trial: Trial, seconds: float) -> Window:
        pace = STOCK_PACE if trial.settings is None else self.pace(trial.settings)
        feed = self.feeds.setdefault(trial.id, Feed(self._clock, trial.batch_size, pace, 1e9))
        return self.measured(trial.batch_size, feed, seconds)

    def drop(self, trial: Trial) -> None:
        self.feeds.pop(trial.id, None)

    def release_device(self) -> None:
        self.feeds.clear()
        self.steps.clear()
        self.card.reset_peak()

    def beside(self, settings: LoaderSettings, every: int, seconds: float) -> Window:
        raise AssertionError("no backend here decodes on the device")

    def supplied(self, settings: LoaderSettings, supply: Supply, seconds: float) -> Window:
        if supply == "storage":
            raise UnmeasuredError("these loaders are paces")
        return self.measured(
            settings.batch_size, Feed(self._clock, settings.batch_size, self.pace(settings), 1e9), seconds
        )

    def loader_alone(self, settings: LoaderSettings, seconds: float) -> float:
        self._clock.sleep(seconds)
        return float(self.pace(settings))

    def stock_alone(self, batch_size: int, seconds: float) -> float:
        self._clock.sleep(seconds)
        return STOCK_PACE

    def read_rate(self, seconds: float) -> float:
        return 10_000.0

    def reads(self, order: Order, cache: Cache, seconds: float) -> float:
        return 10_000.0

    def parallel_read_rate(self, readers: int, seconds: float) -> float:
        return 10_000.0 * readers

    def sample_seconds(self, seconds: float) -> list[float]:
        return [0.005] * 100

    def resize_gain(self, settings: LoaderSettings, seconds: float) -> None:
        return None

    def probe_variant(self, batch_size: int, variant: Variant) -> Any:
        raise AssertionError("the reference step shows no model")

    def copy_rate(self, batch_size: int, seconds: float, *, pinned: bool) -> float:
        return 1e6

    def boundary_seconds(self, settings: LoaderSettings) -> float:
        return 0.1

    @contextmanager
    def hold(self, settings: LoaderSettings, *, samples_before_boundary: int) -> Iterator[Any]:
        feed = Feed(self._clock, settings.batch_size, self.pace(settings), samples_before_boundary)

        class Held:
            epochs_crossed = property(lambda held: feed.epochs_crossed)

            def resume(held) -> None:  # noqa: N805 (self is the rig)
                self.measured(settings.batch_size, feed, 0.5)

            def feed(held, seconds: float) -> Window:  # noqa: N805
                return self.measured(settings.batch_size, feed, seconds)

            def worker_bytes(held) -> dict[int, int]:  # noqa: N805
                return {}

        yield Held()

    def epoch_samples(self, batch_size: int) -> int:
        return 200 * batch_size


def verdict_of(
    nvml: Any,
    clock: Any,
    *,
    pace: Any = lambda s: 400.0 * max(1, s.num_workers),
    launch_seconds: float = 0.015,
    least_percent: int = 0,
    others_bytes: int = 0,
    **more: Any,
) -> Any:
    card = Card(nvml, clock, launch_seconds=launch_seconds, others_bytes=others_bytes)
    card.least_percent = least_percent
    rig: Any = NvmlRig(card, clock, pace)
    request = TuneRequest(data="set", step="resnet50", batch_sizes=(32, 64), hold_seconds=24, **more)
    limits = Limits(cores=2, memory_bytes=None, shm_bytes=None)
    return Driver(rig, request, limits, Device(card.memory_total_bytes, pin_memory=False)).run()


def test_passed(fake_nvml: Any, virtual_clock: Any) -> None:
    # given a step of 600 samples/s and loaders of 400 a worker
    result = verdict_of(fake_nvml, virtual_clock)
    assert result.verdict.name == "passed"
    window = result.hold.windows[0]
    assert window.util_source == "NVML GPU-Util sample buffer"
    assert "less other processes as NVML lists them" in window.memory_source
    assert result.hold.util.low > 95
    assert result.hold.fed.low > 0.97
    assert result.hold.epochs_crossed >= 1
    # Weights, the activations of 32 samples at 48 MiB, and the context.
    assert 32 * 48 * 2**20 < result.hold.peak_bytes < result.memory.cap_bytes


def test_step_limited(fake_nvml: Any, virtual_clock: Any) -> None:
    # 64 samples are 107 ms of work in calls of 200 ms: 53%, less where a window waits for its last step
    result = verdict_of(fake_nvml, virtual_clock, launch_seconds=0.2)
    assert result.verdict.name == "step_limited"
    assert re.search(r"leaves the GPU at 5[123]% at batch 64", result.verdict.summary)


def test_data_limited(fake_nvml: Any, virtual_clock: Any) -> None:
    # 2 workers of 150 samples/s for a step of 600: half
    result = verdict_of(fake_nvml, virtual_clock, pace=lambda s: 150.0 * max(1, s.num_workers))
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "decode")
    assert result.hold.util.value == pytest.approx(50, abs=3)
    assert result.hold.fed.value == pytest.approx(0.5, abs=0.03)


def test_a_card_kept_busy_by_other_kernels_than_the_steps_does_not_pass_an_unfed_step(
    fake_nvml: Any, virtual_clock: Any
) -> None:
    # given decoding on the card that keeps GPU-Util at 92% while the step gets half of what it could take
    result = verdict_of(fake_nvml, virtual_clock, pace=lambda s: 150.0 * max(1, s.num_workers), least_percent=92)
    assert result.hold.util.low >= 92
    assert result.verdict.name == "data_limited"
    assert re.match(r"The fed ratio 0\.5[01] \(at least 0\.\d\d\) is under 0\.90: decode binds", result.verdict.summary)


def test_memory_of_another_process_is_not_the_steps(fake_nvml: Any, virtual_clock: Any) -> None:
    alone = verdict_of(fake_nvml, virtual_clock)
    beside = verdict_of(fake_nvml, virtual_clock, others_bytes=3 << 30)
    assert beside.hold.peak_bytes == alone.hold.peak_bytes
    assert beside.hold.windows[0].other_process_bytes == 3 << 30


def test_step_limited_by_memory_where_the_batch_that_would_do_is_over_the_cap(
    fake_nvml: Any, virtual_clock: Any
) -> None:
    # 64 samples hold 3 GiB of activations and 32 of them 1.5, beside 1.05 GiB of weights and context; the cap is 3.2
    result = verdict_of(fake_nvml, virtual_clock, launch_seconds=0.09, memory_cap=0.4)
    assert (result.verdict.name, result.verdict.binds) == ("step_limited", "memory")
    assert "under the memory cap only 32 fits" in result.verdict.advice[0]


def test_unmeasurable_without_a_driver_and_still_the_fastest_loader_is_chosen(
    fake_nvml: Any, virtual_clock: Any
) -> None:
    fake_nvml.init_error = fake_nvml.NVMLError("NVML Shared Library Not Found")
    result = verdict_of(fake_nvml, virtual_clock)
    assert result.verdict.name == "unmeasurable"
    assert "NVML cannot start: NVML Shared Library Not Found" in result.verdict.summary
    assert result.chosen.trial.settings.num_workers == 2
    assert result.hold.fed.low > 0.97
    assert (result.hold.util, result.hold.peak_bytes) == (None, None)


def test_unmeasurable_on_a_mig_slice(fake_nvml: Any, virtual_clock: Any) -> None:
    fake_nvml.mig = 1
    result = verdict_of(fake_nvml, virtual_clock)
    assert result.verdict.name == "unmeasurable"
    assert "MIG is on, and NVML has no GPU-Util for an instance" in result.verdict.summary
    # Memory is known of a slice all the same.
    assert result.hold.peak_bytes > 32 * 48 * 2**20


def test_regressed(fake_nvml: Any, virtual_clock: Any) -> None:
    present = LoaderSettings(backend="processes", num_workers=1, batch_size=32, pin_memory=False)
    result = verdict_of(fake_nvml, virtual_clock, current=present, pace=lambda s: 590.0 if s == present else 300.0)
    assert result.verdict.name == "regressed"
    assert result.chosen.trial.settings == present


def test_an_nvml_that_fails_in_mid_window_is_no_figure(fake_nvml: Any, virtual_clock: Any) -> None:
    card = Card(fake_nvml, virtual_clock, launch_seconds=0.015)
    rig = NvmlRig(card, virtual_clock, lambda s: 1e6)
    assert rig.ceiling(32, 2.0).util_percent == pytest.approx(100, abs=2)

    def break_it() -> Iterator[Any]:
        for number in range(10**6):
            if number == 20:
                fake_nvml.nvmlDeviceGetSamples = lambda *a: (_ for _ in ()).throw(fake_nvml.NVMLError("GPU is lost"))
            yield batch_of(32)

    window = rig.measured(32, break_it(), 2.0)
    assert window.util_percent is None
    assert "GPU is lost" in (window.util_reason or "")
