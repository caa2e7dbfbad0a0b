"""The Source contract: random access to the samples of a stored dataset."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Source(Protocol):
    """Random access to stored samples, by dense row number.

    Life cycle: made by `open_source`; nothing is opened until the first read; `close` may be called more than once.
    Threads: `read` and `name` may be called from several threads at once.
    Pickling: pickles small (paths, never contents or open handles) and reopens lazily in the other process; a
    forked child must not use handles of its parent, so implementations key handles by process id.
    Determinism: the same files give the same rows, keys, labels and bytes.
    """

    @property
    def kind(self) -> str:
        """ "folder", "webdataset", "lmdb" or "mix"."""
        ...

    @property
    def location(self) -> str:
        """Path as the user gave it, for messages."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of the dataset's identity; equal for equal contents wherever the files lie."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names; a label is a position in it."""
        ...

    @property
    def index(self) -> np.ndarray:
        """Structured array of `index_dtype`; shape (len(self),); keys ascend."""
        ...

    def __len__(self) -> int: ...

    def read(self, row: int) -> bytes:
        """The encoded image of a row. Raises DamagedDatasetError naming shard and row where bytes are missing."""
        ...

    def name(self, row: int) -> str:
        """The original relative path (bytes that are not UTF-8 as surrogate escapes)."""
        ...

    def close(self) -> None: ...
