"""What a batch's pictures become on their device before they are handed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..augmentations import Augmentation, DtypeName, Normalization, RandomErasing
from ..errors import UsageError
from .draw import draw_rectangles, draw_steps
from .ways import AtOnce, PictureByPicture, Way

__all__ = ["ImageOutput"]

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

    On a CUDA device all runs on the current stream, and nothing waits for it.

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
        erasings = sum(isinstance(each, RandomErasing) for each in augmentations)
        self._erases, self._changes_pixels = erasings > 0, erasings < len(augmentations)
        self._augmentations = augmentations
        self._seed, self._size = seed, image_size
        self._allocate = allocate
        self._ways: dict[torch.device, Way] = {}

    @property
    def changes_nothing(self) -> bool:
        """Whether pictures stay what they are."""
        return self._dtype == torch.uint8 and not self._augmentations

    def __call__(self, pictures: Any, *, epoch: int, keys: np.ndarray) -> torch.Tensor:
        """The pictures as they are handed over; those given are not written to.

        Args:
            pictures: uint8, shape (n, 3, S, S), channels-last memory.
            keys: what augmentations are drawn from; uint64, shape (n,).

        Returns:
            `dtype`, shape (n, 3, S, S), channels-last memory, on the same device.

        Raises:
            UsageError: something else than such pictures.
        """
        if not isinstance(pictures, torch.Tensor):
            raise self._unlike(type(pictures).__name__)
        if self.changes_nothing:
            return pictures
        if pictures.dtype != torch.uint8 or pictures.shape[1:] != (3, self._size, self._size):
            raise self._unlike(f"{pictures.dtype} of shape {tuple(pictures.shape)}")
        on_cpu = pictures.device.type == "cpu"
        shape = (len(pictures), self._size, self._size, 3)
        out = self._allocate(shape, self._dtype) if on_cpu else pictures.new_empty(shape, dtype=self._dtype)
        way = self._way(pictures.device)
        drawn: dict[str, Any] = {"seed": self._seed, "epoch": epoch, "keys": keys, "image_size": self._size}
        if self._changes_pixels:
            way.augment(pictures, out, draw_steps(self._augmentations, **drawn))
        elif out.is_floating_point():
            way.normalize(pictures, out)
        else:
            out.copy_(pictures.permute(0, 2, 3, 1))
        if self._erases:
            for erasing, boxes in draw_rectangles(self._augmentations, **drawn):
                way.erase(out, boxes, erasing.value)
        return out.permute(0, 3, 1, 2)

    def _way(self, device: torch.device) -> Way:
        if device not in self._ways:
            kind = PictureByPicture if device.type == "cpu" else AtOnce
            self._ways[device] = kind(self._scale.to(device), self._shift.to(device), self._size)
        return self._ways[device]

    def _unlike(self, got: str) -> UsageError:
        return UsageError(
            "device_augment, dtype and normalize take images as they are decoded: uint8, "
            f"3 x {self._size} x {self._size}",
            got=got,
            remedy="Leave images uint8 and of that size in a transform of your own, or do all of it there.",
        )
