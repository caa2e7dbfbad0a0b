"""Who takes part."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from wellfed.pipeline.tune.run import Opened, opened

from .choice import Choice, Task
from .finders import accelerate_finder, lightning_finder
from .rules import torch_defaults, workers_of_cores
from .searches import random_search, wellfed_tune


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One way to come by settings.

    Attributes:
        name: in options and results.
        choose: does it.
        needs: a library that the product does not.
    """

    name: str
    choose: Callable[[Task], Choice]
    needs: str | None = None


def opening(choose: Callable[[Task, Opened], Choice]) -> Callable[[Task], Choice]:
    """With dataset, step and device open."""

    def run(task: Task) -> Choice:
        with opened(
            task.dataset,
            task.step,
            task.device,
            image_size=task.image_size,
            seed=task.seed,
            clock=time.perf_counter,
        ) as on:
            return choose(task, on)

    return run


OWN = "wellfed"

CONTESTANTS = (
    Contestant(name="torch defaults", choose=opening(torch_defaults)),
    Contestant(name="workers = cores", choose=opening(workers_of_cores)),
    Contestant(
        name="Lightning power", choose=opening(lambda task, on: lightning_finder(task, on, "power")), needs="lightning"
    ),
    Contestant(
        name="Lightning binsearch",
        choose=opening(lambda task, on: lightning_finder(task, on, "binsearch")),
        needs="lightning",
    ),
    # Its documentation's start, and the largest batch size of the tuner's space.
    Contestant(
        name="Accelerate from 128",
        choose=opening(lambda task, on: accelerate_finder(task, on, 128)),
        needs="accelerate",
    ),
    Contestant(
        name="Accelerate from 1024",
        choose=opening(lambda task, on: accelerate_finder(task, on, 1024)),
        needs="accelerate",
    ),
    Contestant(name="random search", choose=opening(random_search)),
    Contestant(name=OWN, choose=wellfed_tune),
)
BY_NAME = {contestant.name: contestant for contestant in CONTESTANTS}
