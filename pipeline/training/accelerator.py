"""The contract of a device that trains: the CUDA one and the simulated one look the same to the loop and the tuner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from ..errors import DeviceError
from .out_of_memory import is_out_of_memory
from .sharing import Sharers

__all__ = ["Accelerator", "Batch", "DeviceWindow", "batch_parts", "is_out_of_memory", "open_accelerator"]

Batch = tuple[torch.Tensor, torch.Tensor]
"""(images uint8 (N, 3, S, S) in channels-last memory, labels int64 (N,))."""


@dataclass(frozen=True, kw_only=True)
class DeviceWindow:
    """What the device did between `start_window` and `end_window`.

    Attributes:
        util_percent: mean GPU-Util over the window, 0..100; None where it was not measured.
        util_reason: why it was not measured; None where it was.
        util_source: where the figure comes from, in words; None where it was not measured.
        util_samples: the raw percentages behind the mean, in order of time.
        peak_bytes: the most device memory in use, less other processes'; None where it was not measured.
        memory_reason: why it was not measured; None where it was.
        memory_source: where the figure comes from and how other processes were taken off.
        memory_samples: raw bytes in use, less other processes', in order of time.
        other_process_bytes: the most that other processes held; None where that is not known.
        torch_peak_reserved_bytes: torch's own peak of reserved memory since `reset_peak`; None off CUDA.
    """

    util_percent: float | None
    util_reason: str | None
    util_samples: tuple[float, ...] = ()
    util_source: str | None = None
    peak_bytes: int | None
    memory_reason: str | None
    memory_samples: tuple[int, ...] = ()
    memory_source: str | None = None
    other_process_bytes: int | None = None
    torch_peak_reserved_bytes: int | None = None


class Accelerator(Protocol):
    """A device that runs training steps.

    Life cycle: `open_accelerator` makes it, `close` (idempotent) releases it; windows do not nest.
    Threads: one thread drives it; it may sample in a thread of its own between `start_window` and `end_window`.
    Pickling: none; a child process opens its own by name.
    """

    @property
    def kind(self) -> Literal["cuda", "simulated"]: ...

    @property
    def name(self) -> str:
        """What `open_accelerator` takes to open the same device: "cuda:0", "simulated:h200"."""
        ...

    @property
    def description(self) -> dict[str, Any]:
        """JSON-able facts: at least "name" (the product's) and "simulated" (bool)."""
        ...

    @property
    def torch_device(self) -> str:
        """Where batches go: "cuda:0", or "cpu" for the simulated device."""
        ...

    @property
    def memory_total_bytes(self) -> int: ...

    def sharers(self) -> Sharers:
        """Other programs that use the device."""
        ...

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        ...

    def copy(self, batch: Any) -> Any:
        """The batch (pair or dictionary of tensors) on the device; tensors already there are not copied again."""
        ...

    def start_window(self) -> None: ...

    def end_window(self) -> DeviceWindow: ...

    def reset_peak(self) -> None:
        """Forget peaks and give cached device memory back, so that the next peak is the next step's own."""
        ...

    def is_out_of_memory(self, error: BaseException) -> bool: ...

    def close(self) -> None: ...


def batch_parts(batch: Any) -> Batch:
    """Images and labels of a batch, given as a pair or as a dictionary with "image" and "class".

    Raises:
        KeyError, ValueError: the batch is neither.
    """
    if isinstance(batch, Mapping):
        return batch["image"], batch["class"]
    images, labels = batch
    return images, labels


def open_accelerator(device: str) -> Accelerator:
    """Open "cuda", "cuda:N", "simulated" or "simulated:PRESET"; "auto" is CUDA where there is one, else simulated.

    Raises:
        DeviceError: an unknown name, or a CUDA device that is not there.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "simulated"
    family, _, detail = device.partition(":")
    if family == "simulated":
        from .simulated import SimulatedAccelerator

        return SimulatedAccelerator(detail if ":" in device else "simulated")
    if family == "cuda":
        from .cuda import CudaAccelerator

        return CudaAccelerator(device)
    raise DeviceError(
        "a device is auto, cuda, cuda:N, simulated or simulated:PRESET", got=device, remedy="Choose one of those."
    )
