"""The tuner's machine as formulas: the simulated accelerator with a virtual clock, fed by `pipeline.Batches`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.training import MemoryProbe, Step, StepSpec, Window, build_step, measure
from wellfed.pipeline.training.host_memory import HostMemory
from wellfed.pipeline.training.simulated import Preset, SimulatedAccelerator
from wellfed.pipeline.training.variants import Variant
from wellfed.pipeline.tune.measure.evidence import ResizeGain
from wellfed.pipeline.tune.rig import Cache, Order, OutOfDeviceMemoryError, Supply, Trial
from wellfed.pipeline.tune.statistics import Interval

from .pipeline import Batches, Clock, Plant, host_batch

EPOCH_BATCHES = 200
_WARM_STEPS = 3
_CACHED = 3
_MOST_SAMPLES = 2000


class _FlatMemory(HostMemory):
    """Host memory that does not grow, and is not read."""

    def start(self, now: float) -> None:
        self.samples_bytes, self.samples_seconds = [1 << 30], [0.0]

    def sample(self, now: float) -> None:
        pass


class _Accelerator(SimulatedAccelerator):
    """The simulated device, with copies that take time."""

    def __init__(self, plant: Plant, clock: Clock) -> None:
        preset = Preset(
            name="planted",
            label="planted",
            samples_per_second=plant.samples_per_second,
            memory_bytes=plant.memory_bytes,
            launch_seconds=plant.launch_seconds,
        )
        super().__init__(preset, clock=clock, sleep=clock.sleep)
        self._copy_rate, self._own_clock = plant.copy_rate, clock

    def copy(self, batch: Any) -> Any:
        if id(batch[0]) not in self._resident:
            self._own_clock.sleep(len(batch[0]) / self._copy_rate)
        return super().copy(batch)


class VirtualRig:
    """Implements `tune.rig.Rig`.

    Args:
        plant: what is planted.
        seed: of the noise.
        step: a reference step.
    """

    def __init__(self, plant: Plant, *, seed: int, step: str = "resnet50", image_size: int = 224) -> None:
        self.plant = plant
        self.now = Clock()
        self.accelerator = _Accelerator(plant, self.now)
        self._spec = StepSpec(name=step, image_size=image_size)
        self._random = np.random.default_rng(seed)
        self._feeds: dict[str, Batches] = {}

    def clock(self) -> float:
        return self.now()

    def compiling_seconds(self) -> float:
        return 0.0

    def probe(self, batch_size: int, settings: LoaderSettings | None = None) -> MemoryProbe:
        device = _Accelerator(self.plant, Clock())
        try:
            step = build_step(self._spec, device, batch_size)
            window = self._measure(step, self._cached(device, batch_size), 1e9, device, max_steps=4)
        except torch.OutOfMemoryError:
            return MemoryProbe(batch_size=batch_size, peak_bytes=None, out_of_memory=True, error=None)
        return MemoryProbe(batch_size=batch_size, peak_bytes=window.peak_bytes, out_of_memory=False, error=None)

    def probe_variant(self, batch_size: int, variant: Variant) -> MemoryProbe:
        reason = "a simulated step has no model"
        return MemoryProbe(batch_size=batch_size, peak_bytes=None, out_of_memory=False, error=reason)

    def ceiling(self, batch_size: int, seconds: float) -> Window:
        return self._run(batch_size, lambda: self._cached(self.accelerator, batch_size), seconds)

    def fed(self, trial: Trial, seconds: float) -> Window:
        feed = self._feeds.get(trial.id)
        if feed is None:
            feed = self._feeds[trial.id] = self._batches(trial.settings, trial.batch_size)
        return self._run(trial.batch_size, lambda: feed, seconds)

    def drop(self, trial: Trial) -> None:
        self._feeds.pop(trial.id, None)

    def release_device(self) -> None:
        self._feeds.clear()

    def loader_alone(self, settings: LoaderSettings, seconds: float) -> float:
        ready = settings.num_workers * settings.prefetch_factor
        return self._alone(self._batches(settings, settings.batch_size), ready, seconds)

    def stock_alone(self, batch_size: int, seconds: float) -> float:
        return self._alone(self._batches(None, batch_size), 0, seconds)

    def _alone(self, feed: Batches, ready: int, seconds: float) -> float:
        for _ in range(ready + 1):
            next(feed)
        started = self.now()
        samples = 0
        while self.now() - started < seconds:
            samples += len(self.accelerator.copy(next(feed))[0])
        return samples / (self.now() - started)

    def beside(self, settings: LoaderSettings, every: int, seconds: float) -> Window:
        cached, feed = self._cached(self.accelerator, settings.batch_size), self._batches(settings, settings.batch_size)

        def paced() -> Iterator[Any]:
            for number, batch in enumerate(cached):
                if number % every == 0:
                    next(feed)
                yield batch

        return self._run(settings.batch_size, paced, seconds)

    def supplied(self, settings: LoaderSettings, supply: Supply, seconds: float) -> Window:
        # The planted disk has no page cache.
        plant = replace(self.plant, read_seconds=0.0, storage_rate=1e12) if supply == "bytes" else self.plant
        feed = self._batches(settings, settings.batch_size, plant)
        return self._run(settings.batch_size, lambda: feed, seconds)

    def reads(self, order: Order, cache: Cache, seconds: float) -> float:
        return self.parallel_read_rate(1, seconds)

    def read_rate(self, seconds: float) -> float:
        return self.parallel_read_rate(1, seconds)

    def parallel_read_rate(self, readers: int, seconds: float) -> float:
        self.now.sleep(seconds)
        return min(readers / self.plant.read_seconds, self.plant.storage_rate) * self._noise()

    def sample_seconds(self, seconds: float) -> list[float]:
        plant, taken = self.plant, []
        started = self.now()
        while self.now() - started < seconds and len(taken) < _MOST_SAMPLES:
            slow = plant.slow_times if self._random.random() < plant.slow_share else 1.0
            taken.append(max(plant.read_seconds, 1 / plant.storage_rate) + plant.decode_seconds * slow * self._noise())
            self.now.sleep(taken[-1])
        return taken

    def resize_gain(self, settings: LoaderSettings, seconds: float) -> ResizeGain:
        self.now.sleep(seconds)
        ratio = self.plant.resize_times * self._noise()
        return ResizeGain(256, 512, Interval(ratio, 0.97 * ratio, 1.03 * ratio))

    def copy_rate(self, batch_size: int, seconds: float, *, pinned: bool) -> float:
        self.now.sleep(seconds)
        return self.plant.copy_rate * self._noise()

    def boundary_seconds(self, settings: LoaderSettings) -> float:
        taken = 0.05 if settings.persistent_workers else 3.0
        self.now.sleep(taken)
        return taken

    @contextmanager
    def hold(self, settings: LoaderSettings, *, samples_before_boundary: int) -> Iterator[_Hold]:
        yield _Hold(self, settings, samples_before_boundary)

    def epoch_samples(self, batch_size: int) -> int:
        return EPOCH_BATCHES * batch_size

    def _noise(self) -> float:
        return float(self._random.normal(1.0, 0.02))

    def _batches(self, settings: LoaderSettings | None, batch_size: int, plant: Plant | None = None) -> Batches:
        return Batches(plant or self.plant, settings, batch_size, self._spec.image_size, self.now, self._random)

    def _cached(self, device: _Accelerator, batch_size: int) -> Iterator[Any]:
        resident = [device.copy(host_batch(batch_size, self._spec.image_size)) for _ in range(_CACHED)]

        def rotation() -> Iterator[Any]:
            while True:
                yield from resident

        return rotation()

    def _run(self, batch_size: int, batches: Any, seconds: float) -> Window:
        try:
            step = build_step(self._spec, self.accelerator, batch_size)
            feed = batches()
            self._measure(step, feed, seconds, self.accelerator, max_steps=_WARM_STEPS)
            return self._measure(step, feed, seconds, self.accelerator)
        except torch.OutOfMemoryError as error:
            raise OutOfDeviceMemoryError(f"batch size {batch_size}") from error

    def _measure(
        self, step: Step, batches: Iterator[Any], seconds: float, device: _Accelerator, *, max_steps: int | None = None
    ) -> Window:
        return measure(
            step,
            batches,
            device,
            seconds=seconds,
            max_steps=max_steps,
            clock=device._clock,
            host_memory=_FlatMemory(),
        )


class _Hold:
    def __init__(self, rig: VirtualRig, settings: LoaderSettings, samples_before_boundary: int) -> None:
        self._rig, self._settings = rig, settings
        self._feed = rig._batches(settings, settings.batch_size)
        self._left = float(samples_before_boundary)
        self.epochs_crossed = 0

    def resume(self) -> None:
        pass

    def feed(self, seconds: float) -> Window:
        window = self._rig._run(self._settings.batch_size, lambda: self._feed, seconds)
        self._left -= window.samples
        while self._left < 0:
            self._left += self._rig.epoch_samples(self._settings.batch_size)
            self.epochs_crossed += 1
        return window

    def worker_bytes(self) -> dict[int, int]:
        return {}
