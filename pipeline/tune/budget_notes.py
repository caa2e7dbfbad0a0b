"""What a tune says of its budget: what it did not reach, and what took longer than was given."""

from __future__ import annotations

from .budget import Budget
from .result import Result
from .search.rounds import NOT_TRIED

__all__ = ["budget_notes"]

_OVER = 1.02
"""A measurement that was begun is ended: a little over the budget is not worth a word."""


def budget_notes(result: Result, budget: Budget, rounds: int) -> list[str]:
    """Notes for the report at the end of the search; none where everything had its time.

    Args:
        rounds: that were asked for.
    """
    notes = []
    not_begun = sorted({*result.memory.not_begun, *result.rates.not_begun})
    if not_begun:
        sizes = ", ".join(map(str, not_begun))
        notes.append(f"Batch sizes {sizes} were not tried: measuring others took their time. {_more(budget)}")
    untried = sum(record.left == NOT_TRIED for record in result.records)
    if untried:
        notes.append(
            f"The budget of {budget.seconds:g} s ended in the first round: {untried} of {len(result.records)} settings "
            f"were not tried. {_more(budget)}"
        )
    done = max((len(record.rounds) for record in result.records), default=0)
    if done < rounds:
        notes.append(
            f"The budget of {budget.seconds:g} s ended after {done} of {rounds} rounds: the best so far was taken, and "
            "comparisons need five. Give a larger --budget for firm ones."
        )
    if budget.elapsed > _OVER * budget.seconds:
        notes.append(
            f"Measuring took {budget.elapsed:.0f} s, more than the budget of {budget.seconds:g} s: a probe of the "
            "memory, the step at one batch size, a loader, a candidate and what it is compared with are always "
            "measured, and no call of the step is cut short."
        )
    if budget.compiling() > 0:
        notes.append(
            f"Compiling the step took {budget.compiling():.0f} s of first calls, which the budget does not count."
        )
    return notes


def _more(budget: Budget) -> str:
    return f"Give a larger --budget than {budget.seconds:g}s, or fewer or smaller --batch-sizes."
