"""Views into an LMDB environment's map, and what keeps the map where it is for as long as they live."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from .environments import Environment

__all__ = ["Lease", "lend"]

LARGE_BYTES = 1 << 14
"""Values from this size on are announced to the system before they are decoded."""

_PAGE = mmap.PAGESIZE


class Lease:
    """A read transaction that is given back, and an environment that may close, once the last view is gone.

    Every view holds its lease, so a decoder that holds a view is always through before the transaction is used again.
    The environments of datasets are opened without locks and never written: a transaction takes no slot of a reader
    table, however long it is open and whichever thread uses it next, and a killed process leaves no stale reader.

    Raises:
        lmdb.Error: as `Environment.begin`.
    """

    __slots__ = ("environment", "transaction")

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        try:
            # Left open and used again, since all see the same: beginning one for each read costs more, and in a forked
            # child py-lmdb never frees one of an environment that the parent opened.
            self.transaction: Any = environment.spare.pop()
        except IndexError:
            self.transaction = environment.handle.begin(buffers=True)
        environment.leases[id(self)] = None

    def __del__(self) -> None:
        if self.environment.leases.pop(id(self), self) is None:
            self.environment.spare.append(self.transaction)


class _View(np.ndarray):
    """The bytes of one value, with the lease that they are valid under."""

    lease: Lease | None = None


def lend(lease: Lease, value: memoryview) -> memoryview:
    """The value as a memoryview that keeps its lease.

    The system is told to read a large value now: the map is marked for random access, where a page that is not in
    memory would else be read alone, one after the other, while the decoder waits.
    """
    view = _View(len(value), np.uint8, value)
    view.lease = lease
    if len(value) >= LARGE_BYTES:
        _will_need(view.ctypes.data, len(value))
    return view.data


def _will_need(address: int, size: int) -> None:
    start = address - address % _PAGE
    # Its answer is no matter: pages that are not announced are read when they are touched.
    _madvise(start, address + size - start, mmap.MADV_WILLNEED)


_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
