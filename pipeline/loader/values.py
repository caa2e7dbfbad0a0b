"""Values of samples made one value of a batch: the rule of collation, and moving what it makes to a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["Ragged", "as_tensor", "collated", "moved", "opened", "pinned", "tensors_in"]

_ALIGN = 16
"""Bytes; the size of the largest element, complex128."""


@dataclass(frozen=True)
class Ragged:
    """Tensors of different shapes or types, one a sample, in one block of memory.

    So they are one segment of shared memory, one page-locked block and one copy to a device, however many they are.

    Attributes:
        block: uint8, one dimension.
        parts: dtype, shape and first byte of each.
    """

    block: torch.Tensor
    parts: tuple[tuple[torch.dtype, tuple[int, ...], int], ...]

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor], *, pin: bool = False) -> Ragged:
        """A copy of these."""
        parts, end = [], 0
        for tensor in tensors:
            parts.append((tensor.dtype, tuple(tensor.shape), end))
            end += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        ragged = cls(torch.empty(end, dtype=torch.uint8, pin_memory=pin), tuple(parts))
        for view, tensor in zip(ragged.tensors(), tensors, strict=True):
            view.copy_(tensor)
        return ragged

    def tensors(self) -> list[torch.Tensor]:
        """Views of the block."""
        views = []
        for dtype, shape, start in self.parts:
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            views.append(self.block[start : start + size].view(dtype).view(shape))
        return views


def collated(values: Sequence[Any], *, pin: bool = False, channels_last: bool = False) -> Any:
    """One value for a batch of n.

    - Tensors or arrays of one shape and dtype: a tensor of shape (n, ...); of several: `Ragged`, which the loop gets
      as a list of tensors. Arrays of a dtype that torch does not have: a list.
    - Numbers: bool where all are; int64 where all are whole numbers within its range; else, if all are numbers and
      none is a whole number beyond 2**53, float64.
    - Tuples of one length: a tuple with each element collated for itself.
    - Everything else, text, bytes, dictionaries and lists among it: a list of n.

    Args:
        pin: make tensors in page-locked memory.
        channels_last: lay tensors of shape (n, C, H, W) out in channels-last memory.
    """
    first = values[0]
    if isinstance(first, tuple) and all(type(value) is type(first) and len(value) == len(first) for value in values):
        columns = [collated(column, pin=pin, channels_last=channels_last) for column in zip(*values, strict=True)]
        return _like(first, columns)
    if isinstance(first, torch.Tensor | np.ndarray):
        return _of_tensors(values, pin, channels_last)
    if isinstance(first, bool | int | float | np.generic):
        return _of_numbers(values, pin)
    return list(values)


def _of_tensors(values: Sequence[Any], pin: bool, channels_last: bool) -> Any:
    tensors: list[torch.Tensor] = []
    for value in values:
        tensor = _shared(value) if isinstance(value, torch.Tensor | np.ndarray) else None
        if tensor is None:
            return list(values)
        tensors.append(tensor)
    first = tensors[0]
    if any(tensor.shape != first.shape or tensor.dtype != first.dtype for tensor in tensors):
        return Ragged.of(tensors, pin=pin)
    layout = torch.channels_last if channels_last and first.dim() == 3 else torch.contiguous_format
    # Filled by hand: torch.stack decides the layout by itself, and knows no page-locked memory.
    batch = torch.empty((len(tensors), *first.shape), dtype=first.dtype, pin_memory=pin, memory_format=layout)
    if first.dim() == 0 or layout is torch.channels_last:
        for place, tensor in enumerate(tensors):
            batch[place] = tensor
    else:
        torch.stack(tensors, out=batch)
    return batch


def _of_numbers(values: Sequence[Any], pin: bool) -> Any:
    numbers = [value.item() if isinstance(value, np.generic) else value for value in values]
    kinds = {type(number) for number in numbers}
    if kinds == {bool}:
        dtype = torch.bool
    elif kinds == {int} and all(-(1 << 63) <= number < 1 << 63 for number in numbers):
        dtype = torch.int64
    elif kinds <= {int, float} and all(isinstance(number, float) or abs(number) <= 1 << 53 for number in numbers):
        dtype = torch.float64
    else:
        return list(values)
    return torch.tensor(numbers, dtype=dtype, pin_memory=pin)


def _shared(value: torch.Tensor | np.ndarray) -> torch.Tensor | None:
    """As `as_tensor`, but over the array's own memory where torch can have it."""
    if isinstance(value, np.ndarray) and value.flags.carray and value.dtype.isnative:
        try:
            return torch.from_numpy(value)
        except TypeError:
            return None
    return as_tensor(value)


def as_tensor(value: torch.Tensor | np.ndarray) -> torch.Tensor | None:
    """A tensor on the CPU, of an array a copy; None for dtypes that torch does not have."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    try:
        # In this machine's byte order, and writable: what is handed out belongs to its receiver.
        return torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
    except TypeError:
        return None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a batch's value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Ragged):
        yield value.block
    elif isinstance(value, tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(each)


def moved(value: Any, device: torch.device) -> Any:
    """A batch's value with its tensors on the device; copies from page-locked memory are only begun."""
    return _mapped(value, lambda tensor: tensor.to(device, non_blocking=True))


def pinned(value: Any) -> Any:
    """A batch's value with its tensors in page-locked memory."""
    return _mapped(value, lambda tensor: tensor if tensor.is_pinned() else tensor.pin_memory())


def opened(value: Any) -> Any:
    """A batch's value as the loop gets it."""
    if isinstance(value, Ragged):
        return value.tensors()
    if isinstance(value, dict):
        return {name: opened(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return _like(value, [opened(each) for each in value])
    return value


def _mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Ragged):
        return Ragged(function(value.block), value.parts)
    if isinstance(value, dict):
        return {name: _mapped(each, function) for name, each in value.items()}
    if isinstance(value, tuple):
        return _like(value, [_mapped(each, function) for each in value])
    return value


def _like(value: tuple[Any, ...], elements: Sequence[Any]) -> tuple[Any, ...]:
    return type(value)(*elements) if hasattr(value, "_fields") else tuple(elements)
