"""Choosing by measuring: wellfed's tuner, and random points of its space in the same time."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from wellfed.pipeline.config import LoaderSettings, TuneRequest
from wellfed.pipeline.errors import WellfedError
from wellfed.pipeline.hardware import preflight
from wellfed.pipeline.loader.usable import usable_backends
from wellfed.pipeline.tune import run_tune
from wellfed.pipeline.tune.budget import Budget
from wellfed.pipeline.tune.model.footprint import kept_open
from wellfed.pipeline.tune.model.space import all_points
from wellfed.pipeline.tune.preflight import limits_of
from wellfed.pipeline.tune.rig import OutOfDeviceMemoryError, Trial, rate
from wellfed.pipeline.tune.run import Opened
from wellfed.pipeline.tune.search.candidates import BATCH_SIZES

from .choice import Choice, Task

_MOST_HOLD_SECONDS = 10.0
"""The hold proves a choice and makes none; the interleaved windows prove this one."""


def wellfed_tune(task: Task) -> Choice:
    """The tuner as `wellfed tune` runs it, with a short hold."""
    request = TuneRequest(
        data=task.dataset,
        step=task.step,
        device=task.device,
        memory_cap=task.memory_cap,
        budget_seconds=task.budget_seconds,
        hold_seconds=min(_MOST_HOLD_SECONDS, task.budget_seconds),
        image_size=task.image_size,
        seed=task.seed,
    )
    found = run_tune(request)
    settings = found.tuned.settings
    details = {"verdict": found.verdict, "seconds": found.report["seconds"]}
    return Choice(batch_size=settings.batch_size, loader=settings, details=details)


def random_search(task: Task, on: Opened) -> Choice:
    """Random points of the tuner's space, each measured once as the tuner measures; none begins after the budget.

    The fastest whose peak memory stays under the cap is chosen. A point that does not run counts as tried.

    Raises:
        RuntimeError: none ran and stayed under the cap.
    """
    budget = Budget(task.budget_seconds, time.perf_counter, time.perf_counter())
    backends = usable_backends(on.accelerator.torch_device)
    limits = replace(limits_of(preflight(), kept_open=kept_open(on.source)), backends=backends)
    points = all_points(BATCH_SIZES, limits, task.image_size, pin_memory=on.device.pin_memory)
    places = list(range(len(points)))
    random.Random(task.seed).shuffle(places)
    cap = on.accelerator.memory_total_bytes * task.memory_cap
    best: tuple[float, LoaderSettings] | None = None
    outcomes = {"measured": 0, "out of memory": 0, "over the cap": 0, "failed": 0}
    for place in places:
        if budget.left <= 0:
            break
        settings = points.at(place)
        trial = Trial(f"random{place}", f"random {place}", "candidate", settings, settings.batch_size)
        try:
            window = on.rig.fed(trial, budget.slice_seconds)
        except OutOfDeviceMemoryError:
            outcomes["out of memory"] += 1
        except WellfedError:
            outcomes["failed"] += 1
        else:
            outcomes["measured"] += 1
            if window.peak_bytes is not None and window.peak_bytes >= cap:
                outcomes["over the cap"] += 1
            elif best is None or rate(window) > best[0]:
                best = rate(window), settings
        finally:
            # The rig keeps a step for each batch size, which would count as the next point's memory.
            on.rig.release_device()
    if best is None:
        raise RuntimeError(f"no random point ran under the memory cap: {outcomes}")
    return Choice(batch_size=best[1].batch_size, loader=best[1], details={**outcomes, "points": len(points)})
