"""The operations on pixels by number, and their application to the samples of a batch that each is drawn for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch

from . import colour
from .geometry import move

__all__ = ["VALUES", "Group", "Operation", "Step", "apply_groups", "groups_of", "to_device"]

VALUES = 6
"""Numbers that an operation takes at most: the matrix of `Operation.MOVE`; the others take the first, or none."""


class Operation(IntEnum):
    """What a step does to a sample."""

    NONE = 0
    BRIGHTNESS = 1
    CONTRAST = 2
    SATURATION = 3
    HUE = 4
    SHARPNESS = 5
    POSTERIZE = 6
    SOLARIZE = 7
    GRAY = 8
    AUTOCONTRAST = 9
    EQUALIZE = 10
    MOVE = 11


_ONE_VALUE: dict[Operation, Callable[[torch.Tensor, torch.Tensor], None]] = {
    Operation.BRIGHTNESS: colour.adjust_brightness,
    Operation.CONTRAST: colour.adjust_contrast,
    Operation.SATURATION: colour.adjust_saturation,
    Operation.HUE: colour.adjust_hue,
    Operation.SHARPNESS: colour.adjust_sharpness,
    Operation.POSTERIZE: colour.posterize,
    Operation.SOLARIZE: colour.solarize,
}
_NO_VALUE: dict[Operation, Callable[[torch.Tensor], None]] = {
    Operation.GRAY: colour.make_gray,
    Operation.AUTOCONTRAST: colour.autocontrast,
    Operation.EQUALIZE: colour.equalize,
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation for each sample of a batch.

    Attributes:
        operations: int8, shape (n,).
        values: float32, shape (n, VALUES).
        interpolation, fill: of `Operation.MOVE`; fill is 0 .. 255 for each channel.
    """

    operations: np.ndarray
    values: np.ndarray
    interpolation: str = "nearest"
    fill: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Samples that one operation is applied to at once.

    Attributes:
        operation: any but NONE.
        places: their places in the batch, ascending; int64, shape (m,).
        values: float32, shape (m, VALUES).
        step: where interpolation and fill are.
    """

    operation: Operation
    places: np.ndarray
    values: np.ndarray
    step: Step


def groups_of(steps: Sequence[Step], start: int, stop: int) -> Iterator[Group]:
    """What is to be done to samples start .. stop-1, in order; places count from `start`."""
    for step in steps:
        operations = step.operations[start:stop]
        for number in np.unique(operations).tolist():
            if number != Operation.NONE:
                places = np.flatnonzero(operations == number)
                values = step.values[start:stop][places]
                yield Group(operation=Operation(number), places=places, values=values, step=step)


def apply_groups(pictures: torch.Tensor, groups: Sequence[Group]) -> None:
    """Change the pictures in place: float32, shape (n, 3, H, W), whole numbers from 0 to 255, as afterwards."""
    if not groups:
        return
    device = pictures.device
    # All small numbers in one copy each, however many groups there are.
    values = to_device(np.concatenate([group.values for group in groups]), device)
    places = to_device(np.concatenate([group.places for group in groups]), device)
    start = 0
    for group in groups:
        stop = start + len(group.places)
        of_group = values[start:stop]
        if stop - start == len(pictures):
            _apply(group, pictures, of_group)
        else:
            # Samples of an operation lie scattered, so they are gathered, changed and put back.
            some = pictures.index_select(0, places[start:stop])
            _apply(group, some, of_group)
            pictures.index_copy_(0, places[start:stop], some)
        start = stop


def _apply(group: Group, pictures: torch.Tensor, values: torch.Tensor) -> None:
    operation = group.operation
    if operation in _ONE_VALUE:
        _ONE_VALUE[operation](pictures, values[:, 0])
    elif operation in _NO_VALUE:
        _NO_VALUE[operation](pictures)
    else:
        fill = to_device(np.asarray(group.step.fill, dtype=np.float32), pictures.device)
        move(pictures, values, interpolation=group.step.interpolation, fill=fill)


def to_device(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """A few numbers, without waiting for the device."""
    tensor = torch.from_numpy(values)
    # Page-locked, from torch's cache, so that the copy does not wait for what the device still has to do.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
