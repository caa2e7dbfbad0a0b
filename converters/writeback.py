"""Have the disk write while a file is still being written, so that the sync at its end finds little left to do.

Otherwise the system keeps written pages for seconds, or until a tenth of the memory is full of them, and the disk idles
meanwhile.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["Writeback"]

_EVERY = 8 << 20
"""Bytes: large enough for long writes, small against a shard."""

_SYNC_FILE_RANGE_WRITE = 2
"""<fcntl.h>: begin to write the dirty pages of a range, wait for nothing."""

_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class Writeback:
    """Of one file. Where the system cannot do it, nothing happens; it only ever changes when bytes are written.

    Args:
        fd: open for writing; the caller closes it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._begun = 0

    def upto(self, size: int) -> None:
        """The file has been written up to `size` bytes, and what lies before does not change any more."""
        if _sync_file_range is not None and size - self._begun >= _EVERY:
            # What fails here (a file system that cannot, a bad disk) is reported by the sync that follows.
            _sync_file_range(self._fd, self._begun, size - self._begun, _SYNC_FILE_RANGE_WRITE)
            self._begun = size
