"""Interleaved rounds over a rig: every live trial, and once a round the ceiling at each batch size in it."""

from __future__ import annotations

from collections.abc import Callable

from ..measure.rates import Rates
from ..rig import OutOfDeviceMemoryError, Rig, Window
from .search import Measurement, Search

_WITHOUT_OPENING = 0.75


NOT_TRIED = "not tried: the budget was over before"


def run_rounds(
    rig: Rig,
    search: Search,
    rates: Rates,
    *,
    seconds: float,
    left: Callable[[], float],
    say: Callable[[str], None],
    between: Callable[[Search], None] = lambda search: None,
) -> None:
    """Measure until the search has no more to ask, or time is over.

    A candidate and those it is compared with are always measured; the rest of the first round only where time is left.

    Where the rounds to come would not fit into the time left, the slowest candidates go: five rounds of few say more
    than two of many.

    Args:
        rates: takes the ceilings in.
        seconds: of one measurement.
        left: seconds of the budget that are left.
        say: reports what is measured now.
        between: called before each round but the first; it may add trials to the search.
    """
    ceilings: dict[int, Window] = {}
    number, began = -1, rig.clock()
    while (trial := search.ask()) is not None:
        # What is begun is measured to its end, so it is begun only where it would end in time.
        if left() < search.longest_seconds and search.can_end():
            search.end(NOT_TRIED)
            return
        if number != search.round:
            if number >= 0:
                _fit(search, rig.clock() - began, left())
                between(search)
                if (trial := search.ask()) is None:
                    return
            number, ceilings, began = search.round, {}, rig.clock()
        say(f"round {search.round + 1} of {search.rounds}: {trial.label}")
        asked = rig.clock()
        try:
            ceiling = ceilings.get(trial.batch_size)
            if ceiling is None:
                ceiling = ceilings[trial.batch_size] = rig.ceiling(trial.batch_size, seconds)
                rates.add_ceiling(ceiling)
            search.tell(trial, Measurement(rig.fed(trial, seconds), ceiling))
        except OutOfDeviceMemoryError:
            search.bar(trial, "out of device memory")
        took = (rig.clock() - asked) * (_WITHOUT_OPENING if search.round == 0 else 1)
        search.longest_seconds = max(search.longest_seconds, took)
        for record in search.records:
            if record.left is not None:
                rig.drop(record.trial)


def _fit(search: Search, round_seconds: float, left: float) -> None:
    """Let the slowest candidates go where the rounds still to come would not fit."""
    live = [record for record in search.records if record.left is None]
    measured = sum(search.round - 1 in record.rounds for record in search.records)
    if not live or not measured:
        return
    # The first round also opens loaders, which later ones do not.
    cost = round_seconds / measured * (_WITHOUT_OPENING if search.round == 1 else 1)
    affordable = left / (cost * (search.rounds - search.round))
    fixed = sum(record.trial.role != "candidate" for record in live)
    if affordable < len(live):
        search.keep_best(max(1, int(affordable) - fixed))
