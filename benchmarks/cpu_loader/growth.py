"""Memory of worker processes over epochs of a large dataset, beside a torch Dataset with a Python list of its samples.

    python -m benchmarks.cpu_loader.growth --output growth.json

The index has 1.3 million rows; they refer to few tiny images, since a million files would only take longer to make.
Mapped files are left out: the index's pages are the page cache's, which gives them up when memory is short.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from wellfed.pipeline.formats.index import INDEX_NAME
from wellfed.pipeline.formats.manifest import MANIFEST_NAME, Manifest
from wellfed.pipeline.hardware import fingerprint
from wellfed.pipeline.tune.statistics import slope

from ..common.process import environment, run_child
from ..common.versions import versions_of
from .data import convert
from .growing import EPOCHS, IMAGE_SIZE, IMAGES, WORKERS

SETTLED_BATCHES = 100
"""Until then workers start and allocate what they keep."""
SIDES = ("wellfed", "torch")
MOST_MEGABYTES = 5
WANTED = f"below {MOST_MEGABYTES}, and 0 or less in the slope's interval"
_CLASSES = 13
_TIMEOUT_SECONDS = 600.0


def make_dataset(samples: int, work: Path) -> Path:
    """A converted dataset whose index has `samples` rows over a shard of few images."""
    folder, out = work / "tiny", work / "large"
    generator = np.random.default_rng(0)
    for number in range(IMAGES):
        path = folder / f"class{number % _CLASSES:02d}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
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
    for side in SIDES:
        command = [
            sys.executable,
            "-m",
            "benchmarks.cpu_loader.growing",
            side,
            str(dataset),
            str(samples),
            str(batches),
        ]
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


def flat(mine: Mapping[str, Any]) -> str:
    """ "reached" or "missed": 0 or less lies within the slope's interval, and the slope is below MOST_MEGABYTES."""
    return "reached" if mine["low"] <= 0 and mine["megabytes_per_epoch"] < MOST_MEGABYTES else "missed"


def summary(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each side the median of its rounds' slopes, the lowest and highest end of their intervals, and the verdict."""
    sides = {
        side: {
            "megabytes_per_epoch": statistics.median(one[side]["megabytes_per_epoch"] for one in rounds),
            "low": min(one[side]["low"] for one in rounds),
            "high": max(one[side]["high"] for one in rounds),
        }
        for side in SIDES
    }
    reached = all(flat(one["wellfed"]) == "reached" for one in rounds)
    return {**sides, "wanted": WANTED, "verdict": "reached" if reached else "missed"}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file for the raw values and their summary")
    parser.add_argument("--samples", type=int, default=1_300_000, help="rows of the index")
    parser.add_argument("--batches", type=int, default=400, help="after which each epoch is left")
    parser.add_argument("--rounds", type=int, default=3, help="of both sides in turn")
    parser.add_argument(
        "--work", type=Path, help="where the dataset is made; a temporary folder in it is removed after"
    )
    options = parser.parse_args(argv)
    rounds = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="growth-", dir=options.work) as work:
            found = measure(options.samples, options.batches, Path(work), environment(OMP_NUM_THREADS="1"))
        rounds.append({**found, "load": os.getloadavg()[0]})
        for side in SIDES:
            one = found[side]
            line = f"{one['megabytes_per_epoch']} MB an epoch ({one['low']} to {one['high']})"
            print(f"round {number + 1}: {side}: {line}", file=sys.stderr, flush=True)
    document = {
        "benchmark": "growth",
        "machine": fingerprint(),
        "versions": versions_of(("torch", "numpy")),
        "rounds": rounds,
        "summary": summary(rounds),
    }
    options.output.write_text(json.dumps(document) + "\n")
    print(json.dumps(document["summary"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
