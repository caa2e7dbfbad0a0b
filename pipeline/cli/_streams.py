"""Standard streams that a command can rely on: they are open, and a log that takes no more words ends nothing."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

__all__ = ["open_streams"]


class _Words(io.FileIO):
    """Standard error: progress and messages."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            # A full disk under the log, or nobody who reads it: there is nowhere to say so, and the exit code is kept.
            return memoryview(data).nbytes


def open_streams() -> None:
    """Make standard streams that were closed lead nowhere, and let standard error fail without ending the work.

    The next file that is opened would have the number of a closed one, and what libraries write to their standard
    error would be in it. Python would print to standard output what was meant for a standard error that is missing.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free: this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Words(2, "w", closefd=False)),
        encoding=getattr(sys.stderr, "encoding", "utf-8"),
        errors="backslashreplace",
        line_buffering=True,
    )
