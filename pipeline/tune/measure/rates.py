"""Rates of the parts as measured, and the model that follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ...config import LoaderSettings
from ..model.bottleneck import Model, WorkerCurve, fit_curve
from ..rig import Window, rate
from .boundary import Boundaries
from .evidence import ResizeGain, slow_samples


@dataclass(frozen=True)
class Beside:
    """The step on cached batches with a decoder beside it, which gave a batch for `every` steps."""

    settings: LoaderSettings
    every: int
    window: Window

    def cost_seconds(self, ceiling: float) -> float:
        """Device seconds that decoding one image took from the step, whose samples/s alone are given."""
        # Of a second, r / ceiling was the step's; the rest went into r / every images.
        return max(0.0, self.every * (1 / rate(self.window) - 1 / ceiling))


@dataclass
class Rates:
    """Raw measurements of the parts, and what follows from them.

    Attributes:
        ceilings: windows of the step on cached batches, by batch size.
        not_begun: batch sizes that time did not reach.
        loaders: (backend, workers, batch size) -> samples/s of the loader alone.
        beside: the step with a decoder beside it.
        stock_rates: samples/s of stock torch's loader alone.
        read_rate: samples/s of one reading thread.
        reads: the same by (order, cache), or why it was not measured.
        copy_rates: samples/s of copies to the device, by whether the host's memory is pinned.
        boundaries: between epochs, with the chosen settings.
        parallel_read_rate: samples/s of as many reading threads as the chosen loader has.
        sample_seconds: of single samples, read and decoded.
        resize: what smaller images would bring; None where not measured or none is larger.
    """

    ceilings: dict[int, list[Window]] = field(default_factory=dict)
    not_begun: list[int] = field(default_factory=list)
    loaders: dict[tuple[str, int, int], list[float]] = field(default_factory=dict)
    beside: list[Beside] = field(default_factory=list)
    stock_rates: list[float] = field(default_factory=list)
    read_rate: float | None = None
    reads: dict[tuple[str, str], float | str] = field(default_factory=dict)
    copy_rates: dict[bool, float] = field(default_factory=dict)
    boundaries: Boundaries = field(default_factory=Boundaries)
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

    @property
    def copy_rate(self) -> float | None:
        """Samples/s of copies to the device as the chosen settings make them: pinned where that can be."""
        return self.copy_rates.get(True, self.copy_rates.get(False))

    def decode_costs(self) -> dict[str, dict[float, float]]:
        """Device seconds an image that decoding takes from the step, by backend and hardware share."""
        costs: dict[str, dict[float, float]] = {}
        for one in self.beside:
            ceiling = self.ceiling_rate(one.settings.batch_size)
            costs.setdefault(one.settings.backend, {})[one.settings.hw_decoder_load] = one.cost_seconds(ceiling)
        return costs

    def model(
        self,
        cores: int,
        *,
        image_size: int = 224,
        device_bytes: Mapping[int, float] | None = None,
        epoch_samples: Mapping[int, int] | None = None,
    ) -> Model:
        """The model of these parts.

        Args:
            cores: usable.
            image_size: pixels.
            device_bytes: peak device memory of the step by batch size, as far as it is known.
            epoch_samples: samples of an epoch by batch size.
        """
        curves = self.curves(cores)
        utils = {size: util for size in self.ceilings if (util := self.ceiling_util(size)) is not None}
        dali = curves.get("dali")
        return Model(
            ceilings={size: self.ceiling_rate(size) for size in self.ceilings},
            curves=curves,
            utils=utils,
            # Of large batches a call also waits for the queue: launching is what the fastest ones took.
            launch_seconds=min((self.launch_seconds(size) for size in self.ceilings), default=0.0),
            decode_costs=self.decode_costs(),
            dali_rates={} if dali is None else {LoaderSettings().hw_decoder_load: dali.rate(cores)},
            copy_rates=self.copy_rates,
            boundary_seconds=self.boundaries.medians,
            epoch_samples=epoch_samples or {},
            device_bytes=device_bytes or {},
            stock=median(self.stock_rates) if self.stock_rates else None,
            image_size=image_size,
        )

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

    def parts_to_dict(self) -> dict[str, Any]:
        """The report's `parts`; a null comes with its reason beside it."""
        reading = [
            {
                "order": order,
                "cache": cache,
                "samples_per_second": None if isinstance(found, str) else found,
                "reason": found if isinstance(found, str) else None,
            }
            for (order, cache), found in self.reads.items()
        ]
        beside = [
            {
                "backend": one.settings.backend,
                "hw_decoder_load": one.settings.hw_decoder_load,
                "batch_size": one.settings.batch_size,
                "steps_a_batch": one.every,
                "samples_per_second": rate(one.window),
                "cost_seconds_per_image": one.cost_seconds(self.ceiling_rate(one.settings.batch_size)),
            }
            for one in self.beside
        ]
        return {
            "read_samples_per_second": self.read_rate,
            "reading": reading,
            "copy_samples_per_second": self.copy_rate,
            "copy": {"pinned": self.copy_rates.get(True), "not_pinned": self.copy_rates.get(False)},
            "stock_samples_per_second": list(self.stock_rates),
            "decoding_beside_the_step": beside,
            "parallel_read_samples_per_second": self.parallel_read_rate,
            "sample_seconds": [round(seconds, 6) for seconds in self.sample_seconds],
            "slow_samples": None if (slow := slow_samples(self.sample_seconds)) is None else slow.to_dict(),
            "resize": None if self.resize is None else self.resize.to_dict(),
            "boundary_seconds": self.boundaries.to_dict(),
        }
