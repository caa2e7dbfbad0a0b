"""A small dataset seen as a large one, for measuring: an epoch must be long enough to time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import UsageError
from .base import Source
from .reading import Encoded, Stretches, read_rows, stretches_of


class RepeatedSource:
    """`times` copies of a source, one after another; see `Source`.

    Row r reads row r % len(source); copy k's keys are the source's plus k * (largest key + 1), so that every copy
    gets crops of its own. Threads, pickling and life cycle are the source's.

    Raises:
        UsageError: fewer than one copy, or keys beyond 64 bits.
    """

    def __init__(self, source: Source, times: int) -> None:
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise UsageError("a source is repeated a whole number of times, at least 1", got=times, remedy="Give one.")
        self.source = source
        self.times = times
        if self._key_stride * times >= 1 << 64:
            raise UsageError("keys must stay below 2**64", got=f"{times} copies", remedy="Repeat fewer times.")

    @property
    def _key_stride(self) -> int:
        keys = self.source.index["key"]
        return int(keys[-1]) + 1 if len(keys) else 1

    @property
    def kind(self) -> str:
        """The source's kind."""
        return self.source.kind

    @property
    def location(self) -> str:
        """The source's location."""
        return self.source.location

    @property
    def fingerprint(self) -> str:
        """Differs from the source's where there is more than one copy: a position in it means something else."""
        if self.times == 1:
            return self.source.fingerprint
        return hashlib.sha256(f"{self.source.fingerprint} x {self.times}".encode()).hexdigest()

    @property
    def class_names(self) -> tuple[str, ...]:
        """The source's class names."""
        return self.source.class_names

    @cached_property
    def index(self) -> np.ndarray:
        """The source's index once for each copy, shape (times * len(source),)."""
        index = np.tile(self.source.index[:], self.times)
        copies = np.repeat(np.arange(self.times, dtype=np.uint64), len(self.source))
        index["key"] += copies * np.uint64(self._key_stride)
        return index

    def __len__(self) -> int:
        return self.times * len(self.source)

    def read(self, row: int) -> bytes:
        """The encoded image of a row; raises as the source's `read`."""
        return self.source.read(self._row(row))

    def read_rows(self, rows: np.ndarray) -> Sequence[Encoded]:
        """See `ManyReader`."""
        return read_rows(self.source, self._rows(rows))

    def stretches(self, rows: np.ndarray) -> Stretches | None:
        """See `InFiles`."""
        return stretches_of(self.source, self._rows(rows))

    def name(self, row: int) -> str:
        """The original relative path of a row."""
        return self.source.name(self._row(row))

    def close(self) -> None:
        """Close the source."""
        self.source.close()

    def _row(self, row: int) -> int:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {self.location!r}, which has {len(self)}")
        return int(row) % len(self.source)

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        """Of the source."""
        if len(rows) and ((low := int(rows.min())) < 0 or (high := int(rows.max())) >= len(self)):
            self._row(low if low < 0 else high)
        return rows % len(self.source)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "times": self.times}
