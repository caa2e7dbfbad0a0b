"""Which settings are tried: the model's picks before the first round, and what it picks once it has seen some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from ...config import LoaderSettings, TuneRequest
from ..advice.verdict import describe
from ..model.bottleneck import Model
from ..model.points import Points
from ..model.shortlist import Pick, Shortlist
from ..model.space import Limits, all_points
from ..result import Result
from ..rig import Rig, Trial
from .search import Search

BATCH_SIZES = (16, 32, 64, 128, 256, 512, 1024)

MOST_CANDIDATES = 8
"""The first round is for looking around; most leave after it."""

_REFINED_ROUNDS = (1, 2)
_MORE_AT_ONCE = 2


class Candidates:
    """Makes trials from the model's predictions.

    Args:
        rig: says how long an epoch is.
        request, limits: of the tune.
        pin_memory: whether host batches are pinned for the device.
        cap_bytes: of device memory; None where it is not known.
        result: what was measured; read anew at each call.
        points: settings to choose among; None for the whole space.
    """

    def __init__(
        self,
        rig: Rig,
        request: TuneRequest,
        limits: Limits,
        *,
        pin_memory: bool,
        cap_bytes: int | None,
        result: Result,
        points: Sequence[LoaderSettings] | None = None,
    ) -> None:
        self._rig = rig
        self._request = request
        self._limits = limits
        self._pin_memory = pin_memory
        self._cap_bytes = cap_bytes
        self._result = result
        self._points = points

    def model(self) -> Model:
        """Of everything measured so far."""
        rates, memory = self._result.rates, self._result.memory
        expected = {size: memory.expected(size) for size in rates.ceilings}
        return rates.model(
            self._limits.cores,
            image_size=self._request.image_size,
            device_bytes={size: peak for size, peak in expected.items() if peak is not None},
            epoch_samples={size: self._rig.epoch_samples(size) for size in rates.ceilings},
        )

    def trials(self, stock_batch_size: int | None, *, count: int) -> list[Trial]:
        """The first round: the model's picks, the present settings and stock torch.

        Args:
            stock_batch_size: of stock torch; left out where None.
            count: of the model's picks.
        """
        model, present, rates = self.model(), self._request.current, self._result.rates
        picks = [pick for pick in self._shortlist(model).pick(count) if pick.settings != present]
        first = 1 + sum(record.trial.role == "candidate" for record in self._result.records)
        trials = [_trial(f"c{number}", pick) for number, pick in enumerate(picks, start=first)]
        if present is not None and present.batch_size in rates.ceilings:
            label = f"present: {describe(present)}"
            trials.append(Trial("current", label, "current", present, present.batch_size, model.predict(present)))
        elif present is not None:
            words = f"Your present batch size {present.batch_size} does not fit under the memory cap."
            self._result.notes += [] if words in self._result.notes else [words]
        if stock_batch_size is not None and stock_batch_size in rates.ceilings:
            label = f"stock torch: batch {stock_batch_size}, no workers"
            prediction = model.predict_stock(stock_batch_size)
            trials.append(Trial("stock", label, "stock", None, stock_batch_size, prediction))
        return trials

    def instead(self, search: Search, stock_batch_size: int | None, *, count: int) -> list[Trial]:
        """Where nothing that was tried fits: the picks among what may, and stock torch again where it did not fit.

        Args:
            search: that has had its rounds.
            stock_batch_size, count: as of `trials`.
        """
        seen = {record.trial.settings for record in search.records}
        with_stock = any(r.trial.settings is None and not r.barred for r in search.records)
        stock = None if with_stock else stock_batch_size
        fresh = [
            trial for trial in self.trials(stock, count=count) if trial.settings is None or trial.settings not in seen
        ]
        if not any(trial.role == "candidate" for trial in fresh):
            return []
        again = sum(record.trial.settings is None for record in search.records)
        return [replace(t, id=f"{t.id}{1 + again}") if t.settings is None and again else t for t in fresh]

    def more(self, search: Search) -> list[Trial]:
        """What the model, corrected by the trials so far, expects to beat the best of them by more than a tie."""
        if search.round not in _REFINED_ROUNDS:
            return []
        records = [r for r in search.records if r.trial.settings is not None and r.rounds and not r.barred]
        seen = [(r.trial.settings, median(r.values())) for r in records if r.trial.settings is not None]
        if not seen:
            return []
        best = max(speed for _, speed in seen)
        model = self.model().corrected(seen)
        known = {r.trial.settings for r in search.records if r.trial.settings is not None}
        picks = self._shortlist(model).better_than(best, known, _MORE_AT_ONCE)
        number = sum(r.trial.role == "candidate" for r in search.records)
        return [_trial(f"c{number + more}", pick) for more, pick in enumerate(picks, start=1)]

    def _shortlist(self, model: Model) -> Shortlist:
        sizes = self._sizes()
        if self._points is None:
            points = all_points(sizes, self._limits, self._request.image_size, pin_memory=self._pin_memory)
        else:
            points = Points.of([point for point in self._points if point.batch_size in sizes])
        cap = None if self._result.memory.unmeasured is not None else self._cap_bytes
        return Shortlist(points, model, cap_bytes=cap, unfit=self._result.memory.over_cap_fed())

    def _sizes(self) -> list[int]:
        """Sizes whose step can reach the utilization target at all; every measured size, where none can.

        The user's own size and stock torch's are candidates only where they were asked for.
        """
        wanted = self._request.batch_sizes or BATCH_SIZES
        rates, fitting = self._result.rates, self._result.memory.sizes
        sizes = [s for s in sorted(rates.ceilings) if s in wanted and s in fitting]
        sizes = sizes or [s for s in sorted(rates.ceilings) if s in fitting]
        able = [s for s in sizes if (util := rates.ceiling_util(s)) is None or util > self._request.util_target]
        return able or sizes


def _trial(identity: str, pick: Pick) -> Trial:
    settings = pick.settings
    return Trial(identity, describe(settings), "candidate", settings, settings.batch_size, pick.prediction)
