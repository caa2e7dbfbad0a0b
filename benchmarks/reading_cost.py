"""CPU time of reading and decoding stored images, row by row against many rows at once.

    python benchmarks/reading_cost.py DATASET [DATASET ...] [--rounds 5] [--chunk 16] [--image-size 224] > result.json

CPU seconds (user and system) of this process for each image, so that other work on the machine matters little; both
ways alternate, and all values are kept. "decode" is reading and decoding, in one thread, at the crops of an epoch;
"read" is reading alone, which for many rows of LMDB is looking up: the pages are touched by the decoder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from wellfed.pipeline.formats import Source, open_source
from wellfed.pipeline.formats.reading import read_rows
from wellfed.pipeline.loader.batch import BatchDecoder, BatchTask


class OneByOne:
    """A source without its way to read many rows."""

    def __init__(self, source: Source) -> None:
        self.read = source.read
        self.index = source.index


def cpu_seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(source: Source, options: argparse.Namespace) -> dict[str, Any]:
    order = np.random.default_rng(0).permutation(len(source))
    chunks = [order[start : start + options.chunk] for start in range(0, len(order), options.chunk)]
    found: dict[str, list[float]] = {}

    def read_all(one: Any) -> None:
        for chunk in chunks:
            read_rows(one, chunk)

    def decode_all(one: Any) -> None:
        decoder = BatchDecoder(
            source=one, seed=0, augment="train", image_size=options.image_size, on_error="raise", decode_mode="fast"
        )
        for chunk in chunks:
            decoder.decode(BatchTask(epoch=0, rows=chunk, valid=np.ones(len(chunk), bool), position_after=0))

    for number in range(options.rounds + 1):
        for way, one in (("one by one", OneByOne(source)), ("many", source)):
            for what, work in (("read", read_all), ("decode", decode_all)):
                seconds = cpu_seconds(lambda work=work, one=one: work(one))  # type: ignore[misc]
                if number:  # the first round warms up
                    found.setdefault(f"{what}, {way}", []).append(seconds / len(order) * 1e6)
    return {
        "dataset": source.location,
        "kind": source.kind,
        "samples": len(source),
        "cpu_microseconds_per_image": {name: statistics.median(values) for name, values in found.items()},
        "raw": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=224)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for dataset in options.datasets:
        source = open_source(dataset)
        results.append(measure(source, options))
        source.close()
    json.dump({"chunk": options.chunk, "image_size": options.image_size, "results": results}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
