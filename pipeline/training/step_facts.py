"""What the calls of a step showed: taken in a memory probe, where a child process calls it first."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from .accelerator import Accelerator
from .steps import Step

__all__ = ["StepFacts", "WatchedStep"]


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """Raw observations, one value a call where it is a tuple.

    Attributes:
        call_seconds: of each call, with the device's work.
        device_bytes: alive in torch's allocator on a CUDA device after each call; None elsewhere.
        host_bytes: resident unshared memory of the process after each call.
        device_work_bytes: the most that building and calling the step held on a CUDA device beside its batches; None
            elsewhere.
        batch_bytes: of one batch on the device.
        parameters_on: kind of the device ("cpu", "cuda") that the parameters of `model` lie on; None where the step
            has no model, or one on several.
        returned: name of the type that the last call returned.
        loss: what it returned, where that is one number; JSON has no NaN, so None for one that is not finite.
        loss_finite: None where it returned no number.
    """

    call_seconds: tuple[float, ...] = ()
    device_bytes: tuple[int, ...] | None = None
    host_bytes: tuple[int, ...] = ()
    device_work_bytes: int | None = None
    batch_bytes: int = 0
    parameters_on: str | None = None
    returned: str = "NoneType"
    loss: float | None = None
    loss_finite: bool | None = None

    def __post_init__(self) -> None:
        # From JSON they come as lists.
        for name in ("call_seconds", "host_bytes", "device_bytes"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))


class WatchedStep:
    """A step that is waited for, and looked at, after each call.

    Args:
        step: from `build_step`.
        accelerator: its device.
        base_bytes: alive on a CUDA device before the step was built, batches included.
        before_call: told the number of each call before it.
    """

    def __init__(self, step: Step, accelerator: Accelerator, base_bytes: int, before_call: Any) -> None:
        self.name = step.name
        self.model = step.model
        self.optimizer = step.optimizer
        self._step = step
        self._accelerator = accelerator
        self._cuda = accelerator.torch_device if accelerator.kind == "cuda" else None
        self._base = base_bytes
        self._before_call = before_call
        self._this = psutil.Process()
        self._seconds: list[float] = []
        self._device: list[int] = []
        self._host: list[int] = []
        self._batch_bytes = 0
        self._returned: Any = None

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        self._before_call(len(self._seconds) + 1)
        self._returned = None
        started = time.perf_counter()
        returned = self._step(images, labels)
        self._accelerator.synchronize()
        self._seconds.append(time.perf_counter() - started)
        # A loss that still has its graph would itself look like a leak.
        self._returned = returned.detach() if isinstance(returned, torch.Tensor) else returned
        del returned
        if self._cuda is not None:
            self._device.append(torch.cuda.memory_allocated(self._cuda))
        memory = self._this.memory_info()
        self._host.append(memory.rss - memory.shared)
        self._batch_bytes = sum(tensor.numel() * tensor.element_size() for tensor in (images, labels))
        return None

    def facts(self) -> StepFacts:
        """What was seen so far."""
        loss = _number(self._returned)
        finite = None if loss is None else bool(torch.isfinite(torch.tensor(loss)))
        work = None if self._cuda is None else max(0, torch.cuda.max_memory_allocated(self._cuda) - self._base)
        return StepFacts(
            call_seconds=tuple(self._seconds),
            device_bytes=None if self._cuda is None else tuple(self._device),
            host_bytes=tuple(self._host),
            device_work_bytes=work,
            batch_bytes=self._batch_bytes,
            parameters_on=_device_of(self.model),
            returned=type(self._returned).__name__,
            loss=loss if finite else None,
            loss_finite=finite,
        )


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _device_of(model: Any) -> str | None:
    if not isinstance(model, torch.nn.Module):
        return None
    kinds = {parameter.device.type for parameter in model.parameters()}
    return kinds.pop() if len(kinds) == 1 else None
