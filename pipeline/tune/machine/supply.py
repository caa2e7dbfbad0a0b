"""Some samples of a dataset taken from this process's memory, from files in the page cache, or from the storage itself.

Differences between the three show what reading costs, apart from decoding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...formats import Source
from ...formats.index import index_rows
from ...formats.reading import Encoded, Stretches, read_rows, stretches_of
from ..rig import Supply, UnmeasuredError

__all__ = ["SuppliedSource", "check_cold", "evict", "some_rows"]

MOST_BYTES = 128 << 20
_MOST_ROWS = 2048
_CHECKED = 16


def some_rows(source: Source, most: int = _MOST_ROWS) -> np.ndarray:
    """Rows from the start of the set whose images take 128 MiB at most, at least one; shape (n,), ascending."""
    rows = np.arange(min(len(source), most))
    names = source.index.dtype.names or () if isinstance(source.index, np.ndarray) else ()
    size = next((name for name in ("size_image", "size") if name in names), None)
    if size is None:
        return rows[:256]
    total = np.cumsum(index_rows(source.index, rows)[size].astype(np.int64))
    return rows[: max(1, int(np.searchsorted(total, MOST_BYTES)))]


def evict(source: Source, rows: np.ndarray) -> None:
    """Ask the system to forget the pages of these rows' images, so that the next read comes from the storage.

    Raises:
        UnmeasuredError: the samples lie in no files of their own, or the system does not know the call.
    """
    for descriptor, offset, size in _places(source, rows):
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def check_cold(source: Source, rows: np.ndarray) -> None:
    """Evict some of these rows' images and look whether they have left the page cache.

    Raises:
        UnmeasuredError: they have not, or it cannot be seen.
    """
    few = rows[:_CHECKED]
    evict(source, few)
    page = os.sysconf("SC_PAGE_SIZE")
    for descriptor, offset, size in _places(source, few):
        # A page that also holds part of a neighbour may be kept: look at one that lies within.
        start = -(-offset // page) * page
        if start + page > offset + size:
            continue
        try:
            os.preadv(descriptor, [bytearray(1)], start, os.RWF_NOWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise UnmeasuredError(
                f"the file system does not say what is in the page cache ({error.strerror}), as those in memory do not"
            ) from error
    raise UnmeasuredError("the system keeps the files' pages in memory though asked to forget them")


def _places(source: Source, rows: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(descriptor, offset, size) of each row's image; the descriptor is open only until the next is asked for."""
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        raise UnmeasuredError("this system cannot be asked to forget pages")
    stretches = stretches_of(source, rows)
    if stretches is not None:
        yield from zip(
            stretches.descriptors.tolist(), stretches.offsets.tolist(), stretches.sizes.tolist(), strict=True
        )
        return
    if source.kind != "folder":
        raise UnmeasuredError(f"the pages of a dataset of kind {source.kind} are mapped into memory and stay there")
    for row in rows.tolist():
        descriptor = os.open(os.path.join(os.fsencode(source.location), os.fsencode(source.name(row))), os.O_RDONLY)
        try:
            yield descriptor, 0, os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)


class SuppliedSource:
    """Some rows of a source, dense from 0, from one kind of supply; see `Source` for threads and life cycle.

    Pickling keeps the source and the rows; the other process fetches their bytes anew.

    Args:
        source: closed by whoever opened it.
        rows: ascending, shape (n,).
        supply: "bytes" holds the encoded samples in memory; "files" reads them, after reading them once; "storage" has
            their pages forgotten before each read.

    Raises:
        UnmeasuredError: pages cannot be forgotten here.
    """

    def __init__(self, source: Source, rows: np.ndarray, supply: Supply) -> None:
        self._source = source
        self._rows = rows
        self._supply = supply
        self._held: list[bytes] | None = None
        if supply == "storage":
            check_cold(source, rows)
        else:
            held = [source.read(row) for row in rows.tolist()]
            self._held = held if supply == "bytes" else None

    @property
    def kind(self) -> str:
        """The source's kind."""
        return self._source.kind

    @property
    def location(self) -> str:
        """The source's location."""
        return self._source.location

    @property
    def fingerprint(self) -> str:
        """The source's and the number of rows: positions mean something else than in the whole set."""
        return f"{self._source.fingerprint}:{len(self._rows)}"

    @property
    def class_names(self) -> tuple[str, ...]:
        """The source's class names."""
        return self._source.class_names

    @cached_property
    def index(self) -> np.ndarray:
        """The rows' entries of the source's index, shape (n,)."""
        return index_rows(self._source.index, self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, row: int) -> bytes:
        """The encoded image of a row; raises as the source's `read`."""
        if self._supply == "bytes":
            return self._bytes()[row]
        own = int(self._rows[row])
        if self._supply == "storage":
            evict(self._source, np.array([own]))
        return self._source.read(own)

    def read_rows(self, rows: np.ndarray) -> Sequence[Encoded]:
        """See `ManyReader`."""
        if self._supply == "bytes":
            held = self._bytes()
            return [held[row] for row in rows.tolist()]
        if self._supply == "storage":
            evict(self._source, self._rows[rows])
        return read_rows(self._source, self._rows[rows])

    def stretches(self, rows: np.ndarray) -> Stretches | None:
        """See `InFiles`."""
        if self._supply == "bytes":
            return None
        if self._supply == "storage":
            evict(self._source, self._rows[rows])
        return stretches_of(self._source, self._rows[rows])

    def name(self, row: int) -> str:
        """The original relative path of a row."""
        return self._source.name(int(self._rows[row]))

    def close(self) -> None:
        """The source is its opener's."""

    def _bytes(self) -> list[bytes]:
        if self._held is None:
            self._held = [self._source.read(row) for row in self._rows.tolist()]
        return self._held

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source, "_rows": self._rows, "_supply": self._supply, "_held": None}
