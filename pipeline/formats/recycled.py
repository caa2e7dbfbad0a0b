"""Memory that comes back when the last view of it is gone."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np

__all__ = ["Recycled"]


class Recycled:
    """Lends blocks of memory, and finds those again that nobody shares any more.

    No Python code runs when a view is freed: Python ignores a Ctrl-C that strikes there, and views are freed with every
    batch, in the training's own thread.

    Threads: any.

    Args:
        spare: free blocks kept at most; further ones are given back to the system when a block is next taken or lent.
    """

    def __init__(self, spare: int) -> None:
        self._lent: dict[int, tuple[weakref.ref[np.ndarray], np.ndarray]] = {}
        self._back: deque[weakref.ref[np.ndarray]] = deque()
        self._free: deque[np.ndarray] = deque(maxlen=spare)

    def __len__(self) -> int:
        self._collect()
        return len(self._free)

    def take(self) -> np.ndarray | None:
        """A free block, the one longest free, or None."""
        self._collect()
        try:
            return self._free.popleft()
        except IndexError:
            return None

    def lend(self, block: np.ndarray, size: int) -> np.ndarray:
        """The first `size` elements of a block that comes back once they, and all views of them, are freed."""
        self._collect()
        lent = block[:size]
        gone = weakref.ref(lent, self._back.append)
        self._lent[id(gone)] = (gone, block)
        return lent

    def _collect(self) -> None:
        while True:
            try:
                gone = self._back.popleft()
            except IndexError:
                return
            self._free.append(self._lent.pop(id(gone))[1])
