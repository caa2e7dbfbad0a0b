"""The child's side of a memory probe: a process that runs one step, says how far it got, and ends with its parent."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import torch

from ..config import LoaderConfig, LoaderSettings
from ..errors import StepError, WellfedError, words_of
from .accelerator import Accelerator, open_accelerator
from .cached import CachedBatches
from .loop import measure
from .process_group import as_rank_0, join_launched_group
from .step_facts import WatchedStep
from .steps import StepSpec, build_step
from .variants import Variant, apply

__all__ = ["main", "run_step"]

STEPS = 4
"""At least: the optimizer's state appears in the first step and the largest workspaces by the second."""

MOST_STEPS = 12
"""As many, while they are quick: a leak shows in a row of calls."""

QUICK_SECONDS = 3.0

FED_SECONDS = 2.0
"""How long a loader feeds the step: until its queues have been full on the device."""

BATCHES_ON_DEVICE = 3
"""The one in use and those a loader holds ready."""

ERROR_LENGTH = 2000
TRACE_LENGTH = 8000


def run_step(
    spec: StepSpec,
    accelerator: Accelerator,
    batch_size: int,
    *,
    loader: dict[str, Any] | None = None,
    variant: Variant | None = None,
    before_build: Callable[[], None] = lambda: None,
    join_group: Callable[[], None] = lambda: None,
    before_call: Callable[[int], None] = lambda number: None,
    go_on: Callable[[int, bool], bool] = lambda number, wanted: wanted,
    watch: bool = True,
) -> dict[str, Any]:
    """Build the step, run some optimizer steps, and give the probe's fields.

    Args:
        loader: {"data", "settings", "seed", "times"} of a loader that feeds it; None uses batches on the device.
        variant: what to change in the model's forward.
        before_build, before_call: told how far it got.
        join_group: called before the step is built, its module being imported.
        go_on: whether the step is called once more after so many calls, which this process does or does not want.
        watch: look at each call too; off where time is not real.
    """
    with ExitStack() as stack:
        watched: Any = None
        answer: dict[str, Any] = {"batch_size": batch_size, "peak_bytes": None, "out_of_memory": False, "error": None}
        try:
            batches: Iterator[Any]
            if loader is None:
                batches = CachedBatches(
                    accelerator, batch_size, spec.image_size, BATCHES_ON_DEVICE, num_classes=spec.num_classes
                )
            else:
                batches = _fed(loader, spec, accelerator, stack)
            on_cuda = accelerator.kind == "cuda"
            base = torch.cuda.memory_allocated(accelerator.torch_device) if on_cuda else 0
            before_build()
            step = build_step(spec, accelerator, batch_size, before_build=join_group)
            why_not = [] if variant is None else apply(variant, step.model, accelerator.torch_device)
            if why_not:
                return {**answer, "error": why_not[0]}
            if watch:
                watched = step = WatchedStep(step, accelerator, base, before_call)
                quick = QUICK_SECONDS if loader is None else FED_SECONDS
                batches = _some(batches, quick, MOST_STEPS if loader is None else sys.maxsize, go_on)
            window = measure(step, batches, accelerator, seconds=sys.maxsize, max_steps=None if watch else STEPS)
        except Exception as error:
            if accelerator.is_out_of_memory(error):
                return {**answer, "out_of_memory": True}
            # Its remedy is said behind it, where the probe's error is shown.
            shown = type(error)(error.rule, got=error.got) if type(error) is StepError else error
            answer["error"] = (str(shown) if isinstance(error, WellfedError) else words_of(error))[:ERROR_LENGTH]
            if isinstance(error, StepError):
                trace = "".join(traceback.format_exception(error.__cause__ or error))
                answer |= {"fault": "raised", "details": trace[-TRACE_LENGTH:], "remedy": error.remedy}
            return answer
        if why_not:  # it showed only in a call
            return {**answer, "error": why_not[0]}
        answer |= {"peak_bytes": window.peak_bytes, "error": window.memory_reason}
        return answer if watched is None else {**answer, "facts": asdict(watched.facts())}


def _fed(loader: dict[str, Any], spec: StepSpec, accelerator: Accelerator, stack: ExitStack) -> Iterator[Any]:
    """Batches of the loader whose memory is to be counted."""
    from ..formats import RepeatedSource, Source, open_source
    from ..loader import make_loader

    source: Source = open_source(loader["data"])
    stack.callback(source.close)
    if loader["times"] > 1:
        source = RepeatedSource(source, loader["times"])
    config = LoaderConfig(
        settings=LoaderSettings(**loader["settings"]),
        shuffle=True,
        seed=loader["seed"],
        tail="drop",
        augment="train",
        image_size=spec.image_size,
        device=accelerator.torch_device,
    )
    return iter(stack.enter_context(make_loader(source, config)))


def _some(batches: Iterator[Any], seconds: float, most: int, go_on: Callable[[int, bool], bool]) -> Iterator[Any]:
    """At least `STEPS` batches, and more for so many seconds."""
    started = time.monotonic()
    for number, batch in enumerate(batches):
        if number >= STEPS and not go_on(number, number < most and time.monotonic() - started < seconds):
            return
        yield batch


def main() -> None:
    """Entry of the child: its arguments are the request as JSON, and the descriptors of result and lifeline."""
    request, result, lifeline = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    # A script that holds its step may look at its arguments while it is imported.
    sys.argv = request["arguments"]
    # Neither may go on to programs that the step starts: their ends would never be seen.
    for descriptor in (result, lifeline):
        os.set_inheritable(descriptor, False)
    _end_with_parent(lifeline)
    # The parent asks for the stacks when the time is over; this needs no interpreter that still runs.
    faulthandler.register(signal.SIGUSR1, all_threads=True)

    def say(message: dict[str, Any]) -> None:
        os.write(result, json.dumps(message, allow_nan=False).encode() + b"\n")

    accelerator = open_accelerator(request["device"])
    answer = run_step(
        StepSpec(**request["spec"]),
        accelerator,
        request["batch_size"],
        loader=request["loader"],
        variant=request["variant"],
        before_build=lambda: say({"stage": 0}),
        join_group=lambda: join_launched_group(accelerator.torch_device),
        before_call=lambda number: say({"stage": number}),
        go_on=as_rank_0,
    )
    say({"probe": answer})


def _end_with_parent(lifeline: int) -> None:
    """End this process and all that it started when the parent ends, however that ends.

    A process waits for it, not a thread, which a step that keeps the interpreter to itself would not let run, and not
    the kernel's parent-death signal, which would leave what the step started. It ends with the group itself, by the
    parent after a normal end.
    """
    if os.fork():
        os.close(lifeline)
        return
    try:
        # The pipe ends when the parent does.
        os.read(lifeline, 1)
    finally:
        os.killpg(os.getpgid(0), signal.SIGKILL)
