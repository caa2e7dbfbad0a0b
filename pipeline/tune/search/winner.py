"""The search up to its winner: rounds of trials, more where the model proposes them, and a probe of what wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...config import TuneRequest
from ...errors import ResourceError
from ..advice.verdict import describe
from ..budget import Budget
from ..measure.memory import holds_on_device
from ..result import Result
from ..rig import Rig
from .candidates import MOST_CANDIDATES, Candidates
from .rounds import run_rounds
from .search import Record, Search, Targets, choose, comparisons, undecided

_MOST_ROUNDS = 10


@dataclass(frozen=True, kw_only=True)
class WinnerSearch:
    """Finds the settings to hold; `run` sets what was tried, chosen and compared in the result.

    Args:
        candidates: what is tried.
        targets: of a choice.
        stock_batch_size: of stock torch, by what memory is known to hold; it is left out where None.
        keep: seconds of the budget that later stages need.
        probe_seconds: the longest probe so far.
        say: reports what is done now.
    """

    rig: Rig
    request: TuneRequest
    result: Result
    budget: Budget
    candidates: Candidates
    targets: Targets
    stock_batch_size: Callable[[], int | None]
    keep: Callable[[], float]
    probe_seconds: Callable[[], float]
    say: Callable[[str], None]

    def run(self) -> None:
        """Measure trials until one has won that fits, and as clearly as the budget allows.

        Raises:
            ResourceError: none runs and fits under the memory cap.
        """
        request, result = self.request, self.result
        search = Search(self.candidates.trials(**self._what_to_try()), rounds=request.rounds, seed=request.seed)
        result.records = search.records
        self._run_rounds(search)
        winner = self._choose(search)
        while winner is None and (fresh := self.candidates.instead(search, **self._what_to_try())):
            # Probing ruled out every batch size, or every loader, that was tried: of those that are left.
            for trial in fresh:
                search.add(trial)
            self._run_rounds(search)
            winner = self._choose(search)
        while (
            winner is not None
            and search.rounds < _MOST_ROUNDS
            and self._left() > self._round_seconds(search)
            and undecided(search.records, winner, seed=request.seed)
        ):
            search.extend(1)
            self._run_rounds(search)
            winner = self._choose(search)
        if winner is None:
            raise ResourceError(
                "at least one setting must run and fit under the memory cap",
                got="; ".join(f"{r.trial.label}: {r.left or 'no batch in its time'}" for r in search.records),
                remedy="Give a smaller --batch-sizes, or a larger --memory-cap or --budget.",
            )
        result.chosen = winner
        result.comparisons = comparisons(search.records, winner, seed=request.seed)

    def _what_to_try(self) -> dict[str, Any]:
        stock = self.stock_batch_size()
        fixed = (self.request.current is not None) + (stock in self.result.rates.ceilings)
        count = self.budget.candidates(self.request.rounds, fixed=fixed, most=MOST_CANDIDATES)
        return {"stock_batch_size": stock, "count": count}

    def _run_rounds(self, search: Search) -> None:
        run_rounds(
            self.rig,
            search,
            self.result.rates,
            seconds=self.budget.slice_seconds,
            left=self._left,
            say=self.say,
            between=self._between_rounds,
        )

    def _between_rounds(self, search: Search) -> None:
        """Let the model, corrected by what the trials have shown, propose more where time is left for them."""
        if self.budget.left > self._round_seconds(search) * (search.rounds - search.round):
            for trial in self.candidates.more(search):
                search.add(trial)

    def _choose(self, search: Search) -> Record | None:
        """The winner, its batch size probed: the line through the peaks only decides what is worth measuring."""
        memory = self.result.memory
        while (winner := choose(search.records, self.targets, seed=self.request.seed)) is not None:
            size = winner.trial.batch_size
            if self.targets.cap_bytes is None or memory.unmeasured is not None:
                return winner
            if size not in memory.probes:
                self.say(f"device memory: probing batch {size}")
            if memory.check(size):
                if self._fits_with_loader(winner):
                    return winner
                search.bar(winner.trial, "does not fit under the memory cap together with its loader")
                continue
            memory.rule_out(size)
            for record in search.records:
                if record.trial.batch_size >= size:
                    search.bar(record.trial, "does not fit under the memory cap")
        return None

    def _fits_with_loader(self, winner: Record) -> bool:
        """Whether the step fits beside what its loader holds on the device.

        A loader that decodes on the CPU holds there the batches that the plain probe holds too.
        """
        settings = winner.trial.settings
        if settings is None or not holds_on_device(settings):
            return True
        if settings not in self.result.memory.fed:
            self.say(f"device memory: probing {describe(settings)}")
        return self.result.memory.check_fed(settings)

    def _round_seconds(self, search: Search) -> float:
        live = sum(record.left is None for record in search.records)
        return live * self.budget.slice_seconds * 2

    def _left(self) -> float:
        """Of the budget, when the winner's probe and what comes later have had theirs."""
        later, memory = self.keep(), self.result.memory
        running = {record.trial.batch_size for record in self.result.records if record.left is None}
        if later and self.targets.cap_bytes is not None and memory.unmeasured is None:
            later += 0.0 if running <= set(memory.probes) else self.probe_seconds()
        return self.budget.left - later
