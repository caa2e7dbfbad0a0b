"""Measuring the parts once each: the step, the loaders, reading, copying, and decoding beside the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from ...config import LoaderSettings
from ..model.space import TIE, Limits, fits, shortage
from ..rig import Cache, Order, OutOfDeviceMemoryError, Rig, UnmeasuredError, rate
from .memory import MemoryPlan
from .rates import Beside, Rates

ON_DEVICE = ("dali", "nvjpeg", "hybrid")
"""Backends that decode, wholly or in part, on the device."""

_ALONE_BATCH_SIZE = 64
_ALONE_ON_DEVICE = 256
"""Libraries that decode whole batches on the device are slow at small ones."""

_LEAST_GAIN = 0.6
"""Of the workers' number: threads that fought for the GIL once reached 0.3 on 16 cores, everything else 0.8 or more."""

_ALL_BY_ENGINES = 1.0
"""Second hardware share: JPEG engines take least from the step (11 us an image against 19 to 26 us on an H200)."""

_PACE = 1.2
"""The decoder beside the step is asked for so little that it could give this many times as much."""


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        seconds: of one measurement.
        image_size: pixels.
        pin_memory: whether host batches are pinned for the device.
        util_target: percent.
        required: batch sizes measured in any case where they fit.
        wanted: those measured as long as `left` allows, and before smaller ones where that is one only.
        stop: true when time is short: then only what nothing can be said without follows.
        left: seconds for all of it that are left.
        say: reports what is measured now.
    """

    seconds: float
    image_size: int
    pin_memory: bool
    util_target: float
    required: Sequence[int]
    stop: Callable[[], bool]
    wanted: Sequence[int] = ()
    left: Callable[[], float] = lambda: math.inf
    say: Callable[[str], None] = lambda message: None


def measure_parts(rig: Rig, memory: MemoryPlan, limits: Limits, plan: Plan) -> Rates:
    """Every part, the most telling first. Where time is short, the last ones are left out, which the report shows.

    Returns:
        Rates without a ceiling where the step fits at no batch size.
    """
    rates = Rates()
    plan.say("the step on cached batches")
    measure_ceilings(
        rig,
        memory,
        rates,
        seconds=plan.seconds,
        util_target=plan.util_target,
        required=plan.required,
        wanted=plan.wanted,
        stop=plan.stop,
        left=plan.left,
    )
    if not rates.ceilings:
        return rates
    plan.say("reading, copying, and the loader alone")
    alone = _alone(rates, _ALONE_BATCH_SIZE)
    rates.read_rate = rig.read_rate(min(0.5, plan.seconds))
    rates.copy_rates[plan.pin_memory] = rig.copy_rate(alone, min(0.3, plan.seconds), pinned=plan.pin_memory)
    measure_loaders(
        rig,
        rates,
        limits,
        image_size=plan.image_size,
        seconds=plan.seconds,
        pin_memory=plan.pin_memory,
        stop=plan.stop,
    )
    plan.say("decoding beside the step")
    measure_beside(rig, rates, limits, seconds=plan.seconds, pin_memory=plan.pin_memory, stop=plan.stop)
    if not plan.stop():
        rates.stock_rates.append(rig.stock_alone(alone, plan.seconds))
    if plan.pin_memory and not plan.stop():
        rates.copy_rates[False] = rig.copy_rate(alone, min(0.3, plan.seconds), pinned=False)
    measure_reading(rig, rates, seconds=min(0.5, plan.seconds), stop=plan.stop)
    return rates


def _alone(rates: Rates, wanted: int) -> int:
    """The largest measured batch size up to the one wanted."""
    sizes = sorted(rates.ceilings)
    return max((size for size in sizes if size <= wanted), default=sizes[0])


def measure_ceilings(
    rig: Rig,
    memory: MemoryPlan,
    rates: Rates,
    *,
    seconds: float,
    util_target: float,
    required: Sequence[int] = (),
    wanted: Sequence[int] = (),
    stop: Callable[[], bool],
    left: Callable[[], float] = lambda: math.inf,
) -> None:
    """The step on cached batches from the smallest size up, until a larger one gains less than 2%; at one at least.

    A size that gains nothing can only tie, and ties go to the smaller batch, so nothing beyond it is worth time, unless
    utilization is still under its target.

    Args:
        required: sizes measured in any case where they fit (the user's).
        wanted: sizes measured also where a smaller one saturates the step (stock torch's).
        stop: true when time is short, or compiling was long: then only these two follow.
        left: seconds that are left: where a measurement would not end in them, only the required sizes follow, or one
            that is wanted where nothing was measured. `rates.not_begun` takes the others.
    """
    best, saturated, longest = 0.0, False, seconds
    for size in memory.sizes:
        if size not in memory.sizes or (saturated and size not in required and size not in wanted):
            continue
        if size in required:
            short = False
        elif size in wanted:
            short = best > 0 and left() < longest
        else:
            # One is measured in any case, and rather one that is asked for than the smallest.
            another = best > 0 or any(memory.likely(other) for other in (*required, *wanted))
            short = another and (stop() or left() < longest)
        if short:
            rates.not_begun.append(size)
            continue
        if not memory.likely(size):
            continue
        asked = rig.clock() - rig.compiling_seconds()
        try:
            window = rig.ceiling(size, seconds)
        except OutOfDeviceMemoryError:
            memory.rule_out(size)
            break
        longest = max(longest, rig.clock() - rig.compiling_seconds() - asked)
        rates.add_ceiling(window)
        speed, util = rate(window), window.util_percent
        saturated = saturated or (best > 0 and speed < (1 + TIE) * best and (util is None or util > util_target))
        best = max(best, speed)


def measure_loaders(
    rig: Rig,
    rates: Rates,
    limits: Limits,
    *,
    image_size: int,
    seconds: float,
    pin_memory: bool,
    stop: Callable[[], bool],
) -> None:
    """Each backend alone with all cores' workers, then with one, as far as memory and time allow.

    Where batches of many workers do not fit, smaller ones are measured before fewer workers: what all of them would
    give tells whether memory binds.

    A backend that seems to gain little from workers is measured once more: whatever else ran on the machine for that
    second may have been the reason. Those that decode on the device gain little by nature.
    """
    points: list[LoaderSettings] = []
    for workers in sorted({1, limits.cores}, reverse=True):
        # Threads first: they start at once, and where time is short one backend is measured rather than none.
        for backend in sorted(limits.backends, key=("threads", *ON_DEVICE, "processes").index):
            settings = _largest_alone(
                LoaderSettings(backend=backend, num_workers=workers, pin_memory=pin_memory), rates, limits, image_size
            )
            if settings is not None and settings not in points:
                points.append(settings)

    def measure(settings: LoaderSettings) -> None:
        if not (stop() and rates.loaders):
            key = (settings.backend, settings.num_workers, settings.batch_size)
            rates.loaders.setdefault(key, []).append(rig.loader_alone(settings, seconds))

    for settings in points:
        measure(settings)
    for name, curve in rates.curves(limits.cores).items():
        again = [settings for settings in points if settings.backend == name]
        most = max(settings.num_workers for settings in again)
        if name not in ON_DEVICE and curve.rate(most) < _LEAST_GAIN * most * curve.rate(1):
            for settings in again:
                measure(settings)


def _largest_alone(wanted: LoaderSettings, rates: Rates, limits: Limits, image_size: int) -> LoaderSettings | None:
    """The settings with the usual batch size; smaller batches, then fewer workers, where they do not fit."""
    first = _alone(rates, _ALONE_ON_DEVICE if wanted.backend in ON_DEVICE else _ALONE_BATCH_SIZE)
    sizes = [size for size in sorted(rates.ceilings, reverse=True) if size <= first]
    shapes = [(size, wanted.prefetch_factor) for size in sizes] + [(sizes[-1], 1)]
    count = wanted.num_workers
    while count >= 1:
        for batch_size, prefetch in shapes:
            settings = replace(wanted, num_workers=count, batch_size=batch_size, prefetch_factor=prefetch)
            if fits(settings, limits, image_size):
                return settings
        count //= 2
    return None


def words_on_left_out(rates: Rates, limits: Limits, image_size: int) -> list[str]:
    """A note for each backend of which memory does not hold a single worker's batches."""
    notes = []
    smallest = min(rates.ceilings)
    for backend in limits.backends:
        one = LoaderSettings(backend=backend, num_workers=1, batch_size=smallest)
        lacks = shortage(one, limits, image_size)
        if lacks is not None:
            notes.append(
                f"Backend '{backend}' was not tried: at batch {smallest} the batches of one worker take "
                f"{lacks.needed_bytes / 2**20:.0f} MiB of {lacks.place}, of which a loader may have "
                f"{lacks.allowed_bytes / 2**20:.0f} MiB."
            )
    return notes


def measure_beside(
    rig: Rig, rates: Rates, limits: Limits, *, seconds: float, pin_memory: bool, stop: Callable[[], bool]
) -> None:
    """What decoding on the device takes from the step: DALI at two hardware shares, or nvJPEG where there is no DALI.

    Measured at the smallest batch size that saturates the step: where launches bind, the device has time to spare. The
    decoder is held to a part of the step's pace that it can keep, so that the step never waits for it.
    """
    curves = rates.curves(limits.cores)
    engine = next((name for name in ("dali", "nvjpeg") if name in curves), None)
    if engine is None:
        return
    best = max(rates.ceiling_rate(size) for size in rates.ceilings)
    size = min(size for size in rates.ceilings if rates.ceiling_rate(size) >= (1 - TIE) * best)
    workers = max(1, limits.cores // 2)
    shares = (LoaderSettings().hw_decoder_load, _ALL_BY_ENGINES) if engine == "dali" else (None,)
    for share in shares:
        if stop():
            return
        settings = LoaderSettings(backend=engine, num_workers=workers, batch_size=size, pin_memory=pin_memory)
        if share is not None:
            settings = LoaderSettings.from_dict({**settings.to_dict(), "hw_decoder_load": share})
        alone = curves[engine].rate(workers)
        every = max(1, math.ceil(_PACE * rates.ceiling_rate(size) / alone))
        try:
            rates.beside.append(Beside(settings, every, rig.beside(settings, every, seconds)))
        except OutOfDeviceMemoryError:
            return  # the step runs without; what the decoder needs beside it shows in the trials


def measure_reading(rig: Rig, rates: Rates, *, seconds: float, stop: Callable[[], bool]) -> None:
    """Reading in one thread, in sequence and at random, from the page cache and from the storage."""
    for cache in get_args(Cache):
        for order in get_args(Order):
            if stop():
                rates.reads[order, cache] = "the time for measuring parts was over"
                continue
            try:
                rates.reads[order, cache] = rig.reads(order, cache, seconds)
            except UnmeasuredError as error:
                rates.reads[order, cache] = str(error)
