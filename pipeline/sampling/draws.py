"""Which samples an epoch holds, where that is not each of them once: pure functions of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .philox import sample_hash

__all__ = ["REPEAT_SHIFT", "class_weights", "cycled_rows", "merged", "shares", "weighted_rows", "with_repeats"]

WEIGHT_DRAW = 0xFFFFFFFC
OFFSET_DRAW = 0xFFFFFFFB
CYCLE_DRAW = 0xFFFFFFFA

REPEAT_SHIFT = 48
"""Keys are planned numbers, far below 2**48; above that a repeat's number fits."""


def with_repeats(keys: np.ndarray, repeats: np.ndarray | None) -> np.ndarray:
    """Keys to draw crops from: each repeat of a sample within an epoch has one of its own, up to 65,536 of them.

    Args:
        keys: uint64, shape (n,).
        repeats: as in `EpochRows`, shape (n,); None where none is drawn twice.
    """
    if repeats is None:
        return keys
    return keys + (repeats.astype(np.uint64) << np.uint64(REPEAT_SHIFT))


def class_weights(labels: np.ndarray) -> np.ndarray:
    """float64 weights, shape (n,), that give every class that is there the same share."""
    _, where, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return 1.0 / counts[where]


def weighted_rows(
    keys: np.ndarray,
    weights: np.ndarray,
    *,
    seed: int,
    epoch: int,
    groups: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """As many rows as there are keys, each as often as its weight says, give or take one.

    Systematic sampling: the weights are laid end to end in an order of (seed, epoch), and equally spaced points from a
    random start pick rows. A row of share s is drawn floor(n * s) or that plus one times, n * s on average, while
    independent draws would leave out a third of the samples even with equal weights.

    Args:
        weights: at least 0, not all 0, shape (n,).
        groups: rows of a group lie together, so that each group's number of draws is exact in the same sense.

    Returns:
        rows, ascending, and how often each was drawn before: int64, shape (n,) both.
    """
    order = np.argsort(sample_hash(seed, epoch, keys, WEIGHT_DRAW), kind="stable")
    if groups is not None:
        order = order[np.argsort(groups[order], kind="stable")]
    reached = np.cumsum(weights[order])
    start = float(sample_hash(seed, epoch, np.zeros(1, dtype=np.uint64), OFFSET_DRAW)[0] >> np.uint64(11)) * 2.0**-53
    # Adding a start just below 1 may round up to a point too many.
    points = np.minimum(np.floor(reached / reached[-1] * len(keys) + start).astype(np.int64), len(keys))
    counts = np.empty(len(keys), dtype=np.int64)
    counts[order] = np.diff(points, prepend=0)
    rows = np.repeat(np.arange(len(keys), dtype=np.int64), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)


def shares(samples: int, weights: Sequence[float]) -> list[int]:
    """Split a number of samples by weights: the whole parts, then one more to those with the largest rests."""
    total = float(sum(weights))
    exact = [samples * weight / total for weight in weights]
    counts = [int(each) for each in exact]
    by_rest = sorted(range(len(counts)), key=lambda part: (counts[part] - exact[part], part))
    for part in by_rest[: samples - sum(counts)]:
        counts[part] += 1
    return counts


def cycled_rows(keys: np.ndarray, count: int, *, seed: int, epoch: int, shuffle: bool) -> tuple[np.ndarray, np.ndarray]:
    """The next `count` samples of an endless row of passes over the dataset, each pass in an order of its own.

    Epoch e takes places e * count .. (e + 1) * count - 1 of that row: over the epochs every sample is seen equally
    often, give or take one, whatever the count.

    Returns:
        rows, and which pass of the epoch each is of: int64, shape (count,) both.
    """
    samples = len(keys)
    first, begin = divmod(epoch * count, samples)
    rows, passes = [], []
    number, left = first, count
    while left:
        if shuffle:
            order = np.argsort(sample_hash(seed, number, keys, CYCLE_DRAW), kind="stable")
        else:
            order = np.arange(samples)
        taken = order[begin : begin + left]
        rows.append(taken)
        passes.append(np.full(len(taken), number - first))
        left -= len(taken)
        number, begin = number + 1, 0
    if not rows:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    return np.concatenate(rows).astype(np.int64), np.concatenate(passes).astype(np.int64)


def merged(counts: Sequence[int]) -> np.ndarray:
    """How sequences of these lengths are merged evenly: each stretch holds nearly its share of every one.

    Returns:
        int64 of shape (sum(counts),): places in the sequences laid end to end, each sequence in its own order.
    """
    where = np.concatenate([(np.arange(count) + 0.5) / count for count in counts if count])
    return np.argsort(where, kind="stable").astype(np.int64)
