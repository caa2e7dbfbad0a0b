"""A choice's loader, opened."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from wellfed.pipeline.config import LoaderConfig
from wellfed.pipeline.formats import Source
from wellfed.pipeline.loader import make_loader, stock_loader

from .choice import Choice, Task, TorchLoader, repeated


def torch_loader(source: Source, batch_size: int, loader: TorchLoader, task: Task) -> DataLoader[Any]:
    """torch's DataLoader over the dataset and the transforms of the product's stock baseline.

    Batches are (images, labels): uint8 (b, 3, S, S) and int64; the step normalizes, which spares this loader work.
    """
    stock = stock_loader(
        repeated(source, batch_size), batch_size=batch_size, image_size=task.image_size, seed=task.seed
    )
    if not loader.num_workers:
        return stock
    return DataLoader(
        stock.dataset,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(task.seed),
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        persistent_workers=True,
    )


def open_loader(source: Source, choice: Choice, task: Task, torch_device: str) -> Any:
    """The loader that the choice would train with, shuffled and augmented for training."""
    if isinstance(choice.loader, TorchLoader):
        return torch_loader(source, choice.batch_size, choice.loader, task)
    config = LoaderConfig(
        settings=choice.loader,
        shuffle=True,
        seed=task.seed,
        tail="drop",
        augment="train",
        image_size=task.image_size,
        device=torch_device,
    )
    return make_loader(repeated(source, choice.batch_size), config)
