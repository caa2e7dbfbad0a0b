"""Batch-size finders of other libraries, by their own code, around the same step and the usual loader.

Each runs the step on batches of torch's DataLoader with as many workers as there are cores, and needs an out-of-memory
error to find. The simulated device raises one from its ledger as torch.OutOfMemoryError; the finders tell such an error
by CUDA's wording, so it is given that.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any, Literal

import torch

from wellfed.pipeline.training import Accelerator, Step
from wellfed.pipeline.tune.run import Opened

from .choice import Choice, Task
from .loaders import torch_loader
from .rules import usual_loader

TRIAL_STEPS = 3
"""Lightning's default; the optimizer's state appears in the first, and the largest workspaces by the second."""


def _stepping(on: Opened, step: Step) -> Callable[[Any], None]:
    accelerator: Accelerator = on.accelerator

    def run(batch: Any) -> None:
        try:
            step(*accelerator.copy(batch))
        except torch.OutOfMemoryError as error:
            if accelerator.kind == "simulated":
                raise torch.OutOfMemoryError(f"CUDA out of memory. {error}") from error
            raise

    return run


def lightning_finder(task: Task, on: Opened, mode: Literal["power", "binsearch"]) -> Choice:
    """`Tuner.scale_batch_size` with its defaults on a LightningModule around the step."""
    import lightning.pytorch as lightning
    from lightning.pytorch.tuner import Tuner

    from wellfed.pipeline.training import build_step

    loader = usual_loader(on)
    step = build_step(on.spec, on.accelerator, 1)
    run = _stepping(on, step)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 2  # Lightning begins there whatever it is
            self.model = step.model

        def training_step(self, batch: Any, batch_idx: int) -> None:
            # Forward, backward and optimizer in one, so that every contestant's step is the same.
            run(batch)

        def configure_optimizers(self) -> None:
            return None

        def train_dataloader(self) -> Any:
            return torch_loader(on.source, self.batch_size, loader, task)

    device = torch.device(on.accelerator.torch_device)
    on_cuda = device.type == "cuda"
    with tempfile.TemporaryDirectory(prefix="tuners-lightning-") as folder:
        trainer = lightning.Trainer(
            accelerator="gpu" if on_cuda else "cpu",
            devices=[device.index or 0] if on_cuda else 1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        found = Tuner(trainer).scale_batch_size(Module(), mode=mode, steps_per_trial=TRIAL_STEPS)
    if found is None:
        raise RuntimeError("Lightning's batch-size finder gave no batch size")
    return Choice(batch_size=found, loader=loader)


def accelerate_finder(task: Task, on: Opened, starting_batch_size: int) -> Choice:
    """`find_executable_batch_size` from a starting size down, on a function that trains a few steps."""
    from accelerate.utils import find_executable_batch_size

    from wellfed.pipeline.training import build_step

    loader = usual_loader(on)
    tried: list[int] = []

    def train(batch_size: int) -> int:
        tried.append(batch_size)
        run = _stepping(on, build_step(on.spec, on.accelerator, batch_size))
        batches = iter(torch_loader(on.source, batch_size, loader, task))
        for _ in range(TRIAL_STEPS):
            run(next(batches))
        on.accelerator.synchronize()
        return batch_size

    found = find_executable_batch_size(train, starting_batch_size=starting_batch_size)()
    return Choice(batch_size=found, loader=loader, details={"tried": tried})
