"""Delivery of batches to their device, copying one batch ahead of the consumer where that costs no waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import DeviceError
from .backend import BatchStream
from .batch import HostBatch
from .finish import Finish, Tensors
from .values import moved, tensors_in

__all__ = ["Delivery", "check_device", "deliver"]

Delivery = tuple[HostBatch, Tensors]


def check_device(name: str) -> torch.device:
    """The device of this name; "cuda" stays without a number and means the current one.

    Raises:
        DeviceError: not a device, not there, or neither the CPU nor CUDA.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError("a device is 'cpu', 'cuda' or 'cuda:N'", got=name, remedy="Choose one of those.") from error
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise DeviceError("batches are delivered to 'cpu' or CUDA devices", got=name, remedy="Use device='cpu'.")
    if not torch.cuda.is_available():
        raise DeviceError(
            "CUDA must be usable for a CUDA device",
            got=name,
            remedy="Use device='cpu', or install a torch built for this machine's driver (see wellfed doctor).",
        )
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise DeviceError(f"this machine has {count} CUDA device(s), numbered from 0", got=name, remedy="Choose one.")
    return device


def deliver(
    stream: BatchStream,
    device: torch.device,
    select: Callable[[HostBatch], Tensors],
    finish: Finish | None = None,
) -> Iterator[Delivery]:
    """Batches with the selected tensors on the device.

    Args:
        select: the tensors of a batch that the consumer gets.
        finish: what becomes of them there, ahead of the consumer like the copy, and on its stream.
    """
    if finish is None:
        finish = _unchanged
    if device.type == "cpu":
        return ((batch, finish(batch, select(batch))) for batch in stream)
    return _deliver_to_cuda(stream, device, select, finish)


def _unchanged(batch: HostBatch, tensors: Tensors) -> Tensors:
    return tensors


def _deliver_to_cuda(
    stream: BatchStream, device: torch.device, select: Callable[[HostBatch], Tensors], finish: Finish
) -> Iterator[Delivery]:
    copies = torch.cuda.Stream(device)

    def start(batch: HostBatch) -> tuple[HostBatch, Tensors, Any]:
        with torch.cuda.stream(copies):
            if batch.made is not None:
                copies.wait_event(batch.made)
            # From page-locked memory these return at once; torch keeps the host memory until the copy is done.
            there = {name: moved(value, device) for name, value in select(batch).items()}
            for tensor in tensors_in(there):
                # What a backend decoded on the device is its stream's memory, and may be let go of below.
                tensor.record_stream(copies)
            there = finish(batch, there)
            done = torch.cuda.Event()
            done.record(copies)
        return batch, there, done

    ahead: tuple[HostBatch, Tensors, Any] | None = None
    while True:
        try:
            now = ahead or start(next(stream))
        except StopIteration:
            return
        ahead = None
        # Looking ahead only when the next batch is there: waiting for it would delay this one.
        if stream.ready():
            ahead = start(next(stream))
        batch, there, done = now
        current = torch.cuda.current_stream(device)
        current.wait_event(done)
        for tensor in tensors_in(there):
            # The memory was taken on the copying stream and may not return to it while the consumer still computes.
            tensor.record_stream(current)
        yield batch, there
