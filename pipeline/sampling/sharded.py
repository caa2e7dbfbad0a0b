"""An order that reads shards in sequence, for storage on which random reads are slow."""

from __future__ import annotations

import numpy as np

from .philox import sample_hash

__all__ = ["SHARDED_WINDOW", "sharded_order"]

SHARD_DRAW = 0xFFFFFFFE
WINDOW_DRAW = 0xFFFFFFFD

SHARDED_WINDOW = 512
"""Samples of a stream among which the next one is drawn; a change changes every user's order."""


def sharded_order(
    keys: np.ndarray,
    shards: np.ndarray,
    *,
    seed: int,
    epoch: int,
    streams: int,
    window: int = SHARDED_WINDOW,
) -> np.ndarray:
    """Row numbers of an epoch in which shards, in a shuffled order, are read from their start to their end.

    The shards are laid end to end in an order of (seed, epoch), and that sequence is cut into `streams` equal pieces.
    A stream reads its piece in sequence through a window: each sample is given a random delay of less than `window`
    places, and samples leave in the order of place plus delay, so that none moves by `window` or more. The epoch takes
    one sample of each stream in turn: place i is stream i % streams's, but for the last few.

    Neither ranks nor workers enter: they only cut what comes out.

    Args:
        keys: sample keys, all different, shape (n,); in any order.
        shards: the shard of each sample, shape (n,); within a shard, samples are read in the order given.
        streams, window: at least 1.

    Returns:
        int64 of shape (n,), a permutation of 0..n-1.
    """
    samples = len(keys)
    names, shard_of = np.unique(shards, return_inverse=True)
    turn = np.empty(len(names), dtype=np.int64)
    turn[np.argsort(sample_hash(seed, epoch, names, SHARD_DRAW), kind="stable")] = np.arange(len(names))
    sequence = np.argsort(turn[shard_of], kind="stable")

    starts = np.arange(streams + 1, dtype=np.int64) * samples // streams
    stream = np.repeat(np.arange(streams, dtype=np.int64), np.diff(starts))
    place = np.arange(samples, dtype=np.int64) - starts[stream]
    delay = (sample_hash(seed, epoch, keys[sequence], WINDOW_DRAW) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    # Streams lie far enough apart not to mix.
    leaves = stream.astype(np.float64) * (samples + window) + place + delay * window
    left = sequence[np.argsort(leaves, kind="stable")]
    # Each stream still has its own stretch, so `place` and `stream` hold for what left as for what entered.
    return left[np.argsort(place * streams + stream, kind="stable")].astype(np.int64)
