"""Work on the pictures of a batch in threads of one core each, as many as torch would use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

__all__ = ["spread"]

LEAST_VALUES = 1 << 19
"""Of a batch (n x 3 x H x W), for which threads are started, about 0.2 ms: seven pictures of 160 pixels."""


def spread(work: Callable[[int, range], None], count: int, values_each: int) -> None:
    """Call work(number, places) for parts that make up range(count); each number is in use once at a time.

    torch shares the elements of every single operation among the cores, and its threads meet after each: where decoding
    keeps the cores busy they wait for each other, at ten times the processor time. Whole pictures need to meet once.

    `torch.get_num_threads()` of the calling thread says how many; what other threads have stays as it is.
    """
    before = torch.get_num_threads()
    threads = min(before, count)
    if threads == 1 or count * values_each < LEAST_VALUES:
        work(0, range(count))
        return
    try:
        with ThreadPoolExecutor(threads, "wellfed-augment", initializer=_use_one_core) as pool:
            parts = [pool.submit(work, number, range(number, count, threads)) for number in range(threads)]
            for part in parts:
                part.result()
    finally:
        # What the threads set is also the default of threads that torch has not seen yet.
        torch.set_num_threads(before)


def _use_one_core() -> None:
    torch.set_num_threads(1)
