"""What a batch's pictures become on their device before they are handed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..augmentations import Augmentation, DtypeName, Normalization, RandomErasing
from ..errors import UsageError
from .draw import draw_rectangles, draw_steps
from .operations import apply_groups, groups_of, to_device
from .spread import spread

__all__ = ["ImageOutput"]

AT_ONCE = 1 << 26
"""Values of pictures (n x 3 x H x W) that are augmented at once on a CUDA device: 445 pictures of 224 pixels, 256 MiB
as float32, and up to twice as much again while they are changed."""

Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""Memory for (shape, dtype) on the CPU, its contents undefined."""


def fresh(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory that is used once."""
    return torch.empty(shape, dtype=dtype)


class ImageOutput:
    """Augments, converts and normalizes batches of pictures: uint8 in, another tensor out.

    A value x of uint8 becomes x * scale + shift, in float32, then rounded to `dtype`; scale = 1 / (255 std) and
    shift = -mean / std, each rounded to float32 once. So it is (x / 255 - mean) / std, or x / 255 without `normalize`.
    On the CPU the product is rounded before the sum; CUDA may round once, at the end.

    On a CUDA device all runs on the current stream, and nothing waits for it. Pictures on the CPU are worked on one by
    one in each of some threads, since one fits the processor's caches and a batch does not.

    Threads: one at a time.

    Args:
        augmentations: in the order of their application; RandomErasing last.
        seed: of the augmentations, with epoch and key.
        image_size: height and width of the pictures, pixels.
        allocate: memory of batches on the CPU.
    """

    def __init__(
        self,
        *,
        dtype: DtypeName = "uint8",
        normalize: Normalization | None = None,
        augmentations: Sequence[Augmentation] = (),
        seed: int = 0,
        image_size: int,
        allocate: Allocate = fresh,
    ) -> None:
        self._dtype: torch.dtype = getattr(torch, dtype)
        mean, std = (np.array(each) for each in normalize or ((0.0,) * 3, (1.0,) * 3))
        self._scale = torch.from_numpy((1 / (255 * std)).astype(np.float32))
        self._shift = torch.from_numpy((-mean / std).astype(np.float32))
        self._erasings = [each for each in augmentations if isinstance(each, RandomErasing)]
        self._changes_pixels = len(self._erasings) < len(augmentations)
        self._augmentations = augmentations
        self._seed, self._size = seed, image_size
        self._allocate = allocate
        self._constants: dict[torch.device, tuple[torch.Tensor, ...]] = {}
        self._scratch: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}

    @property
    def changes_nothing(self) -> bool:
        """Whether pictures stay what they are."""
        return self._dtype == torch.uint8 and not self._augmentations

    def __call__(self, pictures: torch.Tensor, *, epoch: int, keys: np.ndarray) -> torch.Tensor:
        """The pictures as they are handed over; those given are not written to.

        Args:
            pictures: uint8, shape (n, 3, S, S), channels-last memory.
            keys: what augmentations are drawn from; uint64, shape (n,).

        Returns:
            `dtype`, shape (n, 3, S, S), channels-last memory, on the same device.

        Raises:
            UsageError: pictures of another dtype or shape.
        """
        if self.changes_nothing:
            return pictures
        if pictures.dtype != torch.uint8 or pictures.shape[1:] != (3, self._size, self._size):
            raise UsageError(
                f"device_augment, dtype and normalize take images as they are decoded: uint8, 3 x {self._size} x "
                f"{self._size}",
                got=f"{pictures.dtype} of shape {tuple(pictures.shape)}",
                remedy="Leave images uint8 and of that size in a transform of your own, or do all of it there.",
            )
        source = pictures.permute(0, 2, 3, 1)
        if pictures.device.type == "cpu":
            out = self._allocate(tuple(source.shape), self._dtype)
        else:
            out = torch.empty(source.shape, dtype=self._dtype, device=pictures.device)
        if self._changes_pixels:
            self._augment(pictures, out, epoch, keys)
        elif self._dtype == torch.uint8:
            out.copy_(source)
        else:
            self._normalize(source, out)
        if self._erasings:
            drawn = draw_rectangles(self._augmentations, seed=self._seed, epoch=epoch, keys=keys, image_size=self._size)
            for erasing, boxes in drawn:
                erase(out, boxes, erasing.value)
        return out.permute(0, 3, 1, 2)

    def _augment(self, pictures: torch.Tensor, out: torch.Tensor, epoch: int, keys: np.ndarray) -> None:
        steps = draw_steps(self._augmentations, seed=self._seed, epoch=epoch, keys=keys, image_size=self._size)
        scale, shift = (each.view(3, 1, 1) for each in self._on(pictures.device)[:2])
        # Planes of float32: arithmetic on channels that lie side by side is slow on both kinds of device.
        if pictures.device.type == "cpu":

            def work(number: int, places: range) -> None:
                planes = self._working(number, (1, 3, self._size, self._size))
                for place in places:
                    planes.copy_(pictures[place : place + 1])
                    apply_groups(planes, list(groups_of(steps, place, place + 1)))
                    if self._dtype != torch.uint8:
                        planes.mul_(scale).add_(shift)
                    for channel in range(3):  # twice as fast as all at once
                        out[place, :, :, channel].copy_(planes[0, channel])

            spread(work, len(pictures), pictures[0].numel())
            return
        at_once = max(1, AT_ONCE // (3 * self._size * self._size))
        for start in range(0, len(pictures), at_once):
            stop = min(start + at_once, len(pictures))
            planes = pictures[start:stop].to(torch.float32, memory_format=torch.contiguous_format)
            apply_groups(planes, list(groups_of(steps, start, stop)))
            written = out[start:stop].permute(0, 3, 1, 2)
            if self._dtype == torch.uint8:
                written.copy_(planes)
            else:
                torch.addcmul(shift, planes, scale, out=written)

    def _normalize(self, source: torch.Tensor, out: torch.Tensor) -> None:
        """From uint8 of shape (n, S, S, 3) into `out`, as contiguous rows of pixels."""
        _, _, scale, shift = self._on(source.device)
        rows = source.reshape(len(source), self._size, self._size * 3)
        to = out.view(rows.shape)
        if source.device.type != "cpu":
            # One kernel: it reads uint8, computes in float32 and writes the output's dtype.
            torch.addcmul(shift, rows, scale, out=to)
            return

        def work(number: int, places: range) -> None:
            scratch = self._working(number, (self._size, self._size * 3))
            for place in places:
                working = to[place] if self._dtype == torch.float32 else scratch
                working.copy_(rows[place])
                working.mul_(scale).add_(shift)
                if working is scratch:
                    to[place].copy_(working)

        spread(work, len(rows), rows[0].numel())

    def _working(self, number: int, shape: tuple[int, ...]) -> torch.Tensor:
        """float32 on the CPU that a thread uses again for each picture."""
        key = (number, shape)
        if key not in self._scratch:
            self._scratch[key] = torch.empty(shape)
        return self._scratch[key]

    def _on(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Scale and shift of each channel, and of each value of a row of pixels."""
        if device not in self._constants:
            scale, shift = self._scale.to(device), self._shift.to(device)
            self._constants[device] = (scale, shift, scale.repeat(self._size), shift.repeat(self._size))
        return self._constants[device]


def erase(out: torch.Tensor, boxes: np.ndarray, value: float | tuple[float, ...]) -> None:
    """Overwrite a rectangle of each picture.

    Args:
        out: shape (n, S, S, 3).
        boxes: x, y, width, height; width 0 is none; int64, shape (n, 4).
        value: a number, or one for each channel.
    """
    values = value if isinstance(value, tuple) else (value,)
    channels = [out[..., number] for number in range(3)] if len(values) > 1 else [out]
    if out.device.type == "cpu":

        def work(number: int, places: range) -> None:
            for place in places:
                x, y, width, height = boxes[place].tolist()
                for channel, each in zip(channels, values, strict=True):
                    channel[place, y : y + height, x : x + width].fill_(each)

        spread(work, len(out), out[0].numel())
        return
    # A launch for each rectangle would take longer than going over the batch once.
    mask = inside(to_device(boxes, out.device), out.shape[1])
    for channel, each in zip(channels, values, strict=True):
        channel.masked_fill_(mask if channel.ndim == 3 else mask.unsqueeze(3), each)


def inside(boxes: torch.Tensor, size: int) -> torch.Tensor:
    """Which pixels lie in each picture's box: bool, shape (n, S, S)."""
    x, y, width, height = boxes.unsqueeze(2).unbind(1)
    places = torch.arange(size, device=boxes.device).unsqueeze(0)
    rows = (places >= y) & (places < y + height)
    columns = (places >= x) & (places < x + width)
    return rows.unsqueeze(2) & columns.unsqueeze(1)
