"""Peers whose workers are those of torch's DataLoader.

Each function takes a Job and gives an epoch's batches in an order of its own: uint8 images of 224 x 224, channels first
or last, and labels. Imports are inside, so that one peer can be there without the others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any

import numpy as np

from .data import listing
from .decoders import DECODERS, SIZE, random_draw
from .job import Job

_PREFETCH = 2


def _seed_worker(number: int) -> None:
    import torch

    torch.set_num_threads(1)
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)


def _worker_options(job: Job) -> dict[str, Any]:
    return {"num_workers": job.workers, "prefetch_factor": _PREFETCH, "worker_init_fn": _seed_worker}


def _loader(dataset: Any, job: Job, **options: Any) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=job.batch_size, drop_last=True, **_worker_options(job), **options)


def imagefolder(job: Job) -> Iterable[Any]:
    """What most training scripts do: ImageFolder, Pillow, torchvision's transforms."""
    from torchvision import datasets, transforms

    transform = transforms.Compose(
        [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    )
    return _loader(datasets.ImageFolder(str(job.files), transform), job, shuffle=True)


class _Files:
    def __init__(self, job: Job) -> None:
        self._rows = listing(job.files)
        self._decode = DECODERS[job.decoder]()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        path, label = self._rows[row]
        with open(path, "rb") as file:
            return self._decode(file.read(), random_draw), label


def files(job: Job) -> Iterable[Any]:
    """A map-style dataset over files with another decoder than Pillow."""
    return _loader(_Files(job), job, shuffle=True)


def webdataset(job: Job) -> Iterable[Any]:
    """Shards shuffled, then samples in a buffer; batches made in the workers."""
    import webdataset as wds
    from torch.utils.data import default_collate

    decode = DECODERS[job.decoder]()
    shards = sorted(str(path) for path in job.format("webdataset").glob("*.tar"))
    dataset = (
        wds.WebDataset(shards, shardshuffle=100, empty_check=False)
        .shuffle(500, initial=100)
        .to_tuple("jpg", "cls")
        .map_tuple(lambda data: decode(data, random_draw), int)
        .batched(job.batch_size, partial=False, collation_fn=default_collate)
    )
    return wds.WebLoader(dataset, batch_size=None, **_worker_options(job))


def litdata(job: Job) -> Iterable[Any]:
    """LitData's optimized chunks and its own DataLoader."""
    from litdata import StreamingDataLoader, StreamingDataset

    decode = DECODERS[job.decoder]()

    class Decoded(StreamingDataset):
        def __getitem__(self, index: Any) -> tuple[Any, int]:
            row = super().__getitem__(index)
            return decode(row["image"], random_draw), row["label"]

    dataset = Decoded(str(job.format("litdata")), shuffle=True, drop_last=True)
    return StreamingDataLoader(
        dataset, batch_size=job.batch_size, drop_last=True, num_workers=job.workers, prefetch_factor=_PREFETCH
    )


def streaming(job: Job) -> Iterable[Any]:
    """Mosaic's MDS shards."""
    from streaming import StreamingDataset

    decode = DECODERS[job.decoder]()

    class Decoded(StreamingDataset):
        def __getitem__(self, index: Any) -> tuple[Any, int]:
            row = super().__getitem__(index)
            return decode(row["image"], random_draw), row["label"]

    dataset = Decoded(
        local=str(job.format("mds")), remote=None, shuffle=True, batch_size=job.batch_size, shuffle_algo="py1e"
    )
    return _loader(dataset, job)


def hf(job: Job) -> Iterable[Any]:
    """HF datasets over Parquet, transformed when read."""
    import datasets
    import torch

    decode = DECODERS[job.decoder]()
    rows = datasets.Dataset.from_parquet(
        str(job.format("parquet") / "data.parquet"), cache_dir=os.path.join(job.root, "hf-cache")
    ).cast_column("image", datasets.Image(decode=False))

    def transform(batch: Any) -> Any:
        pixels = [decode(image["bytes"], random_draw) for image in batch["image"]]
        return {"pixels": pixels, "label": batch["label"]}

    def collate(samples: Any) -> Any:
        labels = torch.tensor([sample["label"] for sample in samples])
        return torch.stack([sample["pixels"] for sample in samples]), labels

    return _loader(rows.with_transform(transform), job, shuffle=True, collate_fn=collate)
