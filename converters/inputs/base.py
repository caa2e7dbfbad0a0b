"""The Input contract: what a conversion reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Input(Protocol):
    """A listed input: every sample found, in planned order, with what is known before reading it.

    A row is a sample's planned number and becomes its key. Rows are ordered the same way each time the same files
    are listed. Workers do not get the object: they get `kind` and what `save` wrote, and open their own.
    """

    @property
    def kind(self) -> str:
        """ "folder"."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each sample, shape (len(self),), integer; 0 where unknown."""
        ...

    @property
    def labels(self) -> np.ndarray:
        """Class index of each sample, shape (len(self),), int64."""
        ...

    @property
    def refused(self) -> Mapping[int, str]:
        """Row to reason, for samples that listing already found to be unusable."""
        ...

    @property
    def skipped(self) -> Mapping[str, int]:
        """Entries that are no samples (hidden files, ...), counted by kind."""
        ...

    @property
    def notes(self) -> Mapping[str, int]:
        """What listing noticed, counted."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of what the input holds, wherever it lies."""
        ...

    @property
    def state(self) -> str:
        """Hex digest that also changes when a sample was written again: whether a killed run may continue."""
        ...

    def __len__(self) -> int: ...

    def name(self, row: int) -> bytes:
        """The original relative path."""
        ...

    def read(self, row: int) -> bytes:
        """The encoded bytes. Raises SampleRejectedError where they cannot be read or are not those that were listed."""
        ...

    def save(self, directory: Path) -> None:
        """Write what `open_saved` needs, into an existing folder."""
        ...
