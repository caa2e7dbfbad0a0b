"""`run_bench`: given settings against the step, beside stock torch, without searching."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from ..config import LoaderSettings, TunedConfig, TuneRequest
from ..errors import ResourceError, TunedConfigMismatchError
from ..hardware import fingerprint, preflight
from ..loader.tuned import check_tuned
from .advice.verdict import describe, judge
from .assemble import dataset_facts, device_facts, report
from .driver import Device, Progress, quiet
from .machine.loaders import repeat_times
from .measure.memory import MemoryPlan
from .measure.rates import Rates
from .model.space import Limits
from .preflight import check_sharers, limits_of
from .result import Result, evidence_of
from .rig import Rig, Trial
from .run import opened
from .search.rounds import run_rounds
from .search.search import Search, comparisons


def run_bench(
    data: str,
    step: str,
    device: str = "auto",
    *,
    settings: LoaderSettings | TunedConfig,
    image_size: int | None = None,
    against_torch: bool = False,
    rounds: int = 5,
    seconds_per_round: float = 2.0,
    allow_shared_gpu: bool = False,
    progress: Callable[[str, float], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Measure settings in interleaved rounds with their ceiling, and with stock torch where asked.

    Args:
        data, step, device: as for `run_tune`.
        settings: what to measure.
        image_size: pixels on a side; None for a tuned configuration's own, else 224.
        against_torch: run stock torch (no workers, Pillow, transforms v2) at the same batch size in every round.
        rounds: at least 5 for comparisons to mean anything.
        seconds_per_round: of each measurement.
        allow_shared_gpu: measure also where other programs compute on the device.
        progress: called with a message and the share done, 0..1.
        clock: monotonic seconds.

    Returns:
        A report of kind "bench"; its verdict follows the tuner's rules and rests on the rounds, nothing is held.

    Raises:
        UsageError: no such dataset, step or device.
        ConfigError: rounds, seconds or image size out of range.
        TunedConfigMismatchError: a tuned configuration of another dataset, machine or image size.
        ResourceError: the step does not fit on the device, or others use it.
    """
    say: Progress = progress or quiet
    knobs = settings.settings if isinstance(settings, TunedConfig) else settings
    image_size = _image_size(settings, image_size)
    request = TuneRequest(
        data=data,
        step=step,
        device=device,
        rounds=rounds,
        image_size=image_size,
        batch_sizes=(knobs.batch_size,),
        allow_shared_gpu=allow_shared_gpu,
        budget_seconds=max(1.0, rounds * seconds_per_round * 4),
    )
    facts, machine = preflight(), fingerprint()
    with opened(data, step, device, image_size=image_size, seed=request.seed, clock=clock) as on:
        if isinstance(settings, TunedConfig):
            check_tuned(settings, machine=machine, source=on.source)
        shared = check_sharers(on.accelerator, allowed=allow_shared_gpu)
        result = bench(
            on.rig,
            request,
            knobs,
            limits_of(facts),
            on.device,
            against_torch=against_torch,
            seconds=seconds_per_round,
            progress=say,
        )
        result.notes += [] if shared is None else [shared]
        page = report(
            "bench",
            result,
            request={**request.to_dict(), "against_torch": against_torch, "seconds_per_round": seconds_per_round},
            dataset=dataset_facts(on.source, repeat_times(len(on.source), knobs.batch_size)),
            device=device_facts(on.accelerator),
            machine=machine,
            facts=facts,
            tuned=settings if isinstance(settings, TunedConfig) else None,
        )
    say("done", 1.0)
    return page


def _image_size(settings: LoaderSettings | TunedConfig, asked: int | None) -> int:
    """A tuned configuration holds for one image size, so another is refused and not measured beside its figures."""
    if not isinstance(settings, TunedConfig):
        return TuneRequest.image_size if asked is None else asked
    tuned = int(settings.step["image_size"])
    if asked not in (None, tuned):
        raise TunedConfigMismatchError(
            f"the tuned configuration is for images of {tuned} pixels",
            got=f"image size {asked}",
            remedy="Leave the image size out, tune for the other one, or give the settings of the configuration alone.",
        )
    return tuned


def bench(
    rig: Rig,
    request: TuneRequest,
    settings: LoaderSettings,
    limits: Limits,
    device: Device,
    *,
    against_torch: bool,
    seconds: float,
    progress: Progress = quiet,
) -> Result:
    """The measurements of `run_bench` over a rig.

    Raises:
        ResourceError: the step does not fit on the device.
    """
    started = rig.clock()
    size = settings.batch_size
    total = device.memory_total_bytes
    cap = None if not total else int(total * request.memory_cap)
    plan = MemoryPlan(probe=rig.probe, sizes=(size,), cap_bytes=cap or 0, cap_share=request.memory_cap)
    result = Result(memory=plan, rates=Rates())
    trials = [Trial("settings", describe(settings), "candidate", settings, size)]
    if against_torch:
        trials.append(Trial("stock", f"stock torch: batch {size}, no workers", "stock", None, size))
    search = Search(trials, rounds=request.rounds, seed=request.seed)
    result.records = search.records
    expected = (2 * len(trials) + 1) * request.rounds * seconds

    def say(message: str) -> None:
        progress(message, min(0.99, (rig.clock() - started) / expected))

    run_rounds(rig, search, result.rates, seconds=seconds, left=lambda: math.inf, say=say)
    rounds_done = rig.clock()
    record = search.records[0]
    if record.barred:
        raise ResourceError(
            f"the step must fit on the device at batch size {size}", got="out of memory", remedy="Use a smaller batch."
        )
    for trial in trials:
        rig.drop(trial)
    say("the loader alone")
    workers = max(1, settings.num_workers)
    key = (settings.backend, workers, size)
    result.rates.loaders[key] = [rig.loader_alone(settings, seconds)]
    result.rates.read_rate = rig.read_rate(min(0.5, seconds))
    pinned = device.pin_memory
    result.rates.copy_rates[pinned] = rig.copy_rate(size, min(0.3, seconds), pinned=pinned)
    result.chosen = record
    result.comparisons = comparisons(search.records, record, seed=request.seed)
    result.verdict = judge(evidence_of(result, request, limits, cap))
    ended = rig.clock()
    result.seconds = {"search": rounds_done - started, "rates": ended - rounds_done, "total": ended - started}
    return result
