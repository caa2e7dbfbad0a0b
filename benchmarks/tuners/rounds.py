"""All choices measured against each other: each once a round beside the ceilings, in a new random order."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

from wellfed.pipeline.errors import WellfedError
from wellfed.pipeline.training import CachedBatches, Step, build_step, measure
from wellfed.pipeline.tune.machine.feed import Feed
from wellfed.pipeline.tune.run import Opened, opened

from ..common.windows import interleaved, kept
from .choice import Choice, Task, TorchLoader
from .loaders import open_loader

_WARM_STEPS = 3


def measure_choices(
    choices: Mapping[str, Choice], task: Task, *, rounds: int, seconds: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Raw windows of each choice and of the ceiling at each of their batch sizes, round by round.

    One step object serves all; a loader is opened for its window and closed after it, so that nobody's workers run
    beside another's window. A choice that does not run is in `failed`, with the reason, and has no more windows.

    Returns:
        `device`, `memory_total_bytes`, `windows` by name, `ceilings` by batch size, `failed` by name.
    """
    with opened(
        task.dataset, task.step, task.device, image_size=task.image_size, seed=task.seed, clock=time.perf_counter
    ) as on:
        step = build_step(on.spec, on.accelerator, 1)
        windows: dict[str, list[dict[str, Any]]] = {name: [] for name in choices}
        ceilings: dict[int, list[dict[str, Any]]] = {choice.batch_size: [] for choice in choices.values()}
        failed: dict[str, str] = {}
        items: list[str | int] = [*choices, *ceilings]
        for number, item in interleaved(items, rounds, seed=task.seed):
            if item in failed:
                continue
            what = item if isinstance(item, str) else f"ceiling at {item}"
            # Before each, so that no window's peak holds what another's left in the allocator.
            gc.collect()
            on.accelerator.synchronize()
            on.accelerator.reset_peak()
            try:
                if isinstance(item, int):
                    values = _ceiling(on, step, item, seconds)
                else:
                    values = _fed(on, step, choices[item], task, seconds)
            except Exception as error:
                if not (isinstance(error, WellfedError) or on.accelerator.is_out_of_memory(error)):
                    raise
                say(f"round {number}: {what}: {error}")
                if isinstance(item, str):
                    failed[item] = f"round {number}: {error}"
                continue
            (windows[item] if isinstance(item, str) else ceilings[item]).append({"round": number, **values})
            say(f"round {number}: {what}: {values['samples_per_second']:,.0f} img/s")
        return {
            "device": on.accelerator.description,
            "memory_total_bytes": on.accelerator.memory_total_bytes,
            "samples": len(on.source),
            "windows": windows,
            "ceilings": ceilings,
            "failed": failed,
        }


def _ceiling(on: Opened, step: Step, batch_size: int, seconds: float) -> dict[str, Any]:
    batches = CachedBatches(on.accelerator, batch_size, on.spec.image_size, seed=0, num_classes=on.spec.num_classes)
    return _window(on, step, batches, seconds, warm_steps=_WARM_STEPS)


def _fed(on: Opened, step: Step, choice: Choice, task: Task, seconds: float) -> dict[str, Any]:
    with closing(Feed(open_loader(on.source, choice, task, on.accelerator.torch_device))) as feed:
        processes = isinstance(choice.loader, TorchLoader) or choice.loader.backend == "processes"
        workers = choice.loader.num_workers if processes else 0
        return _window(on, step, feed, seconds, warm_steps=_WARM_STEPS + workers, cycle=max(1, workers))


def _window(
    on: Opened, step: Step, batches: Iterator[Any], seconds: float, *, warm_steps: int, cycle: int = 1
) -> dict[str, Any]:
    measure(step, batches, on.accelerator, seconds=float("inf"), max_steps=warm_steps)
    return kept(measure(step, whole_cycles(batches, seconds, cycle), on.accelerator, seconds=float("inf")))


def whole_cycles(
    batches: Iterator[Any], seconds: float, cycle: int, *, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Any]:
    """Batches for at least so many seconds, in multiples of `cycle`.

    Worker processes bring a batch each at about the same time. A window that begins after such a burst and ends within
    another would count one burst more than its time holds, which for large batches is much.
    """
    began = clock()
    while clock() - began < seconds:
        for _ in range(cycle):
            yield next(batches)
