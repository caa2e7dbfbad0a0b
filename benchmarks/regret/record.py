"""Recording: the parts as the tuner measures them, the grid point by point, and what a search would still ask."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.errors import WellfedError
from wellfed.pipeline.tune.driver import STOCK_BATCH_SIZE
from wellfed.pipeline.tune.measure.memory import MemoryPlan
from wellfed.pipeline.tune.measure.parts import Plan as PartsPlan
from wellfed.pipeline.tune.measure.parts import measure_parts
from wellfed.pipeline.tune.rig import OutOfDeviceMemoryError, Rig, Trial, UnmeasuredError, rate

from .recording import MissingCallError, RecordedError, Recording
from .rigs import RecordingRig, probe_key
from .search import device_of, find, limits_of, points_of_recording, request_of

_CEILING_EVERY = 4
_CHEAP_REPEATS = 2
"""More of what takes half a second, beyond the passes over the parts."""

_FILL_SECONDS = 15.0
"""A probe starts a process."""

_LONGER = 1.3  # the next point may take longer than the longest so far


@dataclass(frozen=True)
class Plan:
    """How it is recorded.

    Attributes:
        window_seconds: of each window.
        windows: of a point of the grid.
        passes: over the parts.
        part, parts: every `parts`-th point, from the `part`-th on, counted from 1; the first also has the parts.
        fill_seeds: searches that are replayed to see what they would ask that is not recorded yet.
        seconds_left: nothing is begun that would end after them; None for no limit.
    """

    window_seconds: float = 1.5
    windows: int = 3
    passes: int = 2
    part: int = 1
    parts: int = 1
    fill_seeds: int = 100
    seconds_left: float | None = None


@dataclass(frozen=True)
class _Unit:
    """What is recorded whole or again."""

    name: str
    work: Callable[[], str]


def record(
    rig: Rig,
    recording: Recording,
    plan: Plan,
    *,
    save: Callable[[], None],
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Record what is missing; False where time ended before it was whole.

    Args:
        recording: with its head; has whatever an earlier call recorded.
        save: called after each unit.
        say: told a line for each.
        clock: of the seconds that are left.
    """
    recorder = RecordingRig(rig, recording)
    began, longest = clock(), 0.0
    for unit in _units(recorder, plan):
        if unit.name in recording.done:
            continue
        asked = clock()
        if plan.seconds_left is not None and asked - began + _LONGER * longest > plan.seconds_left:
            say(f"stopped before {unit.name}: {asked - began:.0f} of {plan.seconds_left:.0f} s are over")
            return False
        found = unit.work()
        recording.done.append(unit.name)
        save()
        longest = max(longest, clock() - asked)
        say(f"{unit.name}: {found} ({clock() - asked:.1f} s)")
    return _filled(recorder, plan, save, say, left=lambda: _left(plan, clock() - began))


def _units(recorder: RecordingRig, plan: Plan) -> Iterator[_Unit]:
    recording = recorder.recording
    points = points_of_recording(recording)
    if plan.part == 1:
        for number in range(plan.passes):
            yield _Unit(f"parts, pass {number + 1}", lambda: _parts(recorder, plan))
    trials = _Trials(recorder, plan)
    mine = _in_order(points)[plan.part - 1 :: plan.parts]
    for size, group in itertools.groupby(mine, key=lambda point: point.batch_size):
        for point in group:
            yield _Unit(point_name(point), partial(trials.measure, point, size))
        if size == STOCK_BATCH_SIZE:
            yield _Unit("stock torch", partial(trials.measure, None, size))


class _Trials:
    """Points one after another, with the ceiling before every few and whenever the batch size changes."""

    def __init__(self, recorder: RecordingRig, plan: Plan) -> None:
        self._recorder = recorder
        self._plan = plan
        self._size: int | None = None
        self._since = 0

    def measure(self, settings: LoaderSettings | None, batch_size: int) -> str:
        """Windows of one point, and where it fails that it does; both are answers."""
        recorder, seconds = self._recorder, self._plan.window_seconds
        label = "stock torch" if settings is None else point_name(settings)
        trial = Trial(label, label, "candidate", settings, batch_size)
        if batch_size != self._size:
            # Other steps would count as this one's memory.
            recorder.release_device()
            self._size, self._since = batch_size, 0
        rates = []
        try:
            if self._since % _CEILING_EVERY == 0:
                recorder.ceiling(batch_size, seconds)
            self._since += 1
            for _ in range(self._plan.windows):
                rates.append(rate(recorder.fed(trial, seconds)))
        except (WellfedError, OutOfDeviceMemoryError) as error:
            self._size = None
            return f"failed: {type(error).__name__}: {error}"
        finally:
            recorder.drop(trial)
        return f"{median(rates):,.0f} img/s of {', '.join(f'{one:,.0f}' for one in rates)}"


def point_name(point: LoaderSettings) -> str:
    """Of a point, in the list of what is done; unlike `describe` it has every field."""
    return ",".join(map(str, dataclasses.astuple(point)))


def _in_order(points: Sequence[LoaderSettings]) -> list[LoaderSettings]:
    """The batch sizes with most points first, and within one at random, so that drift is no backend's alone."""
    sizes = [point.batch_size for point in points]
    mixed = random.Random(0).sample(list(points), len(points))
    return sorted(mixed, key=lambda point: (-sizes.count(point.batch_size), point.batch_size))


def _parts(recorder: RecordingRig, plan: Plan) -> str:
    recording = recorder.recording
    request, device, limits = request_of(recording), device_of(recording), limits_of(recording)
    recorder.release_device()
    total = device.memory_total_bytes
    memory = MemoryPlan(
        probe=recorder.probe,
        sizes=tuple(request.batch_sizes or ()),
        cap_bytes=int(total * request.memory_cap) if total else 1 << 62,
        cap_share=request.memory_cap,
    )
    # Once: what a step takes does not vary, and each costs a process's start.
    for size in memory.sizes:
        for answer in recording.calls.get(probe_key(size), [])[:1]:
            memory.probes[size] = answer.replayed("probe")
    memory.start()
    rates = measure_parts(
        recorder,
        memory,
        limits,
        PartsPlan(
            seconds=plan.window_seconds,
            image_size=request.image_size,
            pin_memory=device.pin_memory,
            util_target=request.util_target,
            # All: which of them a search leaves out depends on its draws.
            required=memory.sizes,
            stop=lambda: False,
        ),
    )
    for size in rates.ceilings:
        recorder.epoch_samples(size)
    short = min(0.3, plan.window_seconds)
    for _ in range(_CHEAP_REPEATS):
        recorder.read_rate(short)
        for pinned in sorted({device.pin_memory, False}):
            recorder.copy_rate(min(max(rates.ceilings), STOCK_BATCH_SIZE), short, pinned=pinned)
    return f"ceilings {', '.join(f'{size}: {rates.ceiling_rate(size):,.0f}' for size in sorted(rates.ceilings))}"


def _left(plan: Plan, elapsed: float) -> float:
    return math.inf if plan.seconds_left is None else plan.seconds_left - elapsed


def _filled(
    recorder: RecordingRig,
    plan: Plan,
    save: Callable[[], None],
    say: Callable[[str], None],
    *,
    left: Callable[[], float],
) -> bool:
    """Replay searches and measure what they ask that is not recorded yet, until they ask no more.

    Returns:
        False where time ended before, and where other parts of the grid are still to come.
    """
    if any(point_name(point) not in recorder.recording.done for point in points_of_recording(recorder.recording)):
        return False
    recorder.release_device()
    seeds: Sequence[int] = range(plan.fill_seeds)
    while asked := _asked(recorder.recording, seeds):
        for key, (missing, _) in asked.items():
            for _ in range(1 if key.startswith('["probe"') else plan.passes):
                if left() < _FILL_SECONDS:
                    say(f"stopped before {key}, which a search asks")
                    return False
                try:
                    missing.ask(recorder)
                except (WellfedError, OutOfDeviceMemoryError, UnmeasuredError) as error:
                    say(f"{key} failed, and is kept as that: {error}")
            save()
            say(f"{key}: asked by a search")
        # The others found all they asked, and what was added does not change that.
        seeds = [seed for _, missed in asked.values() for seed in missed]
    return True


def _asked(recording: Recording, seeds: Iterable[int]) -> dict[str, tuple[MissingCallError, list[int]]]:
    """The first call that each seed's search misses, and the seeds that miss it."""
    asked: dict[str, tuple[MissingCallError, list[int]]] = {}
    for seed in seeds:
        try:
            find(recording, seed)
        except MissingCallError as missing:
            asked.setdefault(missing.key, (missing, []))[1].append(seed)
        except (WellfedError, RecordedError):
            continue  # the replay itself reports a search that finds nothing
    return asked
