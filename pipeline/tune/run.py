"""`run_tune`: opens dataset, device and rig, and closes them whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..config import TuneRequest
from ..errors import UsageError
from ..formats import Source, open_source
from ..formats.fields import stored_fields
from ..hardware import Fact, fingerprint, preflight
from ..hardware.others import CoreWatch
from ..loader.ranks import found_ranks
from ..loader.usable import usable_backends
from ..training import Accelerator, StepSpec, open_accelerator
from ..training.process_group import group_if_launched_alone
from .advice.batch import advise_batch
from .assemble import dataset_facts, device_facts, report, tuned_config
from .driver import Device, Driver, Progress, quiet
from .machine.loaders import repeat_times
from .machine.rig import MachineRig
from .model.footprint import kept_open
from .model.space import Limits
from .outcome import TuneOutcome
from .preflight import check_sharers, limits_of, words_on_busy_cores
from .ranks.together import ALONE, Together
from .rig import Rig


@dataclass(frozen=True)
class Opened:
    """A dataset, a step and an open device."""

    source: Source
    spec: StepSpec
    accelerator: Accelerator
    rig: MachineRig

    @property
    def device(self) -> Device:
        return Device(
            self.accelerator.memory_total_bytes,
            pin_memory=self.accelerator.torch_device != "cpu",
            on_cuda=self.accelerator.kind == "cuda",
        )


@contextmanager
def opened(
    data: str | Source,
    step: str,
    device: str,
    *,
    image_size: int,
    seed: int,
    clock: Callable[[], float],
    together: Together = ALONE,
) -> Iterator[Opened]:
    """Open what a measurement needs; on the way out everything is closed, also on Ctrl-C.

    Raises:
        UsageError: no such dataset, step or device.
    """
    with ExitStack() as stack:
        if isinstance(data, str):
            source = open_source(data)
            stack.callback(source.close)
        else:
            source = data
        if "image" not in stored_fields(source):
            raise UsageError(
                "steps that are measured train on images and labels",
                got=f"{source.location}, which has the fields {', '.join(stored_fields(source))}",
                remedy="Load it by fields=, with settings of your own.",
            )
        spec = StepSpec(name=step, image_size=image_size, num_classes=max(1000, len(source.class_names)))
        accelerator = open_accelerator(device)
        stack.callback(accelerator.close)
        stack.enter_context(group_if_launched_alone(accelerator.torch_device))
        rig = stack.enter_context(
            MachineRig(source, spec, accelerator.name, accelerator, seed=seed, clock=clock, together=together)
        )
        yield Opened(source, spec, accelerator, rig)


def run_tune(
    request: TuneRequest,
    *,
    source: Source | None = None,
    progress: Callable[[str, float], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> TuneOutcome:
    """Find, by measuring, the settings with the most samples/s that meet the targets, and hold them.

    Under a launcher, or in a program with a process group, every rank calls it: all measure together, and all have the
    same outcome.

    Args:
        request: see `TuneRequest`.
        source: the dataset where it is open already, and is left open; None opens the request's.
        progress: called with a message and the share done, 0..1.
        clock: monotonic seconds.

    Raises:
        UsageError: no such dataset, step or device, or a dataset without samples.
        ResourceError: nothing fits under the memory cap, or others use the device.
        StepError: the step raised, hung, ended its process, or keeps too much memory.
        KeyboardInterrupt: before every trial had a round; later, what was found so far is returned.
    """
    say: Progress = progress or quiet
    started = clock()
    if found_ranks(None, None)[1] > 1:
        from .ranks.run import run_on_ranks  # which is built on this module

        return run_on_ranks(request, source=source, say=say, clock=clock)
    say("looking at the machine", 0.0)
    facts, machine = preflight(), fingerprint()
    with opened(
        request.data if source is None else source,
        request.step,
        request.device,
        image_size=request.image_size,
        seed=request.seed,
        clock=clock,
    ) as on:
        limits, note = look_around(on, facts, request)
        outcome = find_settings(
            on,
            on.rig,
            request,
            limits,
            on.device,
            say=say,
            started=started,
            notes=() if note is None else (note,),
            machine=machine,
            facts=facts,
        )
    say("done", 1.0)
    return outcome if source is None else replace(outcome, source=source)


def look_around(on: Opened, facts: list[Fact], request: TuneRequest) -> tuple[Limits, str | None]:
    """What bounds the search on this machine, and a note on who else uses the device.

    Raises:
        UsageError: a dataset without samples.
        ResourceError: others use the device.
    """
    if len(on.source) == 0:
        raise UsageError("the dataset must hold samples", got=on.source.location, remedy="Convert it again.")
    note = check_sharers(on.accelerator, allowed=request.allow_shared_gpu)
    limits = limits_of(facts, kept_open=kept_open(on.source))
    return replace(limits, backends=usable_backends(on.accelerator.torch_device)), note


def find_settings(
    on: Opened,
    rig: Rig,
    request: TuneRequest,
    limits: Limits,
    device: Device,
    *,
    say: Progress,
    started: float,
    notes: Sequence[str],
    machine: Mapping[str, Any],
    facts: list[Fact],
    world_size: int = 1,
) -> TuneOutcome:
    """The tune itself, over what is open, and its report.

    Args:
        on: of this process.
        rig: that decisions rest on: this process's own, or that of all ranks.
        limits, device: the same.
        started: when the tune began.
        notes: for the report.
        world_size: ranks that measure together.

    Raises:
        as `run_tune`.
    """
    driver = Driver(rig, request, limits, device, progress=say, started=started)
    driver.result.notes.extend(notes)
    watch = CoreWatch(time.monotonic)
    result = driver.run()
    # Beside several ranks, the others would be taken for strangers.
    if world_size == 1 and (busy := words_on_busy_cores(watch.others_share())) is not None:
        result.notes.insert(0, busy)
    tuned = tuned_config(result, on.source, on.spec, on.accelerator, machine)
    batch_size = tuned.settings.batch_size
    global_batch = batch_size * world_size
    times = repeat_times(len(on.source), global_batch)
    if times > 1:
        result.notes.append(
            f"The set of {len(on.source)} samples was repeated {times} times by index, for at least 200 batches an "
            "epoch: reading was from memory after the first time."
        )
    advice = advise_batch(
        request,
        batch_size,
        world_size=world_size,
        samples=len(on.source),
        own=on.rig.optimizer_of(batch_size),
    )
    if len(on.source) < global_batch:
        result.notes.append(
            f"The set of {len(on.source)} samples is smaller than one batch of {global_batch}: a "
            "loader with drop_last=True would give none. Use a smaller batch or more data for training."
        )
    page = report(
        "tune",
        result,
        batch_advice=advice,
        request=request.to_dict(),
        dataset=dataset_facts(on.source, times),
        device=device_facts(on.accelerator),
        machine=machine,
        facts=facts,
        tuned=tuned,
    )
    return TuneOutcome(
        report=page,
        tuned=tuned,
        verdict=tuned.verdict,
        interrupted=result.interrupted,
        source=request.data,
        device=on.accelerator.torch_device,
    )
