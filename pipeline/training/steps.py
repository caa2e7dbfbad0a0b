"""Training steps: the reference ones, a user's own, and the guard that names whatever goes wrong in one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from ..errors import StepError, UsageError, words_of
from .accelerator import Accelerator
from .simulated import MODELS, SimulatedAccelerator, SimulatedStep
from .user_step import build_user_step

__all__ = ["REFERENCE_STEPS", "ReferenceStep", "Step", "StepSpec", "build_step", "validate_step_name"]

REFERENCE_STEPS = ("resnet18", "resnet50", "vit_b_16")

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# torchvision's reference values, of pixels scaled to 0..1.

_USER_STEP = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class Step(Protocol):
    """One training step: forward, backward, optimizer.

    Called with images uint8 (N, 3, S, S) in channels-last memory and labels int64 (N,), both on the device; returns
    the loss or None; work may still be queued on the device when it returns. One thread calls it.
    `model` and `optimizer` are the user's, where the step has them, else None.
    """

    name: str
    model: Any
    optimizer: Any

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> Any: ...


def validate_step_name(name: Any) -> str:
    """Check that a step is named "resnet18", "resnet50", "vit_b_16" or "module:function".

    Raises:
        UsageError: anything else; for a function, lambda or closure with the reason.
    """
    if callable(name):
        raise UsageError(
            "a step is given by name, because child processes import it again to probe memory; a function object, "
            "lambda or closure cannot be imported",
            got=getattr(name, "__qualname__", repr(name)),
            remedy="Put the function at the top level of a module and write module:function.",
        )
    if isinstance(name, str) and name in REFERENCE_STEPS:
        return name
    if not isinstance(name, str) or not _USER_STEP.fullmatch(name):
        raise UsageError(
            f"a step is one of {', '.join(REFERENCE_STEPS)} or module:function",
            got=name,
            remedy="Write for example --step resnet50, or --step train:build for the function build in train.py.",
        )
    if name.partition(":")[0] == "__main__":
        raise UsageError(
            "a step's module must be importable by child processes, and __main__ is another module there",
            got=name,
            remedy="Move the function into a file of its own and name that module.",
        )
    return name


@dataclass(frozen=True, kw_only=True)
class StepSpec:
    """Which step to build; pickles, so that a child process can build the same one.

    Attributes:
        name: see `validate_step_name`.
        image_size: height and width of the images, pixels.
        num_classes: of the classifier.
    """

    name: str
    image_size: int = 224
    num_classes: int = 1000

    def __post_init__(self) -> None:
        validate_step_name(self.name)
        for field in ("image_size", "num_classes"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{field} must be a whole number of at least 1", got=value, remedy="Choose one.")


class ReferenceStep:
    """A torchvision model trained from scratch: bf16 autocast, channels-last, SGD with momentum 0.9, eager.

    Normalization runs on the device, inside the step.

    Args:
        spec: the model, its image size and classes.
        device: of torch.
    """

    def __init__(self, spec: StepSpec, device: str) -> None:
        from torchvision import models

        sized = {"image_size": spec.image_size} if spec.name.startswith("vit") else {}
        model: torch.nn.Module = getattr(models, spec.name)(num_classes=spec.num_classes, **sized)
        self.model = model.to(device=device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        if _world_size() > 1:
            # What DDP's own advice is for speed: gradients are views into what is reduced.
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        self._device_type = torch.device(device).type
        self._scale = torch.tensor([1 / (255 * s) for s in IMAGENET_STD], device=device).view(1, 3, 1, 1)
        shift = [-m / s for m, s in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)]
        self._shift = torch.tensor(shift, device=device).view(1, 3, 1, 1)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The batch's loss, a scalar on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        normalized = torch.addcmul(self._shift, images.float(), self._scale)
        with torch.autocast(self._device_type, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(normalized), labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def _world_size() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


class _GuardedStep:
    """Counts calls and says which step failed at which call; running out of device memory passes through."""

    def __init__(self, name: str, call: Callable[..., Any], accelerator: Accelerator) -> None:
        self.name = name
        self.model = getattr(call, "model", None)
        self.optimizer = getattr(call, "optimizer", None)
        self.calls = 0
        self._call = call
        self._accelerator = accelerator

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        self.calls += 1
        try:
            return self._call(images, labels)
        except (Exception, SystemExit) as error:
            if self._accelerator.is_out_of_memory(error):
                raise
            raise StepError(
                f"the step {self.name} must run on a batch of images {tuple(images.shape)} {images.dtype} and labels "
                f"{tuple(labels.shape)} {labels.dtype}, and raised at call {self.calls}",
                got=words_of(error),
                remedy="Mend the step; --debug shows its traceback.",
            ) from error


def build_step(
    spec: StepSpec, accelerator: Accelerator, batch_size: int, *, before_build: Callable[[], None] = lambda: None
) -> Step:
    """Build a step on a device.

    Where the program has a process group of several ranks, a reference step on a GPU is of DistributedDataParallel.

    On the simulated device a reference step takes its model's documented times and memory. A user's step is built
    with device="cpu" and really runs there: its time counts as launch time, and the device time and memory of
    ResNet-50 are added, since nothing can be known of what it would take on a card.

    Args:
        before_build: called before, once the module of a user's step is imported.

    Raises:
        UsageError: the user's step is not there, or does not keep the contract of `build_user_step`.
        StepError: building it raised.
        torch.OutOfMemoryError: it does not fit on the device.
    """
    work: Callable[..., Any]
    if spec.name in REFERENCE_STEPS:
        before_build()
        if isinstance(accelerator, SimulatedAccelerator):
            work = SimulatedStep(accelerator, MODELS[spec.name], image_size=spec.image_size)
        else:
            work = ReferenceStep(spec, accelerator.torch_device)
        return _GuardedStep(spec.name, work, accelerator)
    work = build_user_step(
        spec.name,
        {
            "device": accelerator.torch_device,
            "batch_size": batch_size,
            "num_classes": spec.num_classes,
            "image_size": spec.image_size,
        },
        passes_through=accelerator.is_out_of_memory,
        before_call=before_build,
    )
    if isinstance(accelerator, SimulatedAccelerator):
        work = SimulatedStep(accelerator, MODELS["resnet50"], image_size=spec.image_size, work=work)
    return _GuardedStep(spec.name, work, accelerator)
