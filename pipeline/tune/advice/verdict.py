"""From numbers to a verdict: a pure function, with what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...config import LoaderSettings
from ..measure.evidence import ResizeGain, SlowSamples
from ..model.space import Shortage
from ..statistics import Interval

VerdictName = Literal["passed", "step_limited", "data_limited", "unmeasurable", "regressed"]
Binds = Literal["storage", "decode", "copy", "Python", "memory", "launches"]

_NO_HELP = 1.1
"""A gain up to this that may as well be none is called none; above it, what was measured leaves it open."""


@dataclass(frozen=True)
class CeilingFacts:
    """The step on cached batches at one batch size; `launch_seconds` is the median time of a step's call."""

    batch_size: int
    samples_per_second: float
    util_percent: float | None
    launch_seconds: float
    fits: bool = True


@dataclass(frozen=True)
class KeptOut:
    """Workers of another backend that would load faster than the chosen ones, and whose batches memory does not hold.

    Attributes:
        backend, workers: what was measured alone, in batches that did fit.
        samples_per_second: of them.
        lacks: what their batches lack at the chosen size.
    """

    backend: str
    workers: int
    samples_per_second: float
    lacks: Shortage


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
        workers_growth_share: of it, 0..1, that worker processes take; None without such processes.
        ceilings: by batch size, ascending.
        loader_rate: the loader alone with these settings, samples/s; None where not measured.
        core_rate: samples/s of one core.
        cores: usable.
        read_rate: of one reading thread.
        parallel_read_rate: of as many as the settings have workers; None where not measured.
        copy_rate: of copies to the device.
        workers_bounded: memory or /dev/shm allowed fewer workers than there are cores.
        kept_out: faster workers that they do not allow; None where there are none.
        slow: a few samples that take much of the time, where there are such.
        resize: what smaller images would bring; None where not measured.
        largest_batch: the largest batch size under the memory cap, where a larger one is over it.
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
    parallel_read_rate: float | None = None
    slow: SlowSamples | None = None
    resize: ResizeGain | None = None
    largest_batch: int | None = None
    workers_growth_share: float | None = None
    kept_out: KeptOut | None = None

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
    def reached_rate(self) -> float | None:
        """The most samples/s that these settings surely gave, alone or beside the step; None where not measured alone.

        Alone they were measured once, early and for a second or so; beside the step for a minute.
        """
        if self.loader_rate is None or self.fed is None:
            return self.loader_rate
        return max(self.loader_rate, self.fed.low * self.ceiling.samples_per_second)

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
        return Verdict("step_limited", _step_binds(e), _step_summary(e), tuple(_step_advice(e)))
    if e.misses:
        binds, advice = _data_advice(e)
        return Verdict("data_limited", binds, f"{_capital('; '.join(e.misses))}: {binds} binds.", tuple(advice))
    fed = "" if e.fed is None else f", fed ratio {_band(e.fed, '', 2)}"
    peak = "not measured" if e.peak_bytes is None else _gib(e.peak_bytes)
    return Verdict(
        "passed",
        None,
        f"Utilization {_band(e.util, '%')}{fed}, device memory {peak}: every target is reached.",
        (f"Use {describe(e.settings)}.", _pace(e)),
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


def _pace(e: Evidence) -> str:
    """Who sets the speed where all targets are reached: the step, and how much faster the data could come."""
    step = f"The step sets the pace: {e.ceiling.samples_per_second:.0f} samples/s on cached batches"
    if e.loader_rate is None:
        return f"{step}."
    times = e.loader_rate / e.ceiling.samples_per_second
    return f"{step}; the loader by itself gives {e.loader_rate:.0f}, {times:.1f} times as many."


def _step_summary(e: Evidence) -> str:
    c = e.ceiling
    return (
        f"The step launches too little work at batch {c.batch_size}: on cached batches, without any loading, it leaves "
        f"the GPU at {c.util_percent:.0f}% at batch {c.batch_size} (target {e.util_target:g}%): "
        f"{c.samples_per_second:.0f} samples/s, {1000 * c.batch_size / c.samples_per_second:.1f} ms a step, of which "
        f"its call takes {1000 * c.launch_seconds:.1f} ms."
    )


def _wanted_batch(e: Evidence) -> int | None:
    """The batch size at which the step would use the GPU enough, in steps of 16; None where that cannot be told.

    Between two sizes that were measured utilization is taken as linear; beyond the last it grows in proportion to the
    batch where launches bind. Either way with a margin of 5%.
    """
    goal = min(100.0, 1.05 * e.util_target)
    known = [(c.batch_size, c.util_percent) for c in e.ceilings if c.util_percent]
    above = next((i for i, (_, util) in enumerate(known) if util >= goal), None)
    if above is not None:
        size, util = known[above]
        below, low = known[above - 1] if above else (0, 0.0)
        return min(size, 16 * math.ceil((below + (size - below) * (goal - low) / (util - low)) / 16))
    if not e.ceiling.util_percent:
        return None
    return 16 * math.ceil(e.ceiling.batch_size * goal / e.ceiling.util_percent / 16)


def _step_binds(e: Evidence) -> Binds:
    """Memory where a batch that would do does not fit under the cap, launches otherwise."""
    wanted = _wanted_batch(e)
    return "memory" if wanted is not None and e.largest_batch is not None and wanted > e.largest_batch else "launches"


def _step_advice(e: Evidence) -> list[str]:
    wanted = _wanted_batch(e)
    advice = []
    if wanted is not None and _step_binds(e) == "memory":
        advice.append(
            f"About batch {wanted} would do, but under the memory cap only {e.largest_batch} fits: raise --memory-cap "
            "if nothing else uses the device, or save memory in the step (bf16, gradient checkpointing)."
        )
    elif wanted is not None:
        advice.append(
            f"About batch {wanted} would do, if memory allows it, or torch.compile at batch {e.ceiling.batch_size}."
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
        return "memory", [_growth_advice(e, e.grows_bytes_per_epoch)]
    # The loader's own rate includes the copy, so a copy that is as slow as it comes first.
    if e.copy_rate is not None and e.copy_rate < min(needed, 1.25 * (e.loader_rate or needed)):
        return _copy_advice(e, e.copy_rate, needed)
    if e.loader_rate is not None and e.reached_rate is not None and e.loader_rate < needed:
        binds, advice = _loader_advice(e, e.reached_rate, needed)
        return binds, [*advice, *_slow_advice(e)]
    if e.copy_rate is not None and e.copy_rate < 1.5 * needed:
        return _copy_advice(e, e.copy_rate, needed)
    alone = "" if e.loader_rate is None else f" gives {e.loader_rate:.0f} samples/s by itself, {needed:.0f} are needed,"
    return "Python", [
        f"Python binds: the loader{alone} but not beside the step, which shares the interpreter and the cores with it: "
        "try backend 'processes', keep a core free for the training process, and take Python work out of the step."
    ]


def _growth_advice(e: Evidence, grown: float) -> str:
    grows = f"Host memory grows by {grown / 1e6:.0f} MB an epoch"
    share = e.workers_growth_share
    if share is None:
        return f"{grows}: look for lists that the step or the dataset appends to, and use fewer workers meanwhile."
    if share < 0.5:
        return f"{grows}, while its worker processes keep theirs: look for lists that the step appends to."
    return (
        f"{grows}, of which its {e.settings.num_workers} worker processes take {share:.0%}: look for what the dataset "
        "or a transform keeps; meanwhile persistent_workers=False starts them anew each epoch."
    )


def _copy_advice(e: Evidence, copy_rate: float, needed: float) -> tuple[Binds, list[str]]:
    pin = "check" if e.settings.pin_memory else "use pin_memory and check"
    return "copy", [
        f"The copy to the device binds: {copy_rate:.0f} samples/s, {needed:.0f} are needed beside the step: {pin} the "
        "PCIe link's width."
    ]


def _loader_advice(e: Evidence, loader_rate: float, needed: float) -> tuple[Binds, list[str]]:
    if e.workers_bounded:
        return "memory", [
            f"Memory binds: /dev/shm or free memory allows {e.settings.num_workers} workers on {e.cores} cores at "
            f"batch {e.settings.batch_size}; give the container more (--shm-size), or use threads or a smaller batch."
        ]
    if e.kept_out is not None:
        return "memory", [_kept_out_advice(e.kept_out, e, loader_rate, needed)]
    lanes = max(1, min(e.settings.num_workers, e.cores))
    # Many readers share one disk: what they reach together was measured where it matters.
    reading = e.parallel_read_rate
    if reading is None and e.read_rate is not None:
        reading = e.read_rate * lanes
    if reading is not None and reading < 1.5 * loader_rate:
        return "storage", [
            f"Storage binds: reading gives {reading:.0f} samples/s with {lanes} readers, {needed:.0f} are needed: "
            f"storage {needed / reading:.1f} times as fast would do, or the dataset on a local disk or in memory."
        ]
    core = e.core_rate or loader_rate / lanes
    if e.settings.backend in ("processes", "threads"):
        # Of the others a device decodes some, and that is no core's work.
        core = max(core, loader_rate / lanes)
    cores = math.ceil(needed / core)
    return "decode", [
        f"Decode binds: {cores} cores like these would reach the target ({needed:.0f} samples/s at {core:.0f} a core; "
        f"{e.cores} here give {loader_rate:.0f}){_resize_words(e, loader_rate, needed)}."
    ]


def _kept_out_advice(kept: KeptOut, e: Evidence, loader_rate: float, needed: float) -> str:
    lacks = kept.lacks
    reach = ", which would reach it" if kept.samples_per_second >= needed else ""
    return (
        f"Memory binds: {kept.workers} {kept.backend} alone give {kept.samples_per_second:.0f} samples/s in small "
        f"batches{reach} ({needed:.0f} are needed, {e.settings.num_workers} {e.settings.backend} give "
        f"{loader_rate:.0f}), but at batch {e.settings.batch_size} they take {lacks.needed_bytes / 2**20:.0f} MiB of "
        f"{lacks.place}, of which a loader may have {lacks.allowed_bytes / 2**20:.0f} MiB: give the container more"
        f"{' (--shm-size)' if lacks.place == '/dev/shm' else ''}, or use a smaller batch."
    )


def _resize_words(e: Evidence, loader_rate: float, needed: float) -> str:
    gain = e.resize
    if gain is None:
        return ""
    measured = f"(measured on {gain.samples} of your samples)"
    option = f"`--image resize:{gain.side}`"
    if gain.ratio.low <= 1:
        if gain.ratio.value <= _NO_HELP:
            return f"; on this machine {option} would not help: {gain.ratio.value:.2f}x {measured}"
        low, high = gain.ratio.low, gain.ratio.high
        return f"; whether {option} would help is open: {gain.ratio.value:.1f}x, {low:.1f}x to {high:.1f}x {measured}"
    reach = ", which would reach it" if gain.ratio.low * loader_rate >= needed else ""
    return f"; on this machine {option} gives {gain.ratio.value:.1f}x {measured}{reach}"


def _slow_advice(e: Evidence) -> list[str]:
    if e.slow is None:
        return []
    return [
        f"Stragglers: {100 * e.slow.share:.1f}% of {e.slow.samples} samples take {e.slow.times:.0f} times the median, "
        f"and {100 * e.slow.time_share:.0f}% of the time: reduce them (`--image resize:N` for huge images), or mend "
        "what is slow for them."
    ]


def _band(interval: Interval, unit: str, digits: int = 0) -> str:
    return f"{interval.value:.{digits}f}{unit} (at least {interval.low:.{digits}f}{unit})"


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
