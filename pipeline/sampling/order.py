"""The order of an epoch and its cut into batches: pure functions of (seed, epoch, position)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..config import Tail
from ..errors import ConfigError, UsageError
from .philox import sample_hash

ORDER_DRAW = 0xFFFFFFFF
"""Draw number reserved for the order, so that it never shares words with augmentation."""

Share = Literal["blocks", "strided"]


def epoch_order(keys: np.ndarray, *, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """Row numbers in the order of this epoch.

    Sorting by a hash of the key makes an exact permutation that does not depend on numpy's generators, and that a
    sample removed from the dataset leaves otherwise unchanged.

    Args:
        keys: sample keys, all different, shape (n,).

    Returns:
        int64 of shape (n,), a permutation of 0..n-1.
    """
    if not shuffle:
        return np.arange(len(keys), dtype=np.int64)
    return np.argsort(sample_hash(seed, epoch, keys, ORDER_DRAW), kind="stable").astype(np.int64)


@dataclass(frozen=True)
class BatchPlan:
    """One rank's batch: where in the epoch it lies and which rows it holds.

    Attributes:
        number: counts this rank's batches from the epoch's position 0 or the resumed position.
        rows: int64, shape (b,).
        valid: bool, shape (b,); False marks a repeat that pads the last batch.
        position_after: samples of the whole epoch, over all ranks, consumed once this batch is done.
        repeats: as in `EpochRows`, int64, shape (b,); None where no row is drawn twice in the epoch.
    """

    number: int
    rows: np.ndarray
    valid: np.ndarray
    position_after: int
    repeats: np.ndarray | None = None


def steps_left(samples: int, *, position: int, batch_size: int, world_size: int, rank: int, tail: Tail) -> int:
    """How many batches this rank still has in the epoch."""
    left = samples - position
    step = batch_size * world_size
    whole, rest = divmod(left, step)
    if tail == "drop" or rest == 0:
        return whole
    if tail == "pad":
        return whole + 1
    return whole + (1 if _share(rest, rank, world_size)[1] else 0)


def _share(rest: int, rank: int, world_size: int) -> tuple[int, int]:
    """Start and length of a rank's part of the last `rest` samples: as equal as can be, the first ranks longer."""
    base, extra = divmod(rest, world_size)
    return rank * base + min(rank, extra), base + (1 if rank < extra else 0)


def cut_batches(
    order: np.ndarray,
    *,
    position: int,
    batch_size: int,
    rank: int,
    world_size: int,
    tail: Tail,
    share: Share = "blocks",
    repeats: np.ndarray | None = None,
) -> Iterator[BatchPlan]:
    """Cut an epoch, from a position on, into this rank's batches.

    Each global batch is `batch_size * world_size` consecutive samples of the order, whoever takes which. A state saved
    on W ranks therefore resumes on any other number at the same position.

    Args:
        share: with "blocks" rank r takes the r-th block of `batch_size`; with "strided" every `world_size`-th sample
            from the r-th on.
        repeats: of each place of the order, as in `BatchPlan`.

    Raises:
        ConfigError: the position does not lie within the epoch.
        UsageError: tail "drop" and an epoch smaller than one global batch.
    """
    samples, step = len(order), batch_size * world_size
    if not 0 <= position <= samples:
        raise ConfigError(
            f"a position must lie between 0 and the {samples} samples of the epoch",
            got=position,
            remedy="Load a state of this dataset.",
        )
    if tail == "drop" and samples < step:
        raise UsageError(
            "with drop_last (tail='drop') the dataset must hold at least one batch over all ranks, "
            f"{batch_size} x {world_size}",
            got=f"{samples} samples",
            remedy="Use a smaller batch, fewer ranks, or tail='pad' or 'partial'.",
        )
    if share == "blocks":
        places = rank * batch_size + np.arange(batch_size)
    else:
        places = rank + world_size * np.arange(batch_size)

    def plan(number: int, where: np.ndarray, after: int) -> BatchPlan:
        # Repeats come from the head of the order, as many times round as a tiny dataset needs.
        inside = where % samples
        return BatchPlan(number, order[inside], where < samples, after, None if repeats is None else repeats[inside])

    number = 0
    while samples - position >= step:
        yield plan(number, position + places, position + step)
        position += step
        number += 1
    rest = samples - position
    if rest == 0 or tail == "drop":
        return
    if tail == "pad":
        yield plan(number, position + places, samples)
        return
    start, length = _share(rest, rank, world_size)
    if length:
        last = start + np.arange(length) if share == "blocks" else rank + world_size * np.arange(length)
        yield plan(number, position + last, samples)
