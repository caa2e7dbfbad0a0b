"""All that a tune or a bench measured, and the evidence that a verdict rests on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from ..config import LoaderSettings, TuneRequest
from .advice.verdict import CeilingFacts, Evidence, KeptOut, Verdict
from .measure.differential import Differential
from .measure.evidence import slow_samples
from .measure.hold import Hold
from .measure.memory import MemoryPlan, holds_on_device
from .measure.rates import Rates
from .model.space import Limits, fits, shortage
from .rig import Probe
from .search.search import Comparison, Record
from .statistics import Interval, mean_interval

_CLEARLY_FASTER = 1.25
"""Two short measurements of loaders alone, minutes apart on a machine that others may use, can differ by less."""


@dataclass
class Result:
    """All that was measured and decided; what was not reached is empty or None."""

    memory: MemoryPlan
    rates: Rates
    records: list[Record] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    chosen: Record | None = None
    differential: Differential | None = None
    hold: Hold | None = None
    verdict: Verdict | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def chosen_probe(self) -> Probe | None:
        """The probe of the chosen batch size, with its loader where that holds device memory; None where not probed."""
        settings = None if self.chosen is None else self.chosen.trial.settings
        if settings is None:
            return None
        if holds_on_device(settings):
            # Whether workers are kept is judged later, and changes nothing on the device.
            kept = settings.persistent_workers
            fed = {dataclasses.replace(s, persistent_workers=kept): probe for s, probe in self.memory.fed.items()}
            return fed.get(settings)
        return self.memory.probes.get(settings.batch_size)


def evidence_of(result: Result, request: TuneRequest, limits: Limits, cap_bytes: int | None) -> Evidence:
    """What the verdict rests on: the held run, or the rounds where nothing was held.

    Raises:
        ValueError: nothing was chosen.
    """
    chosen, held = result.chosen, result.hold
    if chosen is None or chosen.trial.settings is None:
        raise ValueError("a verdict needs chosen settings")
    settings = chosen.trial.settings
    util, reason, fed, peak = _of_rounds(chosen, request.seed)
    growth = None
    if held is not None:
        util, reason, fed, peak = held.util, held.util_reason, held.fed, held.peak_bytes
        if held.grows and held.host_slope is not None:
            growth = held.host_slope.value * held.epoch_seconds
    curve = result.rates.curves(limits.cores).get(settings.backend)
    return Evidence(
        util_target=request.util_target,
        fed_target=request.fed_target,
        cap_bytes=cap_bytes,
        settings=settings,
        is_current=chosen.trial.role == "current",
        util=util,
        util_reason=reason,
        fed=fed,
        peak_bytes=peak,
        grows_bytes_per_epoch=growth,
        workers_growth_share=None if held is None else held.workers_growth_share,
        ceilings=[_ceiling_facts(result, size) for size in sorted(result.rates.ceilings)],
        loader_rate=None if curve is None else curve.rate(settings.num_workers),
        core_rate=None if curve is None else curve.rate(limits.cores) / limits.cores,
        cores=limits.cores,
        read_rate=result.rates.read_rate,
        parallel_read_rate=result.rates.parallel_read_rate,
        copy_rate=result.rates.copy_rate,
        slow=slow_samples(result.rates.sample_seconds),
        resize=result.rates.resize,
        largest_batch=result.memory.largest_known(),
        workers_bounded=_workers_bounded(settings, limits, request.image_size),
        kept_out=None if curve is None else _kept_out(result, settings, limits, request.image_size),
    )


def _ceiling_facts(result: Result, size: int) -> CeilingFacts:
    rates, memory = result.rates, result.memory
    return CeilingFacts(
        size,
        rates.ceiling_rate(size),
        rates.ceiling_util(size),
        rates.launch_seconds(size),
        size in memory.sizes and memory.likely(size),
    )


def _workers_bounded(settings: LoaderSettings, limits: Limits, image_size: int) -> bool:
    """Whether memory or /dev/shm, not cores, limited the workers."""
    if settings.num_workers >= limits.cores:
        return False
    return not fits(dataclasses.replace(settings, num_workers=limits.cores), limits, image_size)


def _kept_out(result: Result, settings: LoaderSettings, limits: Limits, image_size: int) -> KeptOut | None:
    """The fastest workers of another backend that clearly beat the chosen ones alone, and do not fit at their batch."""
    curves = result.rates.curves(limits.cores)
    own = curves[settings.backend].rate(settings.num_workers)
    found = []
    for backend, workers, _ in result.rates.loaders:
        values = {"backend": backend, "num_workers": workers, "prefetch_factor": LoaderSettings().prefetch_factor}
        other = LoaderSettings.from_dict({**settings.to_dict(), **values})
        speed = curves[backend].rate(workers) if backend in curves else 0.0
        if backend == settings.backend or speed < _CLEARLY_FASTER * own:
            continue
        lacks = shortage(other, limits, image_size)
        if lacks is not None:
            found.append(KeptOut(backend, workers, speed, lacks))
    return max(found, key=lambda kept: kept.samples_per_second, default=None)


def _of_rounds(record: Record, seed: int) -> tuple[Interval | None, str | None, Interval | None, int | None]:
    """Utilization, why it is missing, fed ratio and peak of a trial's rounds."""
    rounds = list(record.rounds.values())
    utils = [m.window.util_percent for m in rounds if m.window.util_percent is not None]
    reasons = [m.window.util_reason for m in rounds if m.window.util_percent is None]
    feds = [m.fed_ratio for m in rounds if m.fed_ratio is not None]
    peaks = [m.window.peak_bytes for m in rounds if m.window.peak_bytes is not None]
    return (
        mean_interval(utils, seed=seed) if utils and not reasons else None,
        reasons[0] if reasons else None,
        mean_interval(feds, seed=seed) if feds else None,
        max(peaks, default=None),
    )
