"""One side's memory over epochs of a large dataset; `growth` runs each in a process of its own.

    python -m benchmarks.cpu_loader.growing wellfed|torch DATASET SAMPLES BATCHES

prints a list of (batches done, bytes): the anonymous memory of the process tree (PSS: shared pages divided among those
that share them) after every PERIOD batches of EPOCHS epochs, each left after BATCHES batches.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from wellfed.pipeline.formats import open_source

from ..common.process import tree_pss

EPOCHS = 3
WORKERS = 8
PERIOD = 10
IMAGES = 1300
"""Different images in the dataset."""
IMAGE_SIZE = 32
BATCH_SIZE = 64


def _wellfed(dataset: Path) -> Any:
    from wellfed.pipeline import DataLoader

    return DataLoader(
        str(dataset),
        batch_size=BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        augment="train",
        image_size=IMAGE_SIZE,
        backend="processes",
        num_workers=WORKERS,
    )


class _ListDataset:
    """What many training scripts hold: a list with a tuple for each sample."""

    def __init__(self, dataset: Path, samples: int) -> None:
        source = open_source(dataset)
        self._data = [source.read(row) for row in range(IMAGES)]
        labels = source.index["label"]
        self._rows = [(f"train/class{int(labels[row]):02d}/{row:08d}.jpg", int(labels[row])) for row in range(samples)]
        source.close()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        path, label = self._rows[row]
        data = self._data[int(path[-12:-4]) % IMAGES]
        image = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
        return image, label


def _torch(dataset: Path, samples: int) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(
        _ListDataset(dataset, samples),  # type: ignore[arg-type]
        batch_size=BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
        multiprocessing_context="fork",
    )


def _anonymous() -> int:
    memory = tree_pss(os.getpid())
    return memory["Pss_Anon"] + memory["Pss_Shmem"]


def _samples(loader: Any, batches: int) -> Iterator[tuple[int, int]]:
    done = 0
    for _ in range(EPOCHS):
        for _ in islice(loader, batches):
            done += 1
            if done % PERIOD == 0:
                yield done, _anonymous()


def main(side: str, dataset: str, samples: str, batches: str) -> None:
    """Print the list of (batches done, bytes)."""
    loader = _wellfed(Path(dataset)) if side == "wellfed" else _torch(Path(dataset), int(samples))
    print(json.dumps(list(_samples(loader, int(batches)))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
