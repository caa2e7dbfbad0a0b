"""Batches that already lie on the device: what the ceiling is measured with."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..errors import UsageError
from .accelerator import Accelerator, Batch

__all__ = ["CachedBatches"]

DISTINCT_IMAGES = 16
# Random pixels are slow to draw on a CPU; a step's speed does not depend on how many images differ.


class CachedBatches:
    """An endless rotation of device-resident batches of random pixels and labels.

    Rotation keeps a step from being measured on one batch that sits in the device's cache.

    Args:
        accelerator: where they lie.
        batch_size, image_size: of the batches.
        count: how many, at least 3.
        seed: of pixels and labels.
        num_classes: labels are 0 .. num_classes - 1.

    Raises:
        UsageError: fewer than 3.
        torch.OutOfMemoryError: they do not fit.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        batch_size: int,
        image_size: int,
        count: int = 3,
        seed: int = 0,
        *,
        num_classes: int = 1000,
    ) -> None:
        if count < 3:
            raise UsageError("a rotation has at least 3 batches", got=count, remedy="Use 3.")
        generator = torch.Generator().manual_seed(seed)
        shape = (min(batch_size, DISTINCT_IMAGES), 3, image_size, image_size)
        self._batches: list[Batch] = []
        for _ in range(count):
            pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
            rows = torch.arange(batch_size) % shape[0]
            images = pixels.contiguous(memory_format=torch.channels_last).index_select(0, rows)
            images = images.contiguous(memory_format=torch.channels_last)
            labels = torch.randint(0, num_classes, (batch_size,), generator=generator)
            self._batches.append(accelerator.copy((images, labels)))
        self._next = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self._batches[self._next]
        self._next = (self._next + 1) % len(self._batches)
        return batch
