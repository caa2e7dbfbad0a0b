"""The rig on a real machine: loaders, steps and the device, opened when asked for and closed together."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from ...config import LoaderSettings
from ...formats import Source
from ...formats.temporary import TemporaryFolder
from ...training import (
    Accelerator,
    CachedBatches,
    MemoryProbe,
    Step,
    StepSpec,
    Window,
    build_step,
    measure,
    probe_memory,
)
from ...training.compiled import StaticGraphs
from ...training.stall import guarded_from_stalls
from ...training.variants import Variant
from ..advice.batch import OptimizerFacts, optimizer_facts
from ..advice.step import refuse_fault
from ..measure.boundary import batches_before
from ..measure.evidence import ResizeGain, read_in_parallel, resize_gain
from ..ranks.together import ALONE, Together
from ..rig import Cache, Order, OutOfDeviceMemoryError, Probe, Supply, Trial
from .compiling import CompilingTime
from .feed import Feed, paced
from .loaders import STALL_SECONDS, Loaders
from .settle import SETTLE_SECONDS, settle
from .supply import SuppliedSource, some_rows
from .throughput import copying_rate, reading_rate
from .turns import workers_in_turn
from .worker_memory import read_beside

PROBE_TIMEOUT_SECONDS = 300.0
"""For the start of a probing process, and for building the step and its first call, which may compile."""

_MOST_SAMPLES = 2000
_RESIZE_OVER_CROP = 256 / 224
"""Stored images of 256 pixels for crops of 224 are what ImageNet recipes use."""

_LONGER = 4.0  # a slow loader alone is measured for as many times as long, until enough batches have come
_WARM_STEPS = 3
_WAITED_SECONDS = 0.02


class MachineRig:
    """Implements `rig.Rig`; a context manager that closes every loader, step and worker, also on Ctrl-C.

    Args:
        source: the dataset; not closed here.
        spec: the step.
        device: name to open the same device in a child process.
        accelerator: the open device; not closed here.
        seed: of order and augmentation.
        clock: monotonic seconds.
        together: with the rigs of other ranks, each of which has its part of the dataset.
    """

    def __init__(
        self,
        source: Source,
        spec: StepSpec,
        device: str,
        accelerator: Accelerator,
        *,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        together: Together = ALONE,
    ) -> None:
        self._source = source
        self._spec = spec
        self._device = device
        self._accelerator = accelerator
        self._seed = seed
        self._clock = clock
        self._together = together
        self._loaders = Loaders(
            source, accelerator.torch_device, image_size=spec.image_size, seed=seed, together=together
        )
        self._feeds: dict[str, Feed] = {}
        self._steps: dict[int, Step] = {}
        self._optimizers: dict[int, OptimizerFacts] = {}
        self._cached: dict[int, CachedBatches] = {}
        self._turned_to: int | None = None
        self._graphs = StaticGraphs()
        self._compiling = CompilingTime()

    def __enter__(self) -> MachineRig:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all loaders and forget steps and cached batches."""
        with ExitStack() as stack:
            for feed in self._feeds.values():
                stack.callback(feed.close)
            self._feeds.clear()
        self._steps.clear()
        self._cached.clear()
        self._graphs.restore()

    def clock(self) -> float:
        return self._clock()

    def compiling_seconds(self) -> float:
        return self._compiling.seconds

    def _probed(self, found: MemoryProbe) -> MemoryProbe:
        self._compiling.probed(() if found.facts is None else found.facts.call_seconds)
        return found

    def probe(self, batch_size: int, settings: LoaderSettings | None = None) -> Probe:
        loader = None
        if settings is not None:
            loader = self._loaders.of_probe(settings, batch_size)
        found = self._probe(batch_size, loader=loader)
        refuse_fault(self._spec.name, found)
        return found

    def probe_variant(self, batch_size: int, variant: Variant) -> Probe:
        return self._probe(batch_size, variant=variant)

    def _probe(self, batch_size: int, **how: Any) -> MemoryProbe:
        group = self._together.probe_group()
        found = probe_memory(
            self._spec, self._device, batch_size, timeout_seconds=PROBE_TIMEOUT_SECONDS, group=group, **how
        )
        if found.peak_bytes is None:
            self._together.tell_unprobed()
        return self._probed(found)

    def ceiling(self, batch_size: int, seconds: float) -> Window:
        return self._guarded(batch_size, lambda: self._ceiling(batch_size, seconds))

    def _turn_to(self, batch_size: int) -> None:
        """Give back what the device's allocator kept of another batch size: it would count as this one's memory."""
        if batch_size != self._turned_to:
            self._accelerator.reset_peak()
            self._turned_to = batch_size

    def _ceiling(self, batch_size: int, seconds: float) -> Window:
        self._turn_to(batch_size)
        step = self._step(batch_size)
        batches = self._batches(batch_size)
        self._measure(step, batches, seconds, max_steps=_WARM_STEPS)
        return self._measure(step, batches, seconds)

    def _batches(self, batch_size: int) -> CachedBatches:
        batches = self._cached.get(batch_size)
        if batches is None:
            batches = self._cached[batch_size] = CachedBatches(
                self._accelerator,
                batch_size,
                self._spec.image_size,
                seed=self._seed,
                num_classes=self._spec.num_classes,
            )
        return batches

    def fed(self, trial: Trial, seconds: float) -> Window:
        return self._guarded(trial.batch_size, lambda: self._fed(trial, seconds))

    def _fed(self, trial: Trial, seconds: float) -> Window:
        self._turn_to(trial.batch_size)
        step = self._step(trial.batch_size)
        feed = self._feeds.get(trial.id)
        if feed is None:
            feed = self._feeds[trial.id] = self._loaders.feed(trial.settings, trial.batch_size)
        self._warm(step, feed, trial.settings, seconds)
        window = self._measure(step, feed, seconds, turn=workers_in_turn(trial.settings))
        # What this loader makes ready from here on would slow down whoever is measured next.
        settle(self._clock)
        return window

    def drop(self, trial: Trial) -> None:
        feed = self._feeds.pop(trial.id, None)
        if feed is not None:
            feed.close()

    def optimizer_of(self, batch_size: int) -> OptimizerFacts:
        """What the step at this batch size showed of its optimizer when it was built; nothing where it was not."""
        return self._optimizers.get(batch_size, OptimizerFacts(None, None))

    def release_device(self) -> None:
        self.close()
        # Steps and batches may be in cycles; device memory is only free once they are collected.
        gc.collect()
        self._accelerator.synchronize()
        self._accelerator.reset_peak()

    def loader_alone(self, settings: LoaderSettings, seconds: float) -> float:
        return self._rate_of(self._loaders.feed(settings, settings.batch_size), settings, seconds)

    def stock_alone(self, batch_size: int, seconds: float) -> float:
        return self._rate_of(self._loaders.feed(None, batch_size), None, seconds)

    def _rate_of(self, opened: Feed, settings: LoaderSettings | None, seconds: float) -> float:
        with closing(opened) as feed:
            self._drain(feed, settings)
            # Workers that began together come together: a few batches say how they came, not how fast.
            least = 2 * max(2, 0 if settings is None else settings.num_workers)
            started = now = self._clock()
            samples = batches = 0
            while now - started < (seconds if batches >= least else _LONGER * seconds):
                samples += len(self._accelerator.copy(next(feed))[0])
                batches += 1
                now = self._clock()
            return samples / (now - started)

    def beside(self, settings: LoaderSettings, every: int, seconds: float) -> Window:
        return self._guarded(settings.batch_size, lambda: self._beside(settings, every, seconds))

    def _beside(self, settings: LoaderSettings, every: int, seconds: float) -> Window:
        self._turn_to(settings.batch_size)
        step = self._step(settings.batch_size)
        feed = self._loaders.feed(settings, settings.batch_size)
        try:
            self._drain(feed, settings)
            batches = paced(self._batches(settings.batch_size), feed, every)
            self._measure(step, batches, seconds, max_steps=_WARM_STEPS * every)
            return self._measure(step, batches, seconds)
        finally:
            feed.close()
            settle(self._clock)

    def supplied(self, settings: LoaderSettings, supply: Supply, seconds: float) -> Window:
        return self._guarded(settings.batch_size, lambda: self._supplied(settings, supply, seconds))

    def _supplied(self, settings: LoaderSettings, supply: Supply, seconds: float) -> Window:
        self._turn_to(settings.batch_size)
        step = self._step(settings.batch_size)
        some = SuppliedSource(self._source, some_rows(self._source), supply)
        feed = Feed(self._loaders.open(settings, some))
        try:
            self._warm(step, feed, settings, seconds)
            return self._measure(step, feed, seconds, turn=workers_in_turn(settings))
        finally:
            feed.close()
            settle(self._clock)

    def read_rate(self, seconds: float) -> float:
        return self.reads("random", "warm", seconds)

    def reads(self, order: Order, cache: Cache, seconds: float) -> float:
        return reading_rate(self._source, order, cache, seconds, seed=self._seed, clock=self._clock)

    def parallel_read_rate(self, readers: int, seconds: float) -> float:
        return read_in_parallel(self._source, readers, seconds, seed=self._seed, clock=self._clock)

    def sample_seconds(self, seconds: float) -> list[float]:
        taken: list[float] = []
        one = LoaderSettings(backend="threads", num_workers=0, batch_size=1, pin_memory=False)
        with closing(Feed(self._loaders.open(one))) as feed:
            next(feed)  # opens files
            started = before = self._clock()
            while before - started < seconds and len(taken) < _MOST_SAMPLES:
                next(feed)
                now = self._clock()
                taken.append(now - before)
                before = now
        return taken

    def resize_gain(self, settings: LoaderSettings, seconds: float) -> ResizeGain | None:
        with closing(TemporaryFolder("wellfed-resize-")) as folder:
            return resize_gain(
                self._source,
                settings,
                side=round(self._spec.image_size * _RESIZE_OVER_CROP),
                folder=folder.path,
                workers=max(1, settings.num_workers),
                seconds=seconds,
                seed=self._seed,
                clock=self._clock,
                rate_of=lambda source, length: self._rate_of(
                    Feed(self._loaders.open(settings, source)), settings, length
                ),
            )

    def copy_rate(self, batch_size: int, seconds: float, *, pinned: bool) -> float:
        return copying_rate(
            self._accelerator, batch_size, self._spec.image_size, seconds, pinned=pinned, clock=self._clock
        )

    def boundary_seconds(self, settings: LoaderSettings) -> float:
        with self._loaders.open(settings) as loader:
            state = loader.state_dict()
            batches = batches_before(settings)
            loader.load_state_dict(
                {**state, "position": self._loaders.position_before_end(loader, batches * settings.batch_size)}
            )
            for _ in loader:
                last = self._clock()
            iterator = iter(loader)
            next(iterator)
            return self._clock() - last

    @contextmanager
    def hold(self, settings: LoaderSettings, *, samples_before_boundary: int) -> Iterator[_MachineHold]:
        with self._loaders.open(settings) as loader:
            position = self._loaders.position_before_end(loader, samples_before_boundary)
            loader.load_state_dict({**loader.state_dict(), "position": position})
            yield _MachineHold(self, Feed(loader), settings)

    def epoch_samples(self, batch_size: int) -> int:
        return self._loaders.epoch_samples(batch_size)

    def _step(self, batch_size: int) -> Step:
        step = self._steps.get(batch_size)
        if step is None:
            step = self._steps[batch_size] = build_step(self._spec, self._accelerator, batch_size)
            # Facts alone: the optimizer would keep its memory on the device when the step is released.
            self._optimizers[batch_size] = optimizer_facts(step.optimizer)
        self._graphs.apply()
        return step

    def _measure(
        self, step: Step, batches: Iterator[Any], seconds: float, max_steps: int | None = None, *, turn: int = 1
    ) -> Window:
        # A first call may compile.
        first = not getattr(step, "calls", 1)
        limit = PROBE_TIMEOUT_SECONDS if first else STALL_SECONDS
        go_on = self._together.pace(seconds, max_steps, turn)
        with guarded_from_stalls(step, batches, limit_seconds=limit) as (watched, watched_batches):
            window = measure(
                watched,
                watched_batches,
                self._accelerator,
                seconds=seconds,
                max_steps=max_steps,
                go_on=go_on,
                clock=self._clock,
            )
        warming_up = first or max_steps is not None
        self._compiling.called(window.batch_size, window.step_seconds, warming_up=warming_up)
        return window

    def _drain(self, feed: Feed, settings: LoaderSettings | None) -> None:
        """Take what was made ready beforehand: a window that begins with a full queue flatters the loader."""
        ready = 1 if settings is None else 1 + settings.num_workers * settings.prefetch_factor
        if settings is not None and settings.backend != "processes":
            # Threads decode one batch together: beyond a few batches the queue refills while it is emptied.
            ready = min(ready, 1 + 2 * settings.prefetch_factor)
        for _ in range(ready):
            asked = self._clock()
            batch = next(feed)
            # The copy of a large batch takes as long, and says nothing of the queue.
            waited = self._clock() - asked
            self._accelerator.copy(batch)
            if waited > _WAITED_SECONDS:  # this one was not ready: the queue is empty
                return

    def _warm(self, step: Step, feed: Feed, settings: LoaderSettings | None, seconds: float) -> None:
        self._drain(feed, settings)
        self._measure(step, feed, seconds, max_steps=1 if settings is None else _WARM_STEPS + workers_in_turn(settings))

    def _guarded(self, batch_size: int, run: Callable[[], Window]) -> Window:
        """Once more with the device to itself where steps of other batch sizes took the memory."""
        for attempt in range(2):
            try:
                return self._together.agreed(run)
            except Exception as error:
                if not self._accelerator.is_out_of_memory(error):
                    raise
                failure = error.with_traceback(None)
            self._steps.clear()
            self._cached.clear()
            gc.collect()
            self._accelerator.reset_peak()
            self._together.recover()
            if attempt:
                raise OutOfDeviceMemoryError(f"batch size {batch_size}") from failure
        raise AssertionError("unreachable")


class _MachineHold:
    def __init__(self, rig: MachineRig, feed: Feed, settings: LoaderSettings) -> None:
        self._rig = rig
        self._feed = feed
        self._settings = settings
        self._worker_bytes: Mapping[int, int] = {}

    @property
    def epochs_crossed(self) -> int:
        return self._feed.epochs_crossed

    def resume(self) -> None:
        step = self._rig._step(self._settings.batch_size)
        self._rig._warm(step, self._feed, self._settings, SETTLE_SECONDS)

    def feed(self, seconds: float) -> Window:
        step = self._rig._step(self._settings.batch_size)
        with read_beside(self._feed.loader.worker_pids, self._keep):
            return self._rig._guarded(
                self._settings.batch_size,
                lambda: self._rig._measure(step, self._feed, seconds, turn=workers_in_turn(self._settings)),
            )

    def _keep(self, found: Mapping[int, int]) -> None:
        self._worker_bytes = found

    def worker_bytes(self) -> Mapping[int, int]:
        return self._worker_bytes
