"""A machine made of formulas, with a virtual clock: whole tunes run in milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch.distributed as dist

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.training.step_facts import StepFacts
from wellfed.pipeline.tune.measure.evidence import ResizeGain
from wellfed.pipeline.tune.ranks.agreement import Ranks
from wellfed.pipeline.tune.rig import OutOfDeviceMemoryError, Trial, UnmeasuredError


@dataclass(frozen=True, kw_only=True)
class FakeWindow:
    batch_size: int
    steps: int
    samples: float
    wall_seconds: float
    wait_seconds: tuple[float, ...]
    step_seconds: tuple[float, ...]
    util_percent: float | None
    util_reason: str | None
    peak_bytes: int | None
    host_rss_bytes: tuple[int, ...] = (1000,)
    host_rss_seconds: tuple[float, ...] = (0.0,)

    def to_dict(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, "samples": self.samples, "wall_seconds": self.wall_seconds}


@dataclass(frozen=True)
class FakeProbe:
    batch_size: int
    peak_bytes: int | None
    out_of_memory: bool = False
    error: str | None = None
    facts: StepFacts | None = None


MEBI = 1 << 20


@dataclass
class FakeRig:
    """Samples/s are formulas; every measurement takes exactly the virtual time asked for.

    Attributes:
        step: batch size -> samples/s and utilization on cached batches.
        loader: settings -> samples/s of the loader; beside the step it reaches `share_beside` of that.
        decode_cost: settings -> device seconds that decoding an image there takes from the step.
        wobble: factors by which successive fed windows differ.
        peak: batch size -> bytes.
        loader_bytes: device memory that a loader takes beside the step.
        facts: batch size -> what a probe's calls showed.
        fails_at: batch sizes that run out of memory outside probes; probes fail from `probe_fails_at` on.
    """

    step: Callable[[int], tuple[float, float | None]] = lambda b: (600.0, 95.0)
    loader: Callable[[LoaderSettings], float] = lambda s: 400.0 * max(1, s.num_workers)
    stock: float = 150.0
    share_beside: float = 1.0
    wobble: tuple[float, ...] = (1.0, 1.002, 0.998)
    peak: Callable[[int], int | None] = lambda b: (500 + 20 * b) * MEBI
    fails_at: int = 1 << 30
    probe_fails_at: int = 1 << 30
    probe_error: str | None = None
    loader_bytes: Callable[[LoaderSettings], int] = lambda s: 0
    facts: Callable[[int], StepFacts] | None = None
    variant: Callable[[int, str], FakeProbe] = lambda b, v: FakeProbe(b, None, False, "not here")
    reading: float = 10_000.0
    copying: float = 1_000_000.0
    reading_together: float | None = None
    samples: tuple[float, ...] = (0.002,) * 100
    gain: ResizeGain | None = None
    pageable: float | None = None
    no_cold: str | None = None
    decode_cost: Callable[[LoaderSettings], float] = lambda s: 0.0
    util_reason: str | None = None
    growth_bytes_per_second: float = 0.0
    worker_growth: float = 0.0
    boundaries: dict[bool, float] = field(default_factory=lambda: {True: 0.1, False: 4.0})
    boundary_takes: float = 1.0
    probe_takes: float = 3.0
    compile_takes: float = 0.0
    compiled: float = 0.0
    ready: set[tuple[int, str]] = field(default_factory=set)
    interrupt_after: int = 1 << 30
    launch_seconds: float = 0.01
    now: float = 0.0
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    open_trials: set[str] = field(default_factory=set)
    held: int = 0
    windows: int = 0
    crossed: int = 0

    def clock(self) -> float:
        return self.now

    def compiling_seconds(self) -> float:
        return self.compiled

    def _compile(self, batch_size: int, where: str) -> None:
        """A first call of the step at this batch size, in a probe or in this process."""
        if (batch_size, where) not in self.ready:
            self.now += self.compile_takes
            self.compiled += max(0.0, self.compile_takes - 5.0)
            self.ready.add((batch_size, where))

    def _window(self, batch: int, speed: float, util: float | None, seconds: float, waits: float) -> FakeWindow:
        self.windows += 1
        if self.windows > self.interrupt_after:
            raise KeyboardInterrupt
        start = self.now
        self.now += seconds
        steps = max(1, int(speed * seconds / batch))
        return FakeWindow(
            batch_size=batch,
            steps=steps,
            samples=speed * seconds,
            wall_seconds=seconds,
            wait_seconds=(waits * seconds / steps,) * steps,
            step_seconds=(self.launch_seconds,) * steps,
            util_percent=None if self.util_reason else util,
            util_reason=self.util_reason,
            peak_bytes=self.peak(batch),
            host_rss_bytes=(int(10**9 + self.growth_bytes_per_second * (start + seconds / 2)),),
        )

    def probe(self, batch_size: int, settings: LoaderSettings | None = None) -> FakeProbe:
        self.calls.append(("probe", batch_size) if settings is None else ("fed probe", batch_size, settings))
        self.now += self.probe_takes
        self._compile(batch_size, f"probe {len(self.calls)}")
        if self.probe_error:
            return FakeProbe(batch_size, None, False, self.probe_error)
        if batch_size >= self.probe_fails_at:
            return FakeProbe(batch_size, None, True)
        held = 0 if settings is None else self.loader_bytes(settings)
        peak = self.peak(batch_size)
        facts = None if self.facts is None else self.facts(batch_size)
        return FakeProbe(batch_size, None if peak is None else peak + held, facts=facts)

    def probe_variant(self, batch_size: int, variant: str) -> FakeProbe:
        self.calls.append(("variant", batch_size, variant))
        self.now += 3.0
        return self.variant(batch_size, variant)

    def ceiling(self, batch_size: int, seconds: float) -> FakeWindow:
        self.calls.append(("ceiling", batch_size))
        if batch_size >= self.fails_at:
            raise OutOfDeviceMemoryError
        self._compile(batch_size, "here")
        speed, util = self.step(batch_size)
        return self._window(batch_size, speed, util, seconds, 0.0)

    def _fed(self, batch_size: int, alone: float, seconds: float, taken: float = 0.0) -> FakeWindow:
        top, util = self.step(batch_size)
        alone = min(alone, 1 / (1 / top + taken))
        speed = min(top, alone * self.share_beside) * self.wobble[self.windows % len(self.wobble)]
        speed = min(speed, top)
        share = speed / top
        return self._window(batch_size, speed, None if util is None else util * share, seconds, 1 - share)

    def fed(self, trial: Trial, seconds: float) -> FakeWindow:
        self.calls.append(("fed", trial.id))
        self.open_trials.add(trial.id)
        alone = self.stock if trial.settings is None else self.loader(trial.settings)
        return self._fed(trial.batch_size, alone, seconds, self._taken(trial.settings))

    def _taken(self, settings: LoaderSettings | None) -> float:
        """Device seconds that decoding takes from each sample of the step."""
        if settings is None or settings.backend in ("threads", "processes"):
            return 0.0
        share = settings.gpu_share if settings.backend == "hybrid" else 1.0
        return share * self.decode_cost(settings)

    def drop(self, trial: Trial) -> None:
        self.open_trials.discard(trial.id)

    def release_device(self) -> None:
        self.open_trials.clear()
        self.ready.clear()

    def loader_alone(self, settings: LoaderSettings, seconds: float) -> float:
        self.calls.append(("alone", settings.backend, settings.num_workers))
        self.now += seconds
        return self.loader(settings)

    def read_rate(self, seconds: float) -> float:
        self.now += seconds
        return self.reading

    def parallel_read_rate(self, readers: int, seconds: float) -> float:
        self.now += seconds
        return self.reading * readers if self.reading_together is None else self.reading_together

    def sample_seconds(self, seconds: float) -> tuple[float, ...]:
        self.now += seconds
        return self.samples

    def resize_gain(self, settings: LoaderSettings, seconds: float) -> ResizeGain | None:
        self.calls.append(("resize", settings.num_workers, seconds))
        self.now += seconds
        return self.gain

    def stock_alone(self, batch_size: int, seconds: float) -> float:
        self.now += seconds
        return self.stock

    def beside(self, settings: LoaderSettings, every: int, seconds: float) -> FakeWindow:
        self.calls.append(("beside", settings.backend, settings.hw_decoder_load, every))
        speed, util = self.step(settings.batch_size)
        taken = self.decode_cost(settings) / every
        return self._window(settings.batch_size, 1 / (1 / speed + taken), util, seconds, 0.0)

    def supplied(self, settings: LoaderSettings, supply: str, seconds: float) -> FakeWindow:
        self.calls.append(("supplied", supply))
        if supply == "storage" and self.no_cold:
            raise UnmeasuredError(self.no_cold)
        speed = self.loader(settings) * {"bytes": 1.0, "files": 0.9, "storage": 0.5}[supply]
        return self._fed(settings.batch_size, speed, seconds)

    def reads(self, order: str, cache: str, seconds: float) -> float:
        self.calls.append(("reads", order, cache))
        if cache == "cold" and self.no_cold:
            raise UnmeasuredError(self.no_cold)
        self.now += seconds
        return self.reading / (1 if cache == "warm" else 4 if order == "sequential" else 20)

    def copy_rate(self, batch_size: int, seconds: float, *, pinned: bool) -> float:
        self.now += seconds
        return self.copying if pinned or not self.pageable else self.pageable

    def boundary_seconds(self, settings: LoaderSettings) -> float:
        self.calls.append(("boundary", settings.persistent_workers))
        self.now += self.boundary_takes
        return self.boundaries[settings.persistent_workers]

    @contextmanager
    def hold(self, settings: LoaderSettings, *, samples_before_boundary: int) -> Iterator[FakeHold]:
        self.held += 1
        try:
            yield FakeHold(self, settings, samples_before_boundary)
        finally:
            self.held -= 1

    def epoch_samples(self, batch_size: int) -> int:
        return 200 * batch_size


@dataclass
class FakeHold:
    rig: FakeRig
    settings: LoaderSettings
    left: float
    epochs_crossed: int = 0

    def resume(self) -> None:
        self.rig.now += 0.1

    def feed(self, seconds: float) -> FakeWindow:
        window = self.rig._fed(self.settings.batch_size, self.rig.loader(self.settings), seconds)
        self.left -= window.samples
        while self.left < 0:
            self.left += self.rig.epoch_samples(self.settings.batch_size)
            self.epochs_crossed += 1
        return window

    def worker_bytes(self) -> dict[int, int]:
        if self.settings.backend != "processes":
            return {}
        # Workers that are started anew at a boundary have other numbers, and begin small.
        generation = 0 if self.settings.persistent_workers else 100 * self.epochs_crossed
        grown = int(self.rig.worker_growth * self.rig.now / self.settings.num_workers)
        return {generation + number: 10**8 + grown for number in range(self.settings.num_workers)}


@pytest.fixture
def fake_rig() -> type[FakeRig]:
    return FakeRig


@pytest.fixture
def fake_window() -> type[FakeWindow]:
    return FakeWindow


OnEachRank = Callable[..., list[Any]]


@pytest.fixture
def on_each() -> OnEachRank:
    """`on_each(count, work)`: what `work(ranks)` returned, or raised, on each of so many ranks, which are threads."""

    def run_all(count: int, work: Callable[[Ranks], Any], **options: Any) -> list[Any]:
        store = dist.HashStore()
        found: list[Any] = [None] * count

        def run(rank: int) -> None:
            try:
                found[rank] = work(Ranks(store, rank, count, **options))
            except BaseException as error:
                found[rank] = error

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        return found

    return run_all
