"""One peer in a process of its own: `python -m benchmarks.cpu_loader.one JSON` prints one JSON document.

    {"do": "rate", "peer": NAME, "set_folder": FOLDER, "decoder": "", "workers": 2, "warm_batches": 12, "batches": 48}

`do` is "rate" (images/s between two batches, time to the first batch, CPU time), "check" (one epoch over the set whose
colours tell samples apart) or "pixels" (difference from Pillow).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..common.process import tree_cpu_seconds
from .data import CHECK_CLASSES, CHECK_SAMPLES, sample_of
from .decoders import SIZE
from .job import Job
from .pixels import difference
from .rows import BY_NAME, Peer


class WrongBatchesError(Exception):
    """A peer does not load what it was asked for."""


def opener(peer: Peer) -> Any:
    """The peer's function; everything it needs is imported, outside of any clock."""
    warnings.simplefilter("ignore")  # peers' deprecations, some at every sample
    for module in peer.modules:
        importlib.import_module(module)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    module, _, function = peer.function.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), function)


def rate(peer: Peer, job: Job, warm_batches: int, batches: int) -> dict[str, Any]:
    """Images/s from the end of the last warm-up batch to that of the last batch.

    Raises:
        WrongBatchesError: the epoch ends before.
    """
    began = time.perf_counter()
    open_epoch = opener(peer)
    started = time.perf_counter()
    iterator = iter(open_epoch(job))
    _next(iterator)
    first = time.perf_counter()
    for _ in range(warm_batches - 1):
        _next(iterator)
    cpu, window = tree_cpu_seconds(os.getpid()), time.perf_counter()
    images = 0
    for _ in range(batches):
        pixels, _ = _next(iterator)
        images += len(pixels)
    seconds = time.perf_counter() - window
    cpu = tree_cpu_seconds(os.getpid()) - cpu
    _end(iterator)
    return {
        "images_per_second": round(images / seconds, 2),
        "images": images,
        "seconds": round(seconds, 4),
        "cpu_seconds": round(cpu, 3),
        "import_seconds": round(started - began, 3),
        "first_batch_seconds": round(first - started, 3),
    }


def _next(iterator: Any) -> Any:
    try:
        return next(iterator)
    except StopIteration:
        raise WrongBatchesError("the epoch ended before the last batch was measured") from None


def _end(iterator: Any) -> None:
    if hasattr(iterator, "close"):
        iterator.close()
    del iterator
    gc.collect()


def check(peer: Peer, job: Job) -> dict[str, Any]:
    """One epoch over the set of `make_check_folder`: shapes, types, labels, and every sample once.

    Raises:
        WrongBatchesError: what is wrong.
    """
    samples, labels = _epoch(opener(peer)(job), job.batch_size)
    counts = np.bincount(samples, minlength=CHECK_SAMPLES)
    if not (counts == 1).all():
        raise WrongBatchesError(f"{(counts == 0).sum()} samples never came, {(counts > 1).sum()} more than once")
    wrong = int((labels != samples % CHECK_CLASSES).sum())
    if wrong:
        raise WrongBatchesError(f"{wrong} labels of {CHECK_SAMPLES} are another sample's")
    if (np.diff(samples) == 1).mean() > 0.5:
        raise WrongBatchesError("the samples came in the order of the files: nothing was shuffled")
    return {"samples": len(samples), "every_sample_once": True, "labels_right": True, "shuffled": True}


def _epoch(batches: Iterable[Any], size: int) -> tuple[np.ndarray, np.ndarray]:
    samples, labels = [], []
    for images, classes in batches:
        pixels, numbers = np.asarray(images), np.asarray(classes)
        if pixels.dtype != np.uint8 or pixels.shape not in ((size, 3, SIZE, SIZE), (size, SIZE, SIZE, 3)):
            raise WrongBatchesError(f"images are {pixels.dtype} {pixels.shape}")
        if numbers.dtype.kind != "i" or numbers.shape != (size,):
            raise WrongBatchesError(f"labels are {numbers.dtype} {numbers.shape}")
        last = pixels.shape[1] == 3
        samples.append(sample_of(pixels.mean(axis=(2, 3) if last else (1, 2))))
        labels.append(numbers.copy())  # some peers write the next batch into the same memory
    return np.concatenate(samples), np.concatenate(labels)


def main(text: str) -> None:
    """Do what the JSON says and print the answer."""
    asked = json.loads(text)
    peer = BY_NAME[asked["peer"]]
    job = Job(root=Path(asked["set_folder"]), workers=asked["workers"], decoder=asked["decoder"])
    random.seed(os.getpid())
    if asked["do"] == "rate":
        answer = rate(peer, job, asked["warm_batches"], asked["batches"])
    elif asked["do"] == "check":
        answer = check(peer, job)
    else:
        opener(peer)
        answer = difference(peer, job)
    print(json.dumps(answer), flush=True)
    # Peers' threads and finalizers can take seconds to end, or forever.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
