"""Many rows read in one go, into memory that is used again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .base import Source
from .recycled import Recycled

__all__ = ["Encoded", "InFiles", "ManyReader", "ReadMemory", "Stretches", "read_rows", "stretches_of"]

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


@dataclass(frozen=True, kw_only=True)
class Stretches:
    """Where n encoded samples lie in open files.

    Attributes:
        descriptors: int32, shape (n,).
        offsets, sizes: bytes; int64, shape (n,).
        files: what keeps the descriptors open.
        take: gives memory of a number of bytes to read them into.
    """

    descriptors: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    files: tuple[Any, ...]
    take: Callable[[int], memoryview]

    def read(self, memory: memoryview) -> int:
        """Read them, one behind the other.

        Args:
            memory: as many bytes as the sizes' sum.

        Returns:
            How many were read whole, the first ones: n, or the place of one whose file did not give all its bytes.
        """
        end = 0
        places = zip(self.descriptors.tolist(), self.offsets.tolist(), self.sizes.tolist(), strict=True)
        for place, (descriptor, offset, size) in enumerate(places):
            start, end = end, end + size
            try:
                if size and os.preadv(descriptor, [memory[start:end]], offset) != size:
                    return place
            except OSError:
                return place
        return len(self.sizes)

    def parted(self, memory: memoryview) -> list[memoryview]:
        """The samples in memory that was read into."""
        ends = np.cumsum(self.sizes)
        return [memory[start:end] for start, end in zip((ends - self.sizes).tolist(), ends.tolist(), strict=True)]


class InFiles(Protocol):
    """A Source whose encoded samples lie in files as they are, so that they can be read without the interpreter."""

    def stretches(self, rows: np.ndarray) -> Stretches | None:
        """Where these rows, shape (n,), lie; None where some lie in no file. Raises as `Source.read` does."""
        ...


def stretches_of(source: Source, rows: np.ndarray) -> Stretches | None:
    """Where these rows, shape (n,), lie in open files; None where they do not. Raises as `Source.read` does."""
    # Not isinstance: with a protocol that takes longer than all the rest.
    stretches = getattr(source, "stretches", None)
    return None if stretches is None else stretches(rows)


class ReadMemory:
    """Recycles the memory that encoded samples are read into.

    Fresh memory costs a page fault for every 4 KiB: of a photo of 110 KB, several times as much as copying it. A block
    comes back when the last view of it is gone.

    Threads: any.
    """

    def __init__(self) -> None:
        self._rooms: dict[int, Recycled] = {}

    def take(self, size: int) -> memoryview:
        """Memory of `size` bytes, its contents undefined."""
        # Powers of two: a block fits most later chunks, whose sizes differ a little.
        room = max(_LEAST_BYTES, 1 << (size - 1).bit_length() if size else 0)
        blocks = self._rooms.get(room)
        if blocks is None:
            blocks = self._rooms.setdefault(room, Recycled(spare=max(2, _SPARE_BYTES // room)))
        block = blocks.take()
        # A view of it keeps what is lent.
        lent = blocks.lend(np.empty(room, dtype=np.uint8) if block is None else block, size)
        return lent.data
