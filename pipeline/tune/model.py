"""The bottleneck model: a pipeline is as fast as its slowest part, so few measured rates predict every setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..config import LoaderSettings
from ..loader.engine_backend import dali_threads


@dataclass(frozen=True)
class WorkerCurve:
    """Loader rate over the number of workers: `single * w / (1 + contention * (w - 1))`, flat beyond the cores.

    Attributes:
        single: samples/s of one worker.
        contention: 0 where workers do not disturb each other; fitted from two counts.
        cores: usable cores.
    """

    single: float
    contention: float
    cores: int

    def rate(self, workers: int) -> float:
        """Samples/s with this many workers; none is decoding in the calling thread, at most one worker's rate."""
        busy = max(1, min(workers, self.cores))
        return self.single * busy / (1 + self.contention * (busy - 1))


def fit_curve(rates: Mapping[int, float], *, cores: int) -> WorkerCurve:
    """Fit from samples/s at one worker and at one larger count (only one: no contention assumed).

    Raises:
        ValueError: no rates, or one that is not positive.
    """
    if not rates or min(rates.values()) <= 0:
        raise ValueError("a worker curve needs positive rates")
    few, many = min(rates), max(rates)
    low, high = max(1, min(few, cores)), max(1, min(many, cores))
    if low == high:
        return WorkerCurve(max(rates.values()) / high, 0.0, cores)
    # r(w) = s w / (1 + c (w - 1)) at two counts is linear in 1/s and c/s.
    a_low, a_high = low / rates[few], high / rates[many]
    slope = (a_high - a_low) / (high - low)
    inverse = a_low - slope * (low - 1)
    if slope <= 0 or inverse <= 0:  # faster than linear: noise, or caches warming up
        return WorkerCurve(rates[many] / high, 0.0, cores)
    return WorkerCurve(1 / inverse, slope / inverse, cores)


@dataclass(frozen=True)
class Model:
    """Predicts samples/s of any settings from the step's ceilings and the loader's curves.

    Attributes:
        ceilings: samples/s of the step on cached batches, by batch size.
        curves: loader rate by backend.
    """

    ceilings: Mapping[int, float]
    curves: Mapping[str, WorkerCurve]

    def predict(self, settings: LoaderSettings) -> float | None:
        """Samples/s, or None where the batch size or the backend was not measured."""
        ceiling, curve = self.ceilings.get(settings.batch_size), self.curves.get(settings.backend)
        if ceiling is None or curve is None:
            return None
        if settings.backend == "hybrid":
            return min(ceiling, self._hybrid_rate(settings))
        return min(ceiling, curve.rate(settings.num_workers))

    def _hybrid_rate(self, settings: LoaderSettings) -> float:
        """Both sides decode at once, so the one that is slower for its share of the batches sets the rate.

        Where the sides were not measured by themselves, what the backend reached with its default share.
        """
        cpu = self.curves.get("threads")
        gpu = self.curves.get("dali") or self.curves.get("nvjpeg")
        if cpu is None or gpu is None:
            return self.curves["hybrid"].rate(settings.num_workers)
        gpu_workers = dali_threads(settings.num_workers)
        sides = []
        if settings.gpu_share > 0:
            sides.append(gpu.rate(gpu_workers) / settings.gpu_share)
        if settings.gpu_share < 1:
            sides.append(cpu.rate(max(1, settings.num_workers - gpu_workers)) / (1 - settings.gpu_share))
        return min(sides)
