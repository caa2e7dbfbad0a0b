"""Memory of worker processes over epochs of a large dataset, beside a torch Dataset with a Python list of its samples.

    python -m benchmarks.cpu_loader.growth wellfed|torch DATASET SAMPLES BATCHES

prints the anonymous memory of the process tree (PSS: shared pages divided among those that share them) after every
PERIOD batches of EPOCHS epochs, each left after BATCHES batches. The index has SAMPLES rows; they refer to few tiny
images, since a million files would only take longer to make. Mapped files are left out: the index's pages are the page
cache's, which gives them up when memory is short.
"""

from __future__ import annotations

import dataclasses
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
from wellfed.pipeline.formats.index import INDEX_NAME
from wellfed.pipeline.formats.manifest import MANIFEST_NAME, Manifest
from wellfed.pipeline.tune.statistics import slope

from ..common.process import run_child, tree_pss
from .data import convert

EPOCHS = 3
WORKERS = 8
PERIOD = 10
SETTLED_BATCHES = 100
"""Until then workers start and allocate what they keep."""
_BATCH_SIZE = 64
_IMAGE_SIZE = 32
_IMAGES, _CLASSES = 1300, 13
_TIMEOUT_SECONDS = 600.0


def make_dataset(samples: int, work: Path) -> Path:
    """A converted dataset whose index has `samples` rows over a shard of few images."""
    folder, out = work / "tiny", work / "large"
    generator = np.random.default_rng(0)
    for number in range(_IMAGES):
        path = folder / f"class{number % _CLASSES:02d}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (_IMAGE_SIZE, _IMAGE_SIZE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, quality=50)
    convert(folder, out)
    with_few = np.load(out / INDEX_NAME)
    index = np.resize(with_few, samples)
    index["key"] = np.arange(samples, dtype=np.uint64)
    np.save(out / INDEX_NAME, index)
    manifest = Manifest.load(out)
    (shard,) = manifest.shards
    shards = (dataclasses.replace(shard, samples=samples),)
    whole = dataclasses.replace(manifest, samples=samples, shards=shards)
    (out / MANIFEST_NAME).write_text(whole.dump())
    return out


def measure(samples: int, batches: int, work: Path, env: dict[str, str]) -> dict[str, Any]:
    """Both sides' samples of memory, and the slope of each after the first SETTLED_BATCHES, in MB (1e6 bytes) an epoch.

    Raises:
        RuntimeError: a side failed.
    """
    dataset = make_dataset(samples, work)
    result: dict[str, Any] = {"samples": samples, "workers": WORKERS, "epochs": EPOCHS, "batches_per_epoch": batches}
    for side in ("wellfed", "torch"):
        command = [sys.executable, "-m", "benchmarks.cpu_loader.growth", side, str(dataset), str(samples), str(batches)]
        out = run_child(command, timeout=_TIMEOUT_SECONDS, env=env)
        result[side] = summarize(json.loads(out.strip().splitlines()[-1]), batches)
    return result


def summarize(samples: list[list[float]], batches: int) -> dict[str, Any]:
    """Slope of (batch, bytes) pairs after the first SETTLED_BATCHES, where as many are left, in MB an epoch."""
    settled = [pair for pair in samples if pair[0] >= SETTLED_BATCHES]
    used = settled if len(settled) >= 3 else samples
    found = slope([batch / batches for batch, _ in used], [size / 1e6 for _, size in used])
    if found is None:
        raise RuntimeError(f"a slope needs at least 3 samples of memory, and there are {len(used)}")
    return {
        "megabytes_per_epoch": round(found.value, 3),
        "low": round(found.low, 3),
        "high": round(found.high, 3),
        "first_bytes": used[0][1],
        "last_bytes": used[-1][1],
        "samples": samples,
    }


def _wellfed(dataset: Path) -> Any:
    from wellfed.pipeline import DataLoader

    return DataLoader(
        str(dataset),
        batch_size=_BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        augment="train",
        image_size=_IMAGE_SIZE,
        backend="processes",
        num_workers=WORKERS,
    )


class _ListDataset:
    """What many training scripts hold: a list with a tuple for each sample."""

    def __init__(self, dataset: Path, samples: int) -> None:
        source = open_source(dataset)
        self._data = [source.read(row) for row in range(_IMAGES)]
        labels = source.index["label"]
        self._rows = [(f"train/class{int(labels[row]):02d}/{row:08d}.jpg", int(labels[row])) for row in range(samples)]
        source.close()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        path, label = self._rows[row]
        data = self._data[int(path[-12:-4]) % _IMAGES]
        image = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
        return image, label


def _torch(dataset: Path, samples: int) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(
        _ListDataset(dataset, samples),  # type: ignore[arg-type]
        batch_size=_BATCH_SIZE,
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
