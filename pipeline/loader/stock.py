"""Stock torch: what most training scripts do, as the baseline of tune and bench."""

from __future__ import annotations

import io
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from ..errors import UsageError
from ..formats.base import Source

__all__ = ["stock_loader"]


class _StockDataset(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, source: Source, image_size: int) -> None:
        self._source = source
        self._labels = source.index["label"]
        self._transform = v2.Compose(
            [v2.RandomResizedCrop(image_size, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
        )

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        with Image.open(io.BytesIO(self._source.read(row))) as image:
            return self._transform(image.convert("RGB")), int(self._labels[row])


def stock_loader(source: Source, *, batch_size: int, image_size: int, seed: int) -> DataLoader[Any]:
    """torch's DataLoader with its defaults: a map dataset, Pillow, torchvision transforms v2, no workers.

    Batches are (images, labels): uint8 of shape (b, 3, S, S) and int64, in a shuffled order of `seed`, whole ones
    only. The images stay uint8, since the reference steps normalize on the device.

    Raises:
        UsageError: the dataset is smaller than a batch.
    """
    if len(source) < batch_size:
        raise UsageError(
            f"the dataset must hold at least one batch of {batch_size}",
            got=f"{len(source)} samples",
            remedy="Use a smaller batch.",
        )
    return DataLoader(
        _StockDataset(source, image_size),
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(seed),
    )
