"""`run_tune`: opens dataset, device and rig, and closes them whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from ..config import TuneRequest
from ..errors import UsageError
from ..formats import Source, open_source
from ..formats.fields import stored_fields
from ..hardware import fingerprint, preflight
from ..hardware.others import CoreWatch
from ..loader.ranks import found_ranks
from ..loader.usable import usable_backends
from ..training import Accelerator, StepSpec, open_accelerator
from .assemble import dataset_facts, device_facts, report, tuned_config
from .batch_advice import advise_batch
from .driver import Device, Driver, Progress, quiet
from .footprint import kept_open
from .machine import MachineRig, repeat_times
from .outcome import TuneOutcome
from .preflight import check_sharers, limits_of, words_on_busy_cores


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
    data: str | Source, step: str, device: str, *, image_size: int, seed: int, clock: Callable[[], float]
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
        rig = stack.enter_context(MachineRig(source, spec, accelerator.name, accelerator, seed=seed, clock=clock))
        yield Opened(source, spec, accelerator, rig)


def run_tune(
    request: TuneRequest,
    *,
    source: Source | None = None,
    progress: Callable[[str, float], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> TuneOutcome:
    """Find, by measuring, the settings with the most samples/s that meet the targets, and hold them.

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
        if len(on.source) == 0:
            raise UsageError("the dataset must hold samples", got=on.source.location, remedy="Convert it again.")
        shared = check_sharers(on.accelerator, allowed=request.allow_shared_gpu)
        limits = replace(
            limits_of(facts, kept_open=kept_open(on.source)), backends=usable_backends(on.accelerator.torch_device)
        )
        driver = Driver(on.rig, request, limits, on.device, progress=say, started=started)
        if shared is not None:
            driver.result.notes.append(shared)
        watch = CoreWatch(time.monotonic)
        result = driver.run()
        if (busy := words_on_busy_cores(watch.others_share())) is not None:
            result.notes.insert(0, busy)
        tuned = tuned_config(result, on.source, on.spec, on.accelerator, machine)
        times = repeat_times(len(on.source), tuned.settings.batch_size)
        if times > 1:
            result.notes.append(
                f"The set of {len(on.source)} samples was repeated {times} times by index, for at least 200 batches an "
                "epoch: reading was from memory after the first time."
            )
        batch_size = tuned.settings.batch_size
        advice = advise_batch(
            request,
            batch_size,
            world_size=found_ranks(None, None)[1],
            samples=len(on.source),
            own=on.rig.optimizer_of(batch_size),
        )
        if len(on.source) < tuned.settings.batch_size:
            result.notes.append(
                f"The set of {len(on.source)} samples is smaller than one batch of {tuned.settings.batch_size}: a "
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
        outcome = TuneOutcome(
            report=page,
            tuned=tuned,
            verdict=tuned.verdict,
            interrupted=result.interrupted,
            source=request.data if source is None else source,
            device=on.accelerator.torch_device,
        )
    say("done", 1.0)
    return outcome
