"""The tuner's flow over a rig: parts, model, search, hold, verdict. Knows no device and opens nothing itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ..config import LoaderSettings, TuneRequest
from ..errors import ResourceError
from .advice.step import step_notes
from .advice.variants import PROBE_SECONDS, try_variants
from .advice.verdict import Verdict, describe, judge
from .budget import Budget
from .budget_notes import budget_notes
from .measure.boundary import BUDGET_SHARE, measure_boundaries
from .measure.differential import RUNS, differential
from .measure.hold import hold
from .measure.memory import MemoryPlan
from .measure.parts import Plan, measure_parts, words_on_left_out
from .measure.rates import Rates
from .model.space import Limits
from .result import Result, evidence_of
from .rig import OutOfDeviceMemoryError, Probe, Rig
from .search.candidates import BATCH_SIZES, Candidates
from .search.interrupted import take_best_so_far
from .search.search import Targets
from .search.winner import WinnerSearch

STOCK_BATCH_SIZE = 64
"""Stock torch is measured at the user's batch size, or at this one, or at the largest below it that fits."""

_RESIZE_SLICES = 10  # of a measurement's length: 20 s, after the hold
_SAMPLE_SLICES = 5  # some hundreds of samples: where one in a hundred is slow, a few of those
_BATCHES_A_SLICE = 4
_LONG_BUDGET = 60.0
_LONG_COMPILING = 10.0
_FEWER_SIZES = 4
_OPENED = 1.5  # a window and the loader's opening before it, over a window

Progress = Callable[[str, float], None]


def quiet(message: str, fraction: float) -> None:
    """Reports no progress."""


@dataclass(frozen=True)
class Device:
    """What the driver must know of the device: memory, whether host batches are pinned for it, whether it is a GPU."""

    memory_total_bytes: int | None
    pin_memory: bool
    on_cuda: bool = False


class Driver:
    """Runs one tune.

    Args:
        rig: the machine, or a fake.
        request: what is asked for.
        limits: of the space.
        device: its memory, and whether host batches are pinned for it.
        progress: called with a message and the share done.
        started: when the tune began; now where None.
        points: settings to choose among; None for the whole space.
    """

    def __init__(
        self,
        rig: Rig,
        request: TuneRequest,
        limits: Limits,
        device: Device,
        *,
        progress: Progress = quiet,
        started: float | None = None,
        points: Sequence[LoaderSettings] | None = None,
    ) -> None:
        self.rig = rig
        self.request = request
        self.limits = limits
        self.device = device
        self._progress, self._shown = progress, 0.0
        self._start = rig.clock() if started is None else started
        self._budget = Budget(request.budget_seconds, rig.clock, self._start, rig.compiling_seconds)
        self._probe_seconds = 0.0  # the longest so far, compiling left out
        self._total = request.budget_seconds + 1.3 * request.hold_seconds
        self._cap = None if not device.memory_total_bytes else int(device.memory_total_bytes * request.memory_cap)
        sizes = request.batch_sizes or BATCH_SIZES
        present = () if request.current is None else (request.current.batch_size,)
        plan = MemoryPlan(
            probe=self._probe,
            sizes=tuple(sorted({*sizes, *present})),
            cap_bytes=self._cap if self._cap is not None else 1 << 62,
            cap_share=request.memory_cap,
        )
        self.result = Result(memory=plan, rates=Rates())
        self._candidates = Candidates(
            rig,
            request,
            limits,
            pin_memory=device.pin_memory,
            cap_bytes=self._cap,
            result=self.result,
            points=points,
        )

    def run(self) -> Result:
        """The whole flow; an interrupt ends it with the best so far once every trial has had a round.

        Raises:
            ResourceError: nothing fits under the memory cap.
            KeyboardInterrupt: before that.
        """
        result = self.result
        result.seconds["preflight"] = self.rig.clock() - self._start
        try:
            self.find()
            self._stage("differential", self._tell_apart)
            self._stage("boundary", self._judge_persistence)
            self.result.notes += budget_notes(self.result, self._budget, self.request.rounds)
            self._stage("hold", self._hold)
            self._stage("advice", self._weigh_advice)
        except KeyboardInterrupt:
            if not take_best_so_far(result, self._targets(), seed=self.request.seed):
                raise
        result.verdict = self._judged()
        result.seconds["compiling"] = self.rig.compiling_seconds()
        result.seconds["total"] = self.rig.clock() - self._start
        return result

    def find(self) -> Result:
        """Memory, rates and search, without the evidence that follows: the choice, not held.

        Raises:
            ResourceError: nothing fits under the memory cap.
        """
        self._stage("memory", self._probe_memory)
        self._stage("rates", self._measure_parts)
        self._stage("search", self._search)
        return self.result

    def _probe(self, batch_size: int, settings: LoaderSettings | None = None) -> Probe:
        began = self._budget.elapsed
        found = self.rig.probe(batch_size) if settings is None else self.rig.probe(batch_size, settings)
        self._probe_seconds = max(self._probe_seconds, self._budget.elapsed - began)
        return found

    def _no_more_probes(self) -> bool:
        """Whether a second probe as long as the first would leave the parts less than half of their time."""
        budget = self._budget
        return budget.compiling_done() or budget.elapsed + self._probe_seconds > 0.5 * budget.seconds

    def _weigh_advice(self) -> None:
        """Measure what the verdict and its advice rest on where data binds; nobody else needs it."""
        result, chosen = self.result, self.result.chosen
        if chosen is None or chosen.trial.settings is None or self._judged().name != "data_limited":
            return
        settings, rates = chosen.trial.settings, result.rates
        seconds = self._budget.slice_seconds
        self._say("what binds: reading in parallel, and samples one by one")
        self.rig.release_device()
        readers = max(1, min(settings.num_workers, self.limits.cores))
        rates.parallel_read_rate = self.rig.parallel_read_rate(readers, seconds)
        rates.sample_seconds = self.rig.sample_seconds(_SAMPLE_SLICES * seconds)
        if self._judged().binds == "decode":
            self._say("what smaller images would bring")
            # Of a slow loader few samples a batch: whoever opens and closes it waits for some of them.
            quick = max(1, min(settings.batch_size, int(median(chosen.values()) * seconds / _BATCHES_A_SLICE)))
            smaller = dataclasses.replace(settings, batch_size=quick)
            rates.resize = self.rig.resize_gain(smaller, _RESIZE_SLICES * seconds)

    def _judged(self) -> Verdict:
        return judge(evidence_of(self.result, self.request, self.limits, self._cap))

    def _stage(self, name: str, work: Callable[[], None]) -> None:
        began = self.rig.clock()
        try:
            work()
        finally:
            self.result.seconds[name] = self.rig.clock() - began

    def _say(self, message: str) -> None:
        self._show(message, min(self.rig.clock() - self._start, self.request.budget_seconds) / self._total)

    def _show(self, message: str, share: float) -> None:
        """Report what is done; what follows the hold has no share of its own, and never leads back."""
        self._shown = max(self._shown, min(0.99, share))
        self._progress(message, self._shown)

    def _probe_memory(self) -> None:
        self._say("device memory: probing batch sizes")
        present = self.request.current
        self.result.memory.start(enough=self._no_more_probes, keep=() if present is None else (present.batch_size,))
        if self.result.memory.unmeasured is not None:
            self.result.notes.append(f"Device memory was not measured: {self.result.memory.unmeasured}.")
        self.result.notes += step_notes(
            self.request.step,
            self.result.memory.probes.values(),
            device_bytes=self._cap,
            host_bytes=self.limits.host_bytes,
            on_cuda=self.device.on_cuda,
        )
        self._spare_compiling()

    def _spare_compiling(self) -> None:
        """Fewer batch sizes for a step that compiles anew at each, unless they were asked for one by one."""
        compiling = self.rig.compiling_seconds()
        if compiling < _LONG_COMPILING or self.request.batch_sizes:
            return
        present = self.request.current
        keep = [STOCK_BATCH_SIZE if present is None else present.batch_size]
        left_out = self.result.memory.thin_out(_FEWER_SIZES, keep)
        if left_out:
            self.result.notes.append(
                f"Batch sizes {', '.join(map(str, left_out))} were left out: the step compiles anew at each, which "
                f"took {compiling:.0f} s in the first {len(self.result.memory.probes)}. --batch-sizes chooses others."
            )

    def _measure_parts(self) -> None:
        result, request, budget = self.result, self.request, self._budget
        # Stock torch keeps its usual batch size, also where a smaller one already saturates the step.
        stock = self._stock_batch_size()
        plan = Plan(
            seconds=budget.slice_seconds,
            image_size=request.image_size,
            pin_memory=self.device.pin_memory,
            util_target=request.util_target,
            required=[] if request.current is None else [request.current.batch_size],
            wanted=[] if stock is None else [stock],
            stop=budget.rates_done,
            left=budget.rates_left,
            say=self._say,
        )
        result.rates = measure_parts(self.rig, result.memory, self.limits, plan)
        if not result.rates.ceilings:
            raise ResourceError(
                "the step must run on the device at one batch size at least",
                got=f"out of memory at batch size {min(result.memory.probes)}",
                remedy="Use a smaller model, image or batch size.",
            )
        result.notes += words_on_left_out(result.rates, self.limits, request.image_size)

    def _stock_batch_size(self) -> int | None:
        """Once the step was measured, one of the sizes that time has reached."""
        wanted = STOCK_BATCH_SIZE if self.request.current is None else self.request.current.batch_size
        sizes = [size for size in self.result.memory.sizes if size in (self.result.rates.ceilings or (size,))]
        fitting = [size for size in sizes if self.result.memory.likely(size)]
        return max((s for s in fitting if s <= wanted), default=min(fitting, default=None))

    def _search(self) -> None:
        WinnerSearch(
            rig=self.rig,
            request=self.request,
            result=self.result,
            budget=self._budget,
            candidates=self._candidates,
            targets=self._targets(),
            stock_batch_size=self._stock_batch_size,
            keep=self._kept,
            probe_seconds=lambda: self._probe_seconds,
            say=self._say,
        ).run()

    @property
    def _table_seconds(self) -> float:
        """What the differential table will take: windows as long as the longest of the rounds, or as asked for."""
        walls = [m.window.wall_seconds for record in self.result.records for m in record.rounds.values()]
        return RUNS * _OPENED * max([self._budget.slice_seconds, *walls])

    def _kept(self) -> float:
        """What the search leaves for the table and boundaries; nothing where time is short."""
        if self.request.budget_seconds < _LONG_BUDGET:
            return 0.0
        return self._table_seconds + BUDGET_SHARE * self.request.budget_seconds

    def _tell_apart(self) -> None:
        """The differential table of the chosen settings, where the budget still holds it."""
        chosen = self.result.chosen
        if chosen is None or chosen.trial.settings is None or self._budget.left < self._table_seconds:
            return
        self._say("where each second goes")
        for record in self.result.records:
            self.rig.drop(record.trial)
        try:
            self.result.differential = differential(self.rig, chosen.trial.settings, seconds=self._budget.slice_seconds)
        except OutOfDeviceMemoryError:
            self.result.notes.append("Where each second goes was not measured: the device's memory ran out.")

    def _targets(self) -> Targets:
        return Targets(self.request.util_target, self.request.fed_target, self._cap)

    def _hold(self) -> None:
        chosen, request = self.result.chosen, self.request
        if chosen is None or chosen.trial.settings is None:
            raise ValueError("a hold needs chosen settings")
        settings = chosen.trial.settings
        self.rig.release_device()
        if self.device.on_cuda:
            self.result.notes += try_variants(
                self.rig,
                self.result.memory,
                chosen,
                fed_target=request.fed_target,
                left=lambda: self._budget.left,
                probe_seconds=max(PROBE_SECONDS, self._probe_seconds),
                say=self._say,
            )

        def show(share: float) -> None:
            fraction = (request.budget_seconds + share * 1.3 * request.hold_seconds) / self._total
            self._show(f"holding {describe(settings)}", fraction)

        show(0.0)
        try:
            self.result.hold = hold(
                self.rig,
                settings,
                seconds=request.hold_seconds,
                expected_samples_per_second=median(chosen.values()),
                seed=request.seed,
                progress=show,
            )
        except OutOfDeviceMemoryError as error:
            raise ResourceError(
                f"the chosen batch size, {settings.batch_size}, must keep fitting on the device",
                got="out of memory in the held run",
                remedy="Something else took device memory meanwhile: free the device and tune again.",
            ) from error
        told = self.result.hold.words_on_workers()
        self.result.notes += [] if told is None else [told]
        for window in self.result.hold.ceilings:
            self.result.rates.add_ceiling(window)

    def _judge_persistence(self) -> None:
        """Keep workers between epochs or not, by what boundaries cost; the user's own settings stay as they are."""
        chosen, rates = self.result.chosen, self.result.rates
        if chosen is None or chosen.trial.settings is None or not chosen.trial.settings.num_workers:
            return
        self.rig.release_device()
        self._say("cost of an epoch boundary")
        rates.boundaries = measure_boundaries(
            self.rig,
            chosen.trial.settings,
            samples_per_second=median(chosen.values()),
            left=lambda: self._budget.left,
            most=BUDGET_SHARE * self.request.budget_seconds,
        )
        if chosen.trial.role != "current":
            # Within an epoch both run alike, so that rounds do not tell them apart.
            settings = dataclasses.replace(chosen.trial.settings, persistent_workers=rates.boundaries.keep)
            chosen.trial = dataclasses.replace(chosen.trial, settings=settings, label=describe(settings))
        self.result.notes.append(rates.boundaries.words())
