"""Interleaved rounds as ask/tell, paired comparisons, and the choice among the measured trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from ..model.space import TIE, size_key
from ..rig import Trial, Window, rate, wait_share
from ..statistics import Interval, paired_ratio

MIN_ROUNDS = 5
"""Fewer paired rounds support no comparison (design section 6)."""

_DROP_BELOW = {1: 0.8, 2: 0.9, 3: 0.95}
"""What lies this far behind the leader leaves after so many rounds or more: paired windows of a loader differ by some
6%, so that a setting which is really the faster one is so far behind in one of fifty searches at most."""

_CLOSE = 0.97
"""The interval of few noisy rounds may hold 1 far from it: no tie costs more than this."""

Conclusion = Literal["better", "worse", "no difference"]


@dataclass(frozen=True)
class Measurement:
    """One trial in one round, beside the ceiling of the same round at its batch size."""

    window: Window
    ceiling: Window

    @property
    def samples_per_second(self) -> float:
        return rate(self.window)

    @property
    def fed_ratio(self) -> float | None:
        ceiling = rate(self.ceiling)
        return self.samples_per_second / ceiling if ceiling > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """The report's round."""
        return {
            "samples_per_second": self.samples_per_second,
            "ceiling_samples_per_second": rate(self.ceiling),
            "fed_ratio": self.fed_ratio,
            "wait_share": wait_share(self.window),
            "util_percent": self.window.util_percent,
            "util_reason": self.window.util_reason,
            "peak_bytes": self.window.peak_bytes,
            "window": self.window.to_dict(),
        }


@dataclass
class Record:
    """A trial and its measurements by round number.

    Attributes:
        left: why it left the search; it keeps the rounds it has.
        barred: it can never be chosen: its batch size does not fit.
    """

    trial: Trial
    rounds: dict[int, Measurement] = field(default_factory=dict)
    left: str | None = None
    barred: bool = False

    def values(self) -> list[float]:
        return [m.samples_per_second for _, m in sorted(self.rounds.items())]

    def _median(self, name: str) -> float | None:
        values = [m.to_dict()[name] for m in self.rounds.values()]
        known = [value for value in values if value is not None]
        return median(known) if known else None

    def medians(self) -> dict[str, float | None]:
        names = ("samples_per_second", "fed_ratio", "wait_share", "util_percent", "peak_bytes")
        return {name: self._median(name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """The report's trial."""
        trial = self.trial
        return {
            "id": trial.id,
            "label": trial.label,
            "role": trial.role,
            "settings": None if trial.settings is None else trial.settings.to_dict(),
            "batch_size": trial.batch_size,
            "predicted_samples_per_second": trial.predicted,
            "predicted": None if trial.prediction is None else trial.prediction.to_dict(),
            "rounds": [measurement.to_dict() for _, measurement in sorted(self.rounds.items())],
            "median": self.medians(),
            "left": self.left,
        }


@dataclass(frozen=True)
class Comparison:
    """Trial a over trial b, paired by round."""

    a: str
    b: str
    interval: Interval
    rounds: int

    @property
    def conclusion(self) -> Conclusion:
        if self.rounds < MIN_ROUNDS:
            return "no difference"
        if self.interval.low > 1:
            return "better"
        return "worse" if self.interval.high < 1 else "no difference"

    def to_dict(self) -> dict[str, Any]:
        """The report's comparison."""
        interval = self.interval
        return {
            "a": self.a,
            "b": self.b,
            "ratio": interval.value,
            "low": interval.low,
            "high": interval.high,
            "rounds": self.rounds,
            "conclusion": self.conclusion,
        }


def compare(a: Record, b: Record, *, seed: int = 0) -> Comparison | None:
    """Samples/s of a over b in the rounds both ran; None without a common round or with a rate of 0."""
    common = sorted(set(a.rounds) & set(b.rounds))
    left = [a.rounds[r].samples_per_second for r in common]
    right = [b.rounds[r].samples_per_second for r in common]
    if not common or min(*left, *right) <= 0:
        return None
    return Comparison(a.trial.id, b.trial.id, paired_ratio(left, right, seed=seed), len(common))


class Search:
    """Hands out trials round by round; every live trial once a round, starting with another one each time.

    Candidates that are far slower than the leader leave after a round or two, those that are 5% slower after three;
    the user's settings and stock torch stay, because the reader asks about them.

    Args:
        trials: with distinct ids.
        rounds: after these it ends.
        seed: of the intervals.
    """

    def __init__(self, trials: Sequence[Trial], *, rounds: int, seed: int = 0) -> None:
        self.records = [Record(trial) for trial in trials]
        self.rounds = self._asked_rounds = rounds
        self.round = 0
        self.longest_seconds = 0.0  # of one trial in one round with its ceiling
        self._seed = seed
        self._queue: list[Trial] = self._plan()

    def _plan(self) -> list[Trial]:
        live = [record.trial for record in self.records if record.left is None]
        if self.round == 0:
            # The best prediction and what it is compared with come first: time may end this round early.
            first = next((trial for trial in live if trial.role == "candidate"), None)
            return sorted(live, key=lambda trial: trial is not first and trial.role == "candidate")
        turn = self.round % len(live) if live else 0
        return live[turn:] + live[:turn]

    def record(self, trial: Trial) -> Record:
        """The record of a trial."""
        return next(record for record in self.records if record.trial.id == trial.id)

    def ask(self) -> Trial | None:
        """The next trial to measure; None at the end."""
        while not self._queue:
            if self.round >= self.rounds - 1 or not self._plan():
                return None
            self._drop_losers()
            self.round += 1
            self._queue = self._plan()
        return self._queue[0]

    def tell(self, trial: Trial, measurement: Measurement) -> None:
        """The result of the trial that `ask` named."""
        self.record(trial).rounds[self.round] = measurement
        self._queue = [t for t in self._queue if t.id != trial.id]

    def add(self, trial: Trial) -> None:
        """Let another trial in, from this round on; rounds are added so that it can have as many as the first ones.

        Raises:
            ValueError: its id is taken.
        """
        if any(record.trial.id == trial.id for record in self.records):
            raise ValueError(f"a search has a trial {trial.id!r} already")
        self.records.append(Record(trial))
        self._queue.append(trial)
        self.rounds = max(self.rounds, self.round + self._asked_rounds)

    def bar(self, trial: Trial, why: str) -> None:
        """Take a trial out of the search for good: it does not fit."""
        record = self.record(trial)
        record.left, record.barred = why, True
        self._queue = [t for t in self._queue if t.id != trial.id]

    def keep_best(self, count: int) -> None:
        """Let the slowest candidates go, so that at most `count` of them stay: time does not reach for more."""
        running = [r for r in self.records if r.left is None and r.trial.role == "candidate" and r.rounds]
        running.sort(key=lambda r: -median(r.values()))
        for record in running[max(1, count) :]:
            share = median(record.values()) / median(running[0].values())
            record.left = (
                f"left after {len(record.rounds)} rounds at {share:.2f} of the best, to stay within the budget"
            )
            self._queue = [t for t in self._queue if t.id != record.trial.id]

    def can_end(self) -> bool:
        """Whether what was measured allows a choice: a candidate, and whatever it is to be compared with."""
        candidates = [r for r in self.records if r.trial.role == "candidate" and not r.barred]
        fixed = [r for r in self.records if r.trial.role != "candidate"]
        return (any(r.rounds for r in candidates) or not candidates) and all(r.rounds or r.left for r in fixed)

    def end(self, why: str) -> None:
        """Let those go that no round has reached."""
        for record in self.records:
            if not record.rounds and record.left is None:
                record.left = why
        self._queue = [trial for trial in self._queue if self.record(trial).left is None]

    def extend(self, rounds: int) -> None:
        """Add rounds, where the ones so far did not decide."""
        self.rounds += rounds

    def _drop_losers(self) -> None:
        running = [r for r in self.records if r.left is None and r.trial.role != "stock" and r.rounds]
        if not running:
            return
        leader = max(running, key=lambda r: median(r.values()))
        for record in running:
            if record is leader or record.trial.role != "candidate":
                continue
            comparison = compare(record, leader, seed=self._seed)
            if comparison is not None and _clearly_slower(comparison):
                rounds = f"{len(record.rounds)} round{'' if len(record.rounds) == 1 else 's'}"
                record.left = f"left after {rounds} at {comparison.interval.value:.2f} of {leader.trial.label}"


def _clearly_slower(comparison: Comparison) -> bool:
    return comparison.interval.value < _DROP_BELOW[min(comparison.rounds, max(_DROP_BELOW))]


@dataclass(frozen=True)
class Targets:
    """What a setting has to reach."""

    util_percent: float
    fed_ratio: float
    cap_bytes: int | None


def meets(record: Record, targets: Targets) -> bool:
    """Utilization above its target and memory under the cap; what was not measured does not count against it."""
    medians = record.medians()
    util, peak = medians["util_percent"], medians["peak_bytes"]
    if util is not None and util <= targets.util_percent:
        return False
    return peak is None or targets.cap_bytes is None or peak < targets.cap_bytes


def can_meet(record: Record, targets: Targets) -> bool:
    """Whether a faster loader would bring the trial to its utilization target: its step on cached batches is above."""
    utils = [m.ceiling.util_percent for m in record.rounds.values() if m.ceiling.util_percent is not None]
    return not utils or median(utils) > targets.util_percent


def tied(record: Record, best: Record, *, seed: int = 0) -> bool:
    """Whether the two are within 2%, or within 3% with 1 in their paired interval."""
    comparison = compare(record, best, seed=seed)
    if comparison is None:
        return False
    interval = comparison.interval
    if interval.value >= 1 - TIE:
        return True
    return interval.value >= _CLOSE and comparison.rounds >= MIN_ROUNDS and interval.low <= 1 <= interval.high


def choose(records: Sequence[Record], targets: Targets, *, seed: int = 0) -> Record | None:
    """The winner: most samples/s among those that meet the targets, ties to the smaller.

    Where none meets them it is taken among those that would with a faster loader, and where there is none of those
    either, among all. A tie with the best goes to the smaller batch, then fewer workers, then fewer waiting batches.
    """
    measured = [r for r in records if r.trial.settings is not None and not r.barred and r.rounds]
    measured = [r for r in measured if median(r.values()) > 0]
    # A trial that left the search has too few rounds to be compared with the rest.
    running = [r for r in measured if r.left is None] or measured
    if not running:
        return None
    eligible = [r for r in running if meets(r, targets)] or [r for r in running if can_meet(r, targets)] or running
    best = max(eligible, key=lambda r: median(r.values()))
    ties = [r for r in eligible if r is best or tied(r, best, seed=seed)]

    def smallest(record: Record) -> tuple[int, int, bool, int, float]:
        settings = record.trial.settings
        # `measured` holds no stock trial; the type checker cannot see it.
        return (*(size_key(settings) if settings else (0, 0, False, 0)), -median(record.values()))

    return min(ties, key=smallest)


def undecided(records: Sequence[Record], winner: Record, *, seed: int = 0) -> bool:
    """Whether more rounds could change the choice: a tie only because the interval is wide."""
    for record in records:
        if record is winner or record.left is not None or record.trial.settings is None:
            continue
        comparison = compare(winner, record, seed=seed)
        if comparison is None:
            continue
        interval = comparison.interval
        if interval.low <= 1 <= interval.high and abs(interval.value - 1) > TIE:
            return True
    return False


def comparisons(records: Sequence[Record], winner: Record, *, seed: int = 0) -> list[Comparison]:
    """The winner over every other trial, where they have rounds in common."""
    pairs = [compare(winner, record, seed=seed) for record in records if record is not winner]
    return [pair for pair in pairs if pair is not None]
