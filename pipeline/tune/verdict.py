"""From numbers to a verdict: a pure function, with what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..config import LoaderSettings
from .statistics import Interval

VerdictName = Literal["passed", "step_limited", "data_limited", "unmeasurable", "regressed"]
Binds = Literal["storage", "decode", "copy", "Python", "memory"]


@dataclass(frozen=True)
class CeilingFacts:
    """The step on cached batches at one batch size; `launch_seconds` is the median time of a step's call."""

    batch_size: int
    samples_per_second: float
    util_percent: float | None
    launch_seconds: float
    fits: bool = True


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a verdict rests on.

    Attributes:
        util_target, fed_target: percent, ratio.
        cap_bytes: None where the device's memory is not known.
        settings: the chosen ones.
        is_current: they are the user's present ones: nothing beat them.
        util: of the held run (or of the rounds); None where not measured, for `util_reason`.
        fed: fed ratio.
        peak_bytes: of the device.
        grows_bytes_per_epoch: growth of host memory where there is one.
        ceilings: by batch size, ascending.
        loader_rate: the loader alone with these settings, samples/s; None where not measured.
        core_rate: samples/s of one core.
        cores: usable.
        read_rate: of one reading thread.
        copy_rate: of copies to the device.
        workers_bounded: memory or /dev/shm allowed fewer workers than there are cores.
    """

    util_target: float
    fed_target: float
    cap_bytes: int | None
    settings: LoaderSettings
    is_current: bool
    util: Interval | None
    util_reason: str | None
    fed: Interval | None
    peak_bytes: int | None
    grows_bytes_per_epoch: float | None
    ceilings: Sequence[CeilingFacts]
    loader_rate: float | None
    core_rate: float | None
    cores: int
    read_rate: float | None
    copy_rate: float | None
    workers_bounded: bool

    @property
    def ceiling(self) -> CeilingFacts:
        return next(c for c in self.ceilings if c.batch_size == self.settings.batch_size)

    @property
    def needed_rate(self) -> float:
        """Samples/s that would reach both targets: the fed ratio, and utilization in proportion to it."""
        util = self.ceiling.util_percent
        share = self.fed_target if not util else max(self.fed_target, min(1.0, self.util_target / util))
        return share * self.ceiling.samples_per_second

    @property
    def over_cap(self) -> bool:
        return self.peak_bytes is not None and self.cap_bytes is not None and self.peak_bytes >= self.cap_bytes

    @property
    def misses(self) -> list[str]:
        """Targets that the chosen settings miss, in words."""
        missed = []
        if self.util is not None and self.util.low <= self.util_target:
            missed.append(f"utilization {_band(self.util, '%')} does not stay above {self.util_target:g}%")
        if self.fed is None:
            missed.append("the fed ratio could not be measured")
        elif self.fed.low < self.fed_target:
            missed.append(f"the fed ratio {_band(self.fed, '', 2)} is under {self.fed_target:.2f}")
        if self.over_cap and self.peak_bytes is not None and self.cap_bytes is not None:
            missed.append(f"device memory peaks at {_gib(self.peak_bytes)}, the cap is {_gib(self.cap_bytes)}")
        if self.grows_bytes_per_epoch is not None:
            missed.append(f"host memory grows by {self.grows_bytes_per_epoch / 1e6:.0f} MB an epoch")
        return missed


@dataclass(frozen=True)
class Verdict:
    """A verdict, the part that binds where data does, and what to do next."""

    name: VerdictName
    binds: Binds | None
    summary: str
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report's `verdict`."""
        return {"name": self.name, "binds": self.binds, "summary": self.summary, "advice": list(self.advice)}


def judge(e: Evidence) -> Verdict:
    """The first that holds of: regressed, unmeasurable, step_limited, data_limited, passed."""
    if e.is_current:
        state = "They reach the targets." if not e.misses else f"They miss a target: {'; '.join(e.misses)}."
        return Verdict(
            "regressed",
            None,
            f"No setting beats your present one ({describe(e.settings)}). {state}",
            ("Keep your present settings.", *([] if not e.misses or e.util is None else _data_advice(e)[1])),
        )
    if e.util is None:
        return Verdict(
            "unmeasurable",
            None,
            f"GPU utilization could not be measured: {e.util_reason or 'no reason was given'}. "
            f"The settings with the most samples/s were chosen.",
            _unmeasurable_advice(e),
        )
    ceiling = e.ceiling
    if ceiling.util_percent is not None and ceiling.util_percent <= e.util_target:
        return Verdict("step_limited", None, _step_summary(e), tuple(_step_advice(e)))
    if e.misses:
        binds, advice = _data_advice(e)
        return Verdict("data_limited", binds, f"{_capital('; '.join(e.misses))}: {binds} binds.", tuple(advice))
    fed = "" if e.fed is None else f", fed ratio {_band(e.fed, '', 2)}"
    peak = "not measured" if e.peak_bytes is None else _gib(e.peak_bytes)
    return Verdict(
        "passed",
        None,
        f"Utilization {_band(e.util, '%')}{fed}, device memory {peak}: every target is reached.",
        (f"Use {describe(e.settings)}.",),
    )


def describe(settings: LoaderSettings) -> str:
    """Settings in a few words."""
    workers = "no workers" if settings.num_workers == 0 else f"{settings.num_workers} {settings.backend}"
    prefetch = "" if settings.num_workers == 0 else f", prefetch {settings.prefetch_factor}"
    share = ""
    if settings.backend in ("dali", "hybrid") and settings.num_workers:
        prefetch += f", hardware share {settings.hw_decoder_load:g}"
    if settings.backend == "processes" and settings.num_workers and not settings.persistent_workers:
        share = ", new workers each epoch"
    if settings.backend == "hybrid" and settings.num_workers:
        share = ", greedy" if settings.hybrid_schedule == "greedy" else f", GPU share {settings.gpu_share:g}"
    return f"batch {settings.batch_size}, {workers}{prefetch}{share}"


def _unmeasurable_advice(e: Evidence) -> tuple[str, ...]:
    fed = "not measured" if e.fed is None else f"{_band(e.fed, '', 2)} (target {e.fed_target:.2f})"
    return (
        f"Judge by the fed ratio, which needs no counter of the GPU: {fed}.",
        "For utilization, run where NVML reports it: a whole GPU (no MIG slice) and the driver's libnvidia-ml.",
    )


def _step_summary(e: Evidence) -> str:
    c = e.ceiling
    return (
        f"On cached batches, without any loading, the step itself leaves the GPU at {c.util_percent:.0f}% at batch "
        f"{c.batch_size} (target {e.util_target:g}%): {c.samples_per_second:.0f} samples/s, "
        f"{1000 * c.batch_size / c.samples_per_second:.1f} ms a step, of which its call takes "
        f"{1000 * c.launch_seconds:.1f} ms."
    )


def _step_advice(e: Evidence) -> list[str]:
    advice = []
    c = e.ceiling
    enough = next(
        (x for x in e.ceilings if x.util_percent is not None and x.util_percent > e.util_target and x.fits), None
    )
    too_big = next(
        (x for x in e.ceilings if x.util_percent is not None and x.util_percent > e.util_target and not x.fits), None
    )
    if enough is not None:
        advice.append(f"Batch {enough.batch_size} would do: {enough.util_percent:.0f}% on cached batches.")
    elif too_big is not None:
        advice.append(f"Batch {too_big.batch_size} would do, but it does not fit under the memory cap.")
    elif c.util_percent:
        # Where launches bind, utilization grows in proportion to the batch.
        wanted = 2 ** math.ceil(math.log2(c.batch_size * e.util_target / c.util_percent * 1.05))
        advice.append(
            f"Where launches bind, a larger batch raises utilization in proportion: about batch {wanted} would do, "
            "if memory allows it."
        )
    advice.append(
        "Fewer launches: torch.compile the model (mode='reduce-overhead' uses CUDA graphs), a fused optimizer, and no "
        "synchronizing calls such as .item() in the step."
    )
    return advice


def _data_advice(e: Evidence) -> tuple[Binds, list[str]]:
    needed = e.needed_rate
    if e.over_cap:
        return "memory", ["Choose a smaller batch size, or raise --memory-cap if nothing else uses the device."]
    if e.grows_bytes_per_epoch is not None and len(e.misses) == 1:
        return "memory", [
            f"Host memory grows by {e.grows_bytes_per_epoch / 1e6:.0f} MB an epoch: look for lists that the step "
            "or the dataset appends to, and use fewer workers meanwhile."
        ]
    if e.loader_rate is not None and e.loader_rate < needed:
        return _loader_advice(e, e.loader_rate, needed)
    if e.copy_rate is not None and e.copy_rate < 1.5 * needed:
        return "copy", [
            f"The copy to the device binds: {e.copy_rate:.0f} samples/s, {needed:.0f} are needed beside the step: use "
            "pin_memory and check the PCIe link's width."
        ]
    alone = "" if e.loader_rate is None else f" gives {e.loader_rate:.0f} samples/s by itself, {needed:.0f} are needed,"
    return "Python", [
        f"Python binds: the loader{alone} but not beside the step, which shares the interpreter and the cores with it: "
        "try backend 'processes', keep a core free for the training process, and take Python work out of the step."
    ]


def _loader_advice(e: Evidence, loader_rate: float, needed: float) -> tuple[Binds, list[str]]:
    if e.workers_bounded:
        return "memory", [
            f"Memory binds: /dev/shm or free memory allows {e.settings.num_workers} workers on {e.cores} cores at "
            f"batch {e.settings.batch_size}; give the container more (--shm-size), or use threads or a smaller batch."
        ]
    lanes = max(1, min(e.settings.num_workers, e.cores))
    if e.read_rate is not None and e.read_rate * lanes < 1.5 * loader_rate:
        factor = needed / (e.read_rate * lanes)
        return "storage", [
            f"Storage binds: reading gives {e.read_rate * lanes:.0f} samples/s with {lanes} readers, {needed:.0f} "
            f"are needed: storage {factor:.1f} times as fast would do, or the dataset on a local disk or in memory."
        ]
    core = e.core_rate or loader_rate / lanes
    cores = math.ceil(needed / core)
    return "decode", [
        f"Decode binds: {cores} cores like these would reach the target ({needed:.0f} samples/s at {core:.0f} a core; "
        f"{e.cores} here give {loader_rate:.0f})."
    ]


def _band(interval: Interval, unit: str, digits: int = 0) -> str:
    return f"{interval.value:.{digits}f}{unit} (at least {interval.low:.{digits}f}{unit})"


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
