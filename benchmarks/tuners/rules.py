"""Loaders that nobody measured: torch's defaults, and as many workers as there are cores."""

from __future__ import annotations

from wellfed.pipeline.hardware import usable_cores
from wellfed.pipeline.tune.run import Opened

from .choice import Choice, Task, TorchLoader

USUAL_BATCH_SIZE = 64


def usual_loader(on: Opened) -> TorchLoader:
    """As many workers as usable cores, pinned where there is a device to copy to, kept between epochs."""
    return TorchLoader(num_workers=usable_cores().value, pin_memory=on.device.pin_memory)


def torch_defaults(task: Task, on: Opened) -> Choice:
    """No workers, nothing pinned."""
    return Choice(batch_size=USUAL_BATCH_SIZE, loader=TorchLoader(num_workers=0, pin_memory=False))


def workers_of_cores(task: Task, on: Opened) -> Choice:
    """The rule of many guides."""
    return Choice(batch_size=USUAL_BATCH_SIZE, loader=usual_loader(on))
