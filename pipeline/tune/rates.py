"""Rates of the parts: the step on cached batches by batch size, and the loader by itself by workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..config import LoaderSettings
from .evidence import ResizeGain
from .memory import MemoryPlan
from .model import Model, WorkerCurve, fit_curve
from .rig import OutOfDeviceMemoryError, Rig, Window, rate
from .space import TIE, Limits, fits


@dataclass
class Rates:
    """Raw measurements of the parts, and what follows from them.

    Attributes:
        ceilings: windows of the step on cached batches, by batch size.
        loaders: (backend, workers, batch size) -> samples/s of the loader alone.
        read_rate: samples/s of one reading thread.
        copy_rate: samples/s of copies to the device.
        boundary_seconds: cost of an epoch boundary, by whether workers are kept.
        parallel_read_rate: samples/s of as many reading threads as the chosen loader has.
        sample_seconds: of single samples, read and decoded.
        resize: what smaller images would bring; None where not measured or none is larger.
    """

    ceilings: dict[int, list[Window]] = field(default_factory=dict)
    loaders: dict[tuple[str, int, int], list[float]] = field(default_factory=dict)
    read_rate: float | None = None
    copy_rate: float | None = None
    boundary_seconds: dict[bool, float] = field(default_factory=dict)
    parallel_read_rate: float | None = None
    sample_seconds: Sequence[float] = ()
    resize: ResizeGain | None = None

    def add_ceiling(self, window: Window) -> None:
        self.ceilings.setdefault(window.batch_size, []).append(window)

    def ceiling_rate(self, batch_size: int) -> float:
        """Median samples/s on cached batches."""
        return median(rate(window) for window in self.ceilings[batch_size])

    def ceiling_util(self, batch_size: int) -> float | None:
        """Median utilization on cached batches; None where not measured."""
        known = [w.util_percent for w in self.ceilings[batch_size] if w.util_percent is not None]
        return median(known) if known else None

    def launch_seconds(self, batch_size: int) -> float:
        """Shortest typical call of a step: median over windows of the lower quartile, so that waiting for a full queue
        does not count as launching."""
        quartiles = []
        for window in self.ceilings[batch_size]:
            calls = sorted(window.step_seconds)
            quartiles.append(calls[len(calls) // 4] if calls else 0.0)
        return median(quartiles)

    def curves(self, cores: int) -> dict[str, WorkerCurve]:
        """A curve for each backend measured."""
        by_backend: dict[str, dict[int, float]] = {}
        for (backend, workers, _), values in self.loaders.items():
            by_backend.setdefault(backend, {})[workers] = median(values)
        return {
            backend: fit_curve(rates, cores=cores) for backend, rates in by_backend.items() if min(rates.values()) > 0
        }

    def model(self, cores: int) -> Model:
        return Model({size: self.ceiling_rate(size) for size in self.ceilings}, self.curves(cores))

    def ceilings_to_list(self) -> list[dict[str, Any]]:
        """The report's `ceilings`."""
        return [
            {
                "batch_size": size,
                "samples_per_second": [rate(window) for window in windows],
                "util_percent": [window.util_percent for window in windows],
                "peak_bytes": max((w.peak_bytes for w in windows if w.peak_bytes is not None), default=None),
                "launch_seconds": self.launch_seconds(size),
            }
            for size, windows in sorted(self.ceilings.items())
        ]

    def loaders_to_list(self) -> list[dict[str, Any]]:
        """The report's `loader_rates`."""
        return [
            {"backend": backend, "num_workers": workers, "batch_size": batch_size, "samples_per_second": values}
            for (backend, workers, batch_size), values in sorted(self.loaders.items())
        ]


_OF_DEVICES = ("dali", "nvjpeg", "hybrid")

_LEAST_GAIN = 0.6
"""Of the workers' number: threads that fought for the GIL once reached 0.3 on 16 cores, everything else 0.8 or more."""


def measure_ceilings(
    rig: Rig,
    memory: MemoryPlan,
    rates: Rates,
    *,
    seconds: float,
    util_target: float,
    required: Sequence[int] = (),
    stop: Callable[[], bool],
) -> None:
    """The step on cached batches from the smallest size up, until a larger one gains less than 2%.

    A size that gains nothing can only tie, and ties go to the smaller batch, so nothing beyond it is worth time, unless
    utilization is still under its target.

    Args:
        required: sizes measured in any case where they fit (the user's, stock torch's).
        stop: true when time is short: then only the required sizes follow.
    """
    best, saturated = 0.0, False
    for size in memory.sizes:
        if size not in memory.sizes or (size not in required and (saturated or (best and stop()))):
            continue
        if not memory.likely(size):
            continue
        try:
            window = rig.ceiling(size, seconds)
        except OutOfDeviceMemoryError:
            memory.rule_out(size)
            break
        rates.add_ceiling(window)
        speed, util = rate(window), window.util_percent
        saturated = saturated or (best > 0 and speed < (1 + TIE) * best and (util is None or util > util_target))
        best = max(best, speed)


def measure_loaders(
    rig: Rig,
    rates: Rates,
    limits: Limits,
    *,
    batch_size: int,
    image_size: int,
    seconds: float,
    pin_memory: bool,
    stop: Callable[[], bool],
) -> None:
    """Each backend alone with all cores' workers, then with one, as far as memory and time allow.

    A backend that seems to gain little from workers is measured once more: whatever else ran on the machine for that
    second may have been the reason. Those that decode on the device gain little by nature.
    """
    points: list[LoaderSettings] = []
    for workers in sorted({1, limits.cores}, reverse=True):
        # Threads first: they start at once, and where time is short one backend is measured rather than none.
        for backend in sorted(limits.backends, key=("threads", *_OF_DEVICES, "processes").index):
            settings = LoaderSettings(
                backend=backend, num_workers=workers, batch_size=batch_size, pin_memory=pin_memory
            )
            while not fits(settings, limits, image_size) and settings.num_workers > 1:
                settings = LoaderSettings(
                    backend=backend,
                    num_workers=settings.num_workers // 2,
                    batch_size=batch_size,
                    pin_memory=pin_memory,
                )
            if settings not in points and fits(settings, limits, image_size):
                points.append(settings)

    def measure(settings: LoaderSettings) -> None:
        if not (stop() and rates.loaders):
            key = (settings.backend, settings.num_workers, batch_size)
            rates.loaders.setdefault(key, []).append(rig.loader_alone(settings, seconds))

    for settings in points:
        measure(settings)
    for name, curve in rates.curves(limits.cores).items():
        again = [settings for settings in points if settings.backend == name]
        most = max(settings.num_workers for settings in again)
        if name not in _OF_DEVICES and curve.rate(most) < _LEAST_GAIN * most * curve.rate(1):
            for settings in again:
                measure(settings)
