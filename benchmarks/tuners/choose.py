"""A process of its own for each contestant's choosing, so that what it leaves or how it ends is its own.

    python -m benchmarks.tuners.choose NAME TASK

TASK is the task as JSON; the last line of stdout is the choice, or why there is none.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from dataclasses import asdict
from typing import Any

from wellfed.pipeline.training import is_out_of_memory

from ..common.process import environment, run_child
from .choice import Task
from .contestants import BY_NAME, Contestant

_PATIENCE_SECONDS = 600.0
"""Over the budget, which other tools know nothing of; how long each took is in the result."""


def chosen_by(contestant: Contestant, task: Task) -> dict[str, Any]:
    """How the contestant fared: `seconds`, from starting the process to its end, and one of three.

    `choice`; `error`, with `out_of_memory`, where it ended in one; `absent`, with what to install.
    """
    if contestant.needs is not None and importlib.util.find_spec(contestant.needs) is None:
        return {"absent": f"{contestant.needs} is not installed: pip install {contestant.needs}"}
    command = [sys.executable, "-m", "benchmarks.tuners.choose", contestant.name, json.dumps(asdict(task))]
    began = time.monotonic()
    try:
        said = run_child(command, timeout=task.budget_seconds + _PATIENCE_SECONDS, env=environment())
        outcome: dict[str, Any] = json.loads(said.splitlines()[-1])
    except RuntimeError as error:
        # Killed, or hung: a result like any other.
        outcome = {"error": str(error), "out_of_memory": is_out_of_memory(error)}
    return {"seconds": round(time.monotonic() - began, 1), **outcome}


def main() -> None:
    name, task = sys.argv[1:]
    try:
        outcome: dict[str, Any] = {"choice": BY_NAME[name].choose(Task(**json.loads(task))).to_dict()}
    except Exception as error:
        outcome = {"error": f"{type(error).__name__}: {error}", "out_of_memory": is_out_of_memory(error)}
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
