"""The two ways to work on a batch: picture by picture on the CPU, all at once on a CUDA device.

Both give the same uint8, but for what `geometry.move` rounds, and floating-point values whose last bit may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from .operations import Step, apply_groups, groups_of, to_device
from .spread import spread

__all__ = ["AtOnce", "PictureByPicture", "Way"]

AT_ONCE = 1 << 26
"""Values of pictures (n x 3 x H x W) that are augmented at once on a CUDA device: 445 pictures of 224 pixels, 256 MiB
as float32, and up to twice as much again while they are changed."""

Colour = float | tuple[float, ...]


class Way(Protocol):
    """What `ImageOutput` does to a batch. `out` has the output's dtype, shape (n, S, S, 3), and is contiguous."""

    def augment(self, pictures: torch.Tensor, out: torch.Tensor, steps: Sequence[Step]) -> None:
        """Apply the steps to pictures (uint8, shape (n, 3, S, S)), normalize, and write into `out`."""

    def normalize(self, pictures: torch.Tensor, out: torch.Tensor) -> None:
        """Normalize pictures (uint8, shape (n, 3, S, S)) into `out`, which is floating point."""

    def erase(self, out: torch.Tensor, boxes: np.ndarray, value: Colour) -> None:
        """Overwrite rectangles (x, y, width, height; width 0 is none; int64, shape (n, 4)) by a number or colour."""


class PictureByPicture:
    """On the CPU, in threads: one picture fits a core's caches and a batch does not.

    Args:
        scale, shift: x becomes x * scale + shift; float32 on the CPU, shape (3,).
    """

    def __init__(self, scale: torch.Tensor, shift: torch.Tensor, size: int) -> None:
        self._planes = scale.view(3, 1, 1), shift.view(3, 1, 1)
        self._rows = scale.repeat(size), shift.repeat(size)
        self._size = size
        self._scratch: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}

    def augment(self, pictures: torch.Tensor, out: torch.Tensor, steps: Sequence[Step]) -> None:
        scale, shift = self._planes

        def work(number: int, places: range) -> None:
            # Planes: arithmetic on channels that lie side by side is slow.
            planes = self._working(number, (1, 3, self._size, self._size))
            for place in places:
                planes.copy_(pictures[place : place + 1])
                apply_groups(planes, list(groups_of(steps, place, place + 1)))
                if out.is_floating_point():
                    planes.mul_(scale).add_(shift)
                for channel in range(3):  # twice as fast as all at once
                    out[place, :, :, channel].copy_(planes[0, channel])

        spread(work, len(pictures), pictures[0].numel())

    def normalize(self, pictures: torch.Tensor, out: torch.Tensor) -> None:
        scale, shift = self._rows
        rows, to = _rows(pictures, out)

        def work(number: int, places: range) -> None:
            scratch = self._working(number, (self._size, self._size * 3))
            for place in places:
                working = to[place] if to.dtype == torch.float32 else scratch
                working.copy_(rows[place])
                working.mul_(scale).add_(shift)
                if working is scratch:
                    to[place].copy_(working)

        spread(work, len(rows), rows[0].numel())

    def erase(self, out: torch.Tensor, boxes: np.ndarray, value: Colour) -> None:
        def work(number: int, places: range) -> None:
            for place in places:
                x, y, width, height = boxes[place].tolist()
                for part, each in _parts(out[place, y : y + height, x : x + width], value):
                    part.fill_(each)

        spread(work, len(out), out[0].numel())

    def _working(self, number: int, shape: tuple[int, ...]) -> torch.Tensor:
        """float32 that a thread uses again for each picture."""
        key = (number, shape)
        if key not in self._scratch:
            self._scratch[key] = torch.empty(shape)
        return self._scratch[key]


class AtOnce:
    """In few kernels on the current stream, without waiting for them.

    Args:
        scale, shift: as for `PictureByPicture`, on the device.
    """

    def __init__(self, scale: torch.Tensor, shift: torch.Tensor, size: int) -> None:
        self._planes = scale.view(3, 1, 1), shift.view(3, 1, 1)
        self._rows = scale.repeat(size), shift.repeat(size)
        self._size = size

    def augment(self, pictures: torch.Tensor, out: torch.Tensor, steps: Sequence[Step]) -> None:
        scale, shift = self._planes
        at_once = max(1, AT_ONCE // (3 * self._size * self._size))
        for start in range(0, len(pictures), at_once):
            stop = min(start + at_once, len(pictures))
            planes = pictures[start:stop].to(torch.float32, memory_format=torch.contiguous_format)
            apply_groups(planes, list(groups_of(steps, start, stop)))
            written = out[start:stop].permute(0, 3, 1, 2)
            if out.is_floating_point():
                torch.addcmul(shift, planes, scale, out=written)
            else:
                written.copy_(planes)

    def normalize(self, pictures: torch.Tensor, out: torch.Tensor) -> None:
        scale, shift = self._rows
        rows, to = _rows(pictures, out)
        # One kernel: it reads uint8, computes in float32 and writes the output's dtype.
        torch.addcmul(shift, rows, scale, out=to)

    def erase(self, out: torch.Tensor, boxes: np.ndarray, value: Colour) -> None:
        # A launch for each rectangle would take longer than going over the batch once.
        mask = _inside(to_device(boxes, out.device), self._size).unsqueeze(3)
        for part, each in _parts(out, value):
            part.masked_fill_(mask, each)


def _rows(pictures: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as rows of pixels, which are long where memory is contiguous: shape (n, S, 3 S)."""
    shape = (len(out), out.shape[1], out.shape[2] * 3)
    return pictures.permute(0, 2, 3, 1).reshape(shape), out.view(shape)


def _parts(out: torch.Tensor, value: Colour) -> list[tuple[torch.Tensor, float]]:
    """What is filled with which number, the channels being last: all, or each of them."""
    if not isinstance(value, tuple):
        return [(out, value)]
    return [(out[..., number : number + 1], each) for number, each in enumerate(value)]


def _inside(boxes: torch.Tensor, size: int) -> torch.Tensor:
    """Which pixels lie in each picture's box: bool, shape (n, S, S)."""
    x, y, width, height = boxes.unsqueeze(2).unbind(1)
    places = torch.arange(size, device=boxes.device).unsqueeze(0)
    rows = (places >= y) & (places < y + height)
    columns = (places >= x) & (places < x + width)
    return rows.unsqueeze(2) & columns.unsqueeze(1)
