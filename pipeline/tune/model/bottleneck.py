"""The bottleneck model: a pipeline is as fast as its slowest part, so few measured rates predict every setting.

Seconds of the step and of its launches, of decoding on either side, of copying and of epoch boundaries are each
measured once; what holds for a setting follows from them:

- the device: t + g c seconds a sample, t the step's, c what decoding one image there takes from it, g the share of the
  images decoded there. This form fitted one H200, ResNet-18 and ResNet-50 (ratios .79 to .94 within .03);
- each side of the loader for its share of the batches, on the cores that the launching thread leaves;
- the copy to the device for the share that is decoded on the host;
- the launching thread: its launches, and copies from memory that is not pinned, which block it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np

from ...config import LoaderSettings
from ...loader.engine_backend import dali_threads
from .points import BACKENDS, Points
from .prediction import Limit, Prediction
from .space import batch_bytes, waiting_bytes

PROCESS_BYTES = 300 << 20
"""A worker process of ours: torch once more, unshared (measured with torch 2.11 on Linux)."""

_ROUNDS = 4
_LEAST_CORES = 0.25  # what threads get of a single core that the launching thread takes wholly
_LIMITS: tuple[Limit, ...] = get_args(Limit)


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
        return float(self.of_cores(np.array(max(1, min(workers, self.cores)))))

    def of_cores(self, busy: np.ndarray) -> np.ndarray:
        """Samples/s of workers that together have this many cores, which need not be whole."""
        return self.single * busy / (1 + self.contention * np.maximum(busy - 1, 0))


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
class Predictions:
    """Figures of n points, each of shape (n,); NaN where the parts were not measured.

    `limit` holds places in `prediction.Limit`; `loader` is the samples/s of the loader beside the step.
    """

    samples_per_second: np.ndarray
    util_percent: np.ndarray
    host_bytes: np.ndarray
    device_bytes: np.ndarray
    limit: np.ndarray
    loader: np.ndarray


_ALIKE_SHARE, _ALIKE_LOAD = 0.15, 0.25
"""As far apart in the device's share or the engines' as twice the batch size or the workers."""

_ALIKE = 0.1
"""Of squared distance: windows of the same settings differ too, so a trial alone does not settle its own prediction."""

_LEAST_RATIO = 1e-6


@dataclass(frozen=True)
class Model:
    """Predicts any settings from the measured parts.

    Attributes:
        ceilings: samples/s of the step on cached batches, by batch size.
        curves: loader rate by backend; that of "dali" at a hardware share of 0.75.
        utils: GPU-Util of the ceilings, percent, by batch size; those not measured are left out.
        launch_seconds: of one step, on the thread that launches it.
        decode_costs: by "dali" or "nvjpeg", device seconds that decoding an image takes from the step, by hardware
            share; the other library is taken to cost the same where it was not measured.
        dali_rates: samples/s of DALI alone by hardware share; from one on, others follow.
        copy_rates: samples/s to the device, by whether host memory is pinned.
        boundary_seconds: cost of an epoch boundary with worker processes, by whether they are kept.
        epoch_samples: samples in an epoch by batch size.
        device_bytes: peak device memory of the step by batch size, its loader's left out.
        stock: samples/s of stock torch alone.
        image_size: pixels.
        shown: trials, and what each had of the rate that was predicted for it.
    """

    ceilings: Mapping[int, float]
    curves: Mapping[str, WorkerCurve]
    utils: Mapping[int, float] = field(default_factory=dict)
    launch_seconds: float = 0.0
    decode_costs: Mapping[str, Mapping[float, float]] = field(default_factory=dict)
    dali_rates: Mapping[float, float] = field(default_factory=dict)
    copy_rates: Mapping[bool, float] = field(default_factory=dict)
    boundary_seconds: Mapping[bool, float] = field(default_factory=dict)
    epoch_samples: Mapping[int, int] = field(default_factory=dict)
    device_bytes: Mapping[int, float] = field(default_factory=dict)
    stock: float | None = None
    image_size: int = 224
    shown: tuple[tuple[LoaderSettings, float], ...] = ()

    def predict(self, settings: LoaderSettings) -> Prediction | None:
        """Figures of one setting, or None where its batch size or backend was not measured."""
        found = self.predict_all(Points.of([settings]))
        speed = float(found.samples_per_second[0])
        if np.isnan(speed):
            return None
        util, device = float(found.util_percent[0]), float(found.device_bytes[0])
        return Prediction(
            samples_per_second=speed,
            util_percent=None if np.isnan(util) else util,
            host_bytes=float(found.host_bytes[0]),
            device_bytes=None if np.isnan(device) else device,
            limit=_LIMITS[int(found.limit[0])],
        )

    def predict_stock(self, batch_size: int) -> Prediction | None:
        """Figures of stock torch, which decodes in the thread that launches steps."""
        ceiling = self.ceilings.get(batch_size)
        if ceiling is None or not self.stock:
            return None
        serial = 1 / (1 / self.stock + self.launch_seconds / batch_size)
        speed = min(ceiling, serial)
        util = self.utils.get(batch_size)
        return Prediction(
            samples_per_second=speed,
            util_percent=None if util is None else util * speed / ceiling,
            host_bytes=float(batch_bytes(batch_size, self.image_size)),
            device_bytes=self.device_bytes.get(batch_size),
            limit="step" if ceiling <= serial else "loader",
        )

    def predict_all(self, points: Points) -> Predictions:
        """Figures of all points at once."""
        sizes = points.batch_size
        ceiling = _looked_up(self.ceilings, sizes)
        gpu = np.where(points.of_backend("dali", "nvjpeg"), 1.0, 0.0)
        gpu = np.where(points.of_backend("hybrid"), points.gpu_share, gpu)
        # Without workers every backend decodes in the calling thread.
        gpu = np.where(points.num_workers == 0, 0.0, gpu)
        launch = self.launch_seconds / sizes  # seconds a sample on the launching thread
        cost = self._costs(points)
        device = 1 / (1 / ceiling + gpu * cost)
        speed = np.minimum(ceiling, self._loader(points, gpu, np.zeros(len(points))))
        for _ in range(_ROUNDS):  # the faster the loader, the more is launched, and the fewer cores are left for it
            loader = self._loader(points, gpu, np.minimum(1.0, launch * speed))
            speed = np.minimum(ceiling, (speed + loader) / 2)
        with np.errstate(divide="ignore"):
            copy = _known(self.copy_rates, points.pin_memory, np.inf) / (1 - gpu)
            blocked = np.where(points.pin_memory, 0.0, (1 - gpu) / _known(self.copy_rates, points.pin_memory, np.inf))
            serial = np.where(points.num_workers == 0, 1 / loader, 0.0)
            thread = np.where((blocked + serial) > 0, 1 / (launch + blocked + serial), np.inf)
        parts = np.stack([ceiling, device, loader, copy, thread])
        raw = parts.min(axis=0)
        scale = self._scale(points)
        speed = np.minimum(ceiling, raw * scale)
        # What takes 1% is not called the limit: the ceiling is, which it is then as good as at.
        parts[0] = np.where(speed >= 0.99 * ceiling, 0.0, parts[0])
        util = _looked_up(self.utils, sizes) * speed / ceiling + 100 * gpu * cost * speed
        host, on_device = self._memory(points, gpu)
        return Predictions(
            samples_per_second=self._over_epochs(points, speed),
            util_percent=np.minimum(100.0, util),
            host_bytes=host,
            device_bytes=_looked_up(self.device_bytes, sizes) + on_device,
            limit=np.argmin(parts, axis=0),
            loader=loader * scale,
        )

    def corrected(self, seen: Sequence[tuple[LoaderSettings, float]]) -> Model:
        """With what trials have shown of each backend, the most of those that are alike.

        A trial that the step itself bounds shows nothing of its loader, unless it is slower than that.

        Args:
            seen: settings and their measured samples/s.
        """
        plain = replace(self, shown=())
        shown = []
        for settings, speed in seen:
            prediction = plain.predict(settings)
            if prediction is None:
                continue
            ratio = speed / prediction.samples_per_second
            if prediction.limit != "step" or ratio < 1:
                shown.append((settings, ratio))
        return replace(self, shown=tuple(shown))

    def _scale(self, points: Points) -> np.ndarray:
        """What trials of a point's backend had of their predictions: a mean of logarithms, by how near they are."""
        weights, total = np.zeros(len(points)), np.zeros(len(points))
        for settings, ratio in self.shown:
            squares = (
                ((points.gpu_share - settings.gpu_share) / _ALIKE_SHARE) ** 2
                + ((points.hw_decoder_load - settings.hw_decoder_load) / _ALIKE_LOAD) ** 2
                + np.log2(points.batch_size / settings.batch_size) ** 2
                + np.log2((1 + points.num_workers) / (1 + settings.num_workers)) ** 2
            )
            weight = np.where(points.of_backend(settings.backend), 1 / (_ALIKE + squares), 0.0)
            weights += weight
            total += weight * np.log(max(ratio, _LEAST_RATIO))
        return np.exp(np.divide(total, weights, out=np.zeros(len(points)), where=weights > 0))

    def _engine(self) -> str | None:
        """Which library decodes the device's share of backend "hybrid"."""
        return next((name for name in ("dali", "nvjpeg") if name in self.curves), None)

    def takes_unknown(self, points: Points) -> np.ndarray:
        """Mask of the points that decode on the device where nothing was decoded beside the step: it counts as free."""
        decodes = points.of_backend("dali", "nvjpeg", "hybrid") & (points.num_workers > 0)
        return decodes & (not any(self.decode_costs.values()))

    def _costs(self, points: Points) -> np.ndarray:
        cost = np.zeros(len(points))
        for name, other in (("dali", "nvjpeg"), ("nvjpeg", "dali")):
            # A library that was not run beside the step takes about what the other does, and surely not nothing.
            known = sorted((self.decode_costs.get(name) or self.decode_costs.get(other, {})).items())
            if not known:
                continue
            mask = points.of_backend(name) | (points.of_backend("hybrid") & (self._engine() == name))
            cost = np.where(mask, _line(known, points.hw_decoder_load), cost)
        return np.maximum(0.0, cost)

    def _loader(self, points: Points, gpu: np.ndarray, launching: np.ndarray) -> np.ndarray:
        """Samples/s of the loader on the cores that the launching thread leaves."""
        workers = points.num_workers
        rate = np.full(len(points), np.nan)
        none = workers == 0
        for name, curve in self.curves.items():
            cores = np.maximum(_LEAST_CORES, curve.cores - launching)
            mine = points.of_backend(name) if name in BACKENDS else np.zeros(len(points), dtype=bool)
            rate = np.where(mine, curve.of_cores(np.minimum(np.maximum(workers, 1), cores)), rate)
            rate = np.where(mine & none, curve.single, rate)
        rate = rate * np.where(points.of_backend("dali"), self._load_factor(points.hw_decoder_load), 1.0)
        cpu, engine = self.curves.get("threads"), self._engine()
        if cpu is None or engine is None:
            return rate
        # Both sides decode at once, so the one that is slower for its share of the batches sets the rate.
        counts = range(int(workers.max(initial=0)) + 1)
        mixed, engines_alone = (
            np.array([dali_threads(count, load) for count in counts])[workers] for load in (0.0, 1.0)
        )
        ours = np.where(points.hw_decoder_load >= 1, engines_alone, mixed)
        device = self.curves[engine].of_cores(np.minimum(ours, self.curves[engine].cores))
        if engine == "dali":
            device = device * self._load_factor(points.hw_decoder_load)
        host = cpu.of_cores(np.minimum(np.maximum(workers - ours, 1), np.maximum(_LEAST_CORES, cpu.cores - launching)))
        with np.errstate(divide="ignore"):
            both = np.minimum(device / gpu, host / (1 - gpu))
        return np.where(points.of_backend("hybrid") & ~none, both, rate)

    def _load_factor(self, share: np.ndarray) -> np.ndarray:
        """DALI's rate at a hardware share over that at 0.75.

        The JPEG engines decode their share and CUDA kernels the rest, at once: the slower of the two for its share sets
        the rate. What a measured share shows of each side bounds it from below; from 22,500 img/s at 0.75 this gives
        18,700 at 0.9, 16,900 at 1.0 and 5,600 at 0, where 19,000, 10,000 to 18,000 and 5,300 were measured on an H200.
        """
        known = self.dali_rates
        if not known:
            return np.ones(len(share))
        engines = max(rate * load for load, rate in known.items())
        kernels = max(rate * (1 - load) for load, rate in known.items())

        def at(load: np.ndarray) -> np.ndarray:
            with np.errstate(divide="ignore"):
                return np.minimum(engines / load, kernels / (1 - load)) if kernels > 0 else engines / load

        return at(share) / at(np.array(LoaderSettings().hw_decoder_load))

    def _over_epochs(self, points: Points, speed: np.ndarray) -> np.ndarray:
        """Samples/s with the time that worker processes take at epoch boundaries."""
        processes = points.of_backend("processes") & (points.num_workers > 0)
        boundary = np.where(processes, _known(self.boundary_seconds, points.persistent_workers, 0.0), 0.0)
        samples = _looked_up(self.epoch_samples, points.batch_size)
        with np.errstate(invalid="ignore"):
            return np.where(np.isnan(samples) | (boundary == 0), speed, samples / (samples / speed + boundary))

    def _memory(self, points: Points, gpu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of host memory, and of device memory beside the step's own."""
        first, inverse = points.unique_rows("backend", "num_workers", "prefetch_factor", "batch_size")
        waiting = np.array([waiting_bytes(points.at(place), self.image_size) for place in first])[inverse]
        one = batch_bytes(1, self.image_size) * points.batch_size
        processes = points.of_backend("processes")
        host = np.where(gpu == 1, 0, waiting) + np.where(processes, points.num_workers * PROCESS_BYTES, 0)
        return host, np.where(gpu > 0, waiting, one)


def _looked_up(values: Mapping[int, float] | Mapping[int, int], keys: np.ndarray) -> np.ndarray:
    """The value of each key; NaN where there is none."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    found = np.array([values.get(int(key), np.nan) for key in distinct], dtype=np.float64)
    return found[np.ravel(inverse)]


def _known(values: Mapping[bool, float], keys: np.ndarray, otherwise: float) -> np.ndarray:
    return np.where(keys, values.get(True, otherwise), values.get(False, otherwise))


def _line(known: Sequence[tuple[float, float]], at: np.ndarray) -> np.ndarray:
    """The line through the first and the last known point; flat with one."""
    (x0, y0), (x1, y1) = known[0], known[-1]
    return np.full(len(at), y0) if x0 == x1 else y0 + (y1 - y0) * (at - x0) / (x1 - x0)
