"""Many rows read in one go, into memory that is used again."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from .base import Source

__all__ = ["Encoded", "ManyReader", "ReadMemory", "read_rows"]

Encoded = bytes | memoryview
"""An encoded sample; a memoryview is of single bytes, and keeps the memory that it lies in for as long as it lives."""

_LEAST_BYTES = 1 << 16
_SPARE_BYTES = 256 << 20


@runtime_checkable
class ManyReader(Protocol):
    """A Source that reads many rows faster than one after the other."""

    def read_rows(self, rows: np.ndarray) -> Sequence[Encoded]:
        """The encoded images of these rows, shape (n,), in their order; raises as `Source.read` does."""
        ...


def read_rows(source: Source, rows: np.ndarray) -> Sequence[Encoded]:
    """The encoded images of these rows, shape (n,), in their order; raises as `Source.read` does."""
    if isinstance(source, ManyReader):
        return source.read_rows(rows)
    return [source.read(row) for row in rows.tolist()]


class ReadMemory:
    """Recycles the memory that encoded samples are read into.

    Fresh memory costs a page fault for every 4 KiB: of a photo of 110 KB, several times as much as copying it. A block
    comes back when the last view of it is gone.

    Threads: any.
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[np.ndarray]] = {}

    def take(self, size: int) -> memoryview:
        """Memory of `size` bytes, its contents undefined."""
        # Powers of two: a block fits most later chunks, whose sizes differ a little.
        room = max(_LEAST_BYTES, 1 << (size - 1).bit_length() if size else 0)
        free = self._free.get(room)
        if free is None:
            free = self._free.setdefault(room, deque(maxlen=max(2, _SPARE_BYTES // room)))
        try:
            block = free.popleft()
        except IndexError:
            block = np.empty(room, dtype=np.uint8)
        # A view of it keeps this array, and this array the block.
        lent = block[:size]
        weakref.finalize(lent, free.append, block).atexit = False
        return lent.data
