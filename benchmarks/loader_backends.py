"""Both backends against stock torch: samples/s of training-style loading, interleaved, raw values kept.

    python benchmarks/loader_backends.py DATASET [--rounds 5] [--workers 1 2 3 4] [--batch-size 64] > result.json

Each round measures every setting once, in a new random order, so that a drift of the machine hits all alike. Workers
start, and the first batches are thrown away, before the clock runs. Small sets are repeated by index.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from wellfed.pipeline.formats import RepeatedSource, Source, open_source
from wellfed.pipeline.hardware import fingerprint
from wellfed.pipeline.loader import DataLoader, stock_loader

WARM_UP_BATCHES = 12
"""And the counted batches are a multiple of it: processes finish in bursts of as many batches as there are workers, and
12 is a multiple of 1 to 4, so that a value starts and ends at the same point of a burst."""


def samples_per_second(batches: Iterator[Any], count: int) -> float:
    for _ in itertools.islice(batches, WARM_UP_BATCHES):
        pass
    samples = 0
    start = time.perf_counter()
    for images, _ in itertools.islice(batches, count):
        samples += len(images)
    return samples / (time.perf_counter() - start)


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def measure(source: Source, setting: dict[str, Any], options: argparse.Namespace) -> float:
    if setting["backend"] == "stock":
        stock = stock_loader(source, batch_size=options.batch_size, image_size=options.image_size, seed=0)
        return samples_per_second(endless(stock), options.batches)
    with DataLoader(
        source,
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
        augment="train",
        image_size=options.image_size,
        backend=setting["backend"],
        num_workers=setting["num_workers"],
    ) as loader:
        return samples_per_second(endless(loader), options.batches)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batches", type=int, default=24, help="batches behind each value")
    options = parser.parse_args()

    source = open_source(options.dataset)
    wanted = options.batch_size * (options.batches + WARM_UP_BATCHES)
    repeated = RepeatedSource(source, max(1, -(-wanted // len(source))))
    settings: list[dict[str, Any]] = [{"backend": "stock", "num_workers": 0}]
    settings += [
        {"backend": backend, "num_workers": workers}
        for backend in ("threads", "processes")
        for workers in options.workers
    ]
    results: list[dict[str, Any]] = [{**setting, "samples_per_second": []} for setting in settings]
    shuffled = random.Random(0)
    for number in range(options.rounds):
        for result in shuffled.sample(results, len(results)):
            value = measure(repeated, result, options)
            result["samples_per_second"].append(round(value, 1))
            print(
                f"round {number + 1}: {result['backend']} {result['num_workers']}: {value:.0f} samples/s",
                file=sys.stderr,
            )
    for result in results:
        ratios = [
            own / stock
            for own, stock in zip(result["samples_per_second"], results[0]["samples_per_second"], strict=True)
        ]
        result["median_ratio_to_stock"] = round(statistics.median(ratios), 3)
    document = {
        "benchmark": "loader_backends",
        "dataset": {"kind": source.kind, "samples": len(source), "fingerprint": source.fingerprint},
        "batch_size": options.batch_size,
        "image_size": options.image_size,
        "batches": options.batches,
        "machine": fingerprint(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "results": results,
    }
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
