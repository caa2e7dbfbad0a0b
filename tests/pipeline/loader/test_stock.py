"""The stock baseline: plain torch over the same source."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.formats import open_source
from wellfed.pipeline.loader import stock_loader


def test_stock_batches_are_whole_uint8_and_shuffled_by_the_seed(image_folder: Path) -> None:
    source = open_source(image_folder)
    loader = stock_loader(source, batch_size=4, image_size=8, seed=1)

    batches = list(loader)

    assert type(loader) is DataLoader
    assert loader.num_workers == 0
    assert [images.shape for images, _ in batches] == [(4, 3, 8, 8)] * 2
    images = torch.cat([images for images, _ in batches])
    labels = torch.cat([labels for _, labels in batches])
    assert images.dtype == torch.uint8
    numbers = [round(value / 20) for value in images.float().mean(dim=(1, 2, 3)).tolist()]
    assert len(set(numbers)) == 8
    assert numbers != sorted(numbers)
    assert labels.tolist() == [0 if number < 6 else 1 for number in numbers]


def test_a_dataset_smaller_than_a_stock_batch_is_refused(image_folder: Path) -> None:
    with pytest.raises(UsageError, match="at least one batch of 12; got 11 samples"):
        stock_loader(open_source(image_folder), batch_size=12, image_size=8, seed=0)
