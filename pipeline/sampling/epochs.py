"""What an epoch holds and in which order: the one question that a loader asks, for every way to sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .draws import cycled_rows, merged, shares, weighted_rows, with_repeats
from .order import Share, epoch_order
from .sharded import sharded_order

__all__ = ["EpochRows", "MixSampling", "Sampling", "Shards", "SingleSampling"]


@dataclass(frozen=True)
class EpochRows:
    """The samples of an epoch in order.

    Attributes:
        rows: int64, shape (n,).
        repeats: numbers that tell the places of one sample apart, int64, shape (n,): with weights how often it was
            drawn before in this epoch, in a mix the pass over its dataset; None where none is drawn twice.
    """

    rows: np.ndarray
    repeats: np.ndarray | None = None


class Sampling(Protocol):
    """Samples of every epoch, as a function of its number alone; nothing is remembered between calls."""

    @property
    def samples(self) -> int:
        """Of an epoch, over all ranks; at least 1."""
        ...

    @property
    def share(self) -> Share:
        """How ranks divide a global batch."""
        ...

    @property
    def identity(self) -> str:
        """Equal for samplings that give the same epochs of the same dataset and seed; part of a loader's state."""
        ...

    def epoch(self, number: int) -> EpochRows:
        """The samples of epoch `number`, from 0 on."""
        ...


@dataclass(frozen=True)
class Shards:
    """Where a sharded order reads.

    Attributes:
        of_rows: the shard of each row of the dataset, shape (n,), ascending.
        streams: shards read at the same time.
    """

    of_rows: np.ndarray
    streams: int


@dataclass(frozen=True, kw_only=True)
class SingleSampling:
    """Samples of one dataset; see `Sampling`.

    Attributes:
        index: the dataset's index, of which keys and labels are used.
        rows: those that are used, ascending int64; None for all.
        weights: of each row that is used, float64; None for each once.
        by_class: the weights give classes their shares, so hold those shares exactly.
        shards: read in sequence; None for an exact permutation.
    """

    index: np.ndarray
    seed: int
    shuffle: bool
    identity: str
    rows: np.ndarray | None = None
    weights: np.ndarray | None = None
    by_class: bool = False
    shards: Shards | None = None

    @property
    def samples(self) -> int:
        return len(self.index) if self.rows is None else len(self.rows)

    @property
    def share(self) -> Share:
        # With a stride a rank reads from as few streams as the numbers of both allow.
        return "blocks" if self.shards is None else "strided"

    def epoch(self, number: int) -> EpochRows:
        rows, repeats = self.rows, None
        keys = _column(self.index, "key", rows)
        if self.weights is not None:
            labels = _column(self.index, "label", rows) if self.by_class else None
            picked, repeats = weighted_rows(keys, self.weights, seed=self.seed, epoch=number, groups=labels)
            rows, keys = picked if rows is None else rows[picked], with_repeats(keys[picked], repeats)
        if self.shards is None:
            order = epoch_order(keys, seed=self.seed, epoch=number, shuffle=self.shuffle)
        else:
            shards = self.shards.of_rows if rows is None else self.shards.of_rows[rows]
            order = sharded_order(keys, shards, seed=self.seed, epoch=number, streams=self.shards.streams)
        return EpochRows(order if rows is None else rows[order], None if repeats is None else repeats[order])


@dataclass(frozen=True, kw_only=True)
class MixSampling:
    """Samples of several datasets laid end to end, each with its share of an epoch; see `Sampling`.

    Attributes:
        keys: of each dataset: gives uint64 of shape (n,). Called for each epoch, so that no copy is kept.
        lengths: samples of each dataset.
        weights: each dataset's share, in any unit.
    """

    keys: Sequence[Callable[[], np.ndarray]]
    lengths: Sequence[int]
    weights: Sequence[float]
    samples: int
    seed: int
    shuffle: bool
    identity: str

    @property
    def share(self) -> Share:
        # Datasets take turns in the order, so a stride could give a rank one dataset alone.
        return "blocks"

    def epoch(self, number: int) -> EpochRows:
        counts = shares(self.samples, self.weights)
        rows, passes = [], []
        start = 0
        for part, (keys, length, count) in enumerate(zip(self.keys, self.lengths, counts, strict=True)):
            # Two datasets may have the same keys; their orders should have nothing in common.
            taken, of_pass = cycled_rows(
                keys(), count, seed=self.seed ^ (part << 40), epoch=number, shuffle=self.shuffle
            )
            rows.append(start + taken)
            passes.append(of_pass)
            start += length
        order = merged(counts)
        return EpochRows(np.concatenate(rows)[order], np.concatenate(passes)[order])


def _column(index: np.ndarray, name: str, rows: np.ndarray | None) -> np.ndarray:
    return index[name] if rows is None else index[name][rows]
