"""What a tune that was ended by Ctrl-C gives: the best of what it had measured."""

from __future__ import annotations

from ..measure.memory import MemoryPlan, unprobed_words
from ..result import Result
from .search import Targets, choose, comparisons

__all__ = ["take_best_so_far"]

_STAGES = {"boundary": "measuring of epoch boundaries"}


def take_best_so_far(result: Result, targets: Targets, *, seed: int) -> bool:
    """Choose among what was measured; False, and nothing done, before every live trial had a whole round."""
    live = [record for record in result.records if record.left is None]
    if not live or not all(record.rounds for record in live):
        return False
    memory: MemoryPlan = result.memory
    # A size whose probe was over the cap just before is none to give.
    fitting = [record for record in result.records if memory.not_over_cap(record.trial.batch_size)]
    chosen = result.chosen or choose(fitting, targets, seed=seed)
    if chosen is None:
        return False
    done = min(len(record.rounds) for record in live)
    stage = next(reversed(result.seconds))  # the one that has just ended
    result.interrupted, result.chosen = True, chosen
    result.comparisons = comparisons(result.records, chosen, seed=seed)
    held = "" if result.hold is not None else ", and nothing was held: the verdict rests on the rounds"
    result.notes.append(
        f"Interrupted in the {_STAGES.get(stage, stage)}: the best of {done} round{'' if done == 1 else 's'} was "
        f"taken{held}."
    )
    if targets.cap_bytes is not None and memory.unmeasured is None and result.chosen_probe is None:
        result.notes.append(unprobed_words(chosen))
    return True
