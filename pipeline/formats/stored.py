"""What the Sources of converted datasets share: manifest, index and names, opened lazily and checked once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..errors import DamagedDatasetError, UsageError
from .index import INDEX_NAME, open_index
from .manifest import Manifest
from .names import Names, open_names
from .reading import Encoded


class StoredSource:
    """Base of WebDatasetSource and LmdbSource; see `Source` for threads, pickling and life cycle.

    Args:
        location: the dataset's folder.

    Raises:
        DamagedDatasetError: manifest or index are missing, damaged or contradict each other.
        SchemaVersionError: written by a newer wellfed.
    """

    kind: ClassVar[str]

    def __init__(self, location: str | Path) -> None:
        self._location = str(location)
        # Absolute, so that a later change of folder, or a worker elsewhere, still finds it.
        self._directory = Path(os.path.abspath(location))
        self._load()
        _ = self.index

    def _load(self) -> None:
        self._manifest = Manifest.load(self._directory)
        self._index: np.ndarray | None = None
        self._names: Names | None = None
        if self._manifest.kind != self.kind:
            raise DamagedDatasetError(
                f"{self._location!r} must hold a {self.kind} dataset",
                got=self._manifest.kind,
                remedy="Open it with open_source.",
            )

    @property
    def location(self) -> str:
        """Path as the user gave it."""
        return self._location

    @property
    def manifest(self) -> Manifest:
        """The dataset's manifest."""
        return self._manifest

    @property
    def fingerprint(self) -> str:
        """Hex digest over the shards' SHA-256 and the class names."""
        return self._manifest.fingerprint

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names; a label is a position in it."""
        return self._manifest.class_names

    @property
    def index(self) -> np.ndarray:
        """The memory-mapped index, shape (len(self),)."""
        if self._index is None:
            self._index = _checked_index(self._directory, self._manifest)
        return self._index

    @property
    def shards(self) -> np.ndarray:
        """The shard of each row, ascending, shape (len(self),): stretches that order="sharded" reads in sequence."""
        raise NotImplementedError

    def read_field(self, row: int, field: str) -> bytes:
        """The stored bytes of one of a row's fields that are members of their own; raises as `read` does."""
        raise NotImplementedError

    def read_members(self, rows: np.ndarray, field: str) -> Sequence[Encoded]:
        """What `read_field` gives for these rows, shape (n,), in their order."""
        return [self.read_field(row, field) for row in rows.tolist()]

    def close(self) -> None:
        """Let go of open files; reading opens them again."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self._manifest.samples

    def name(self, row: int) -> str:
        """The original relative path of a row (bytes that are not UTF-8 as surrogate escapes)."""
        if self._names is None:
            self._names = open_names(self._directory, len(self))
        return self._names.text_at(self._checked_row(row))

    def _checked_row(self, row: int) -> int:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {self._location!r}, which has {len(self)}")
        return int(row)

    def _checked_member(self, field: str) -> str:
        if field not in self._manifest.members:
            raise UsageError(
                f"what is read of {self._location!r} must be a member of its samples: "
                f"{', '.join(self._manifest.members)}",
                got=field,
                remedy="Name one of those.",
            )
        return field

    def _damaged(self, row: int, shard: str, what: str) -> DamagedDatasetError:
        return DamagedDatasetError(
            f"shard {shard!r} of {self._location!r} must hold all of row {row}",
            got=what,
            remedy="Run `wellfed verify` on the dataset; copy the shard again or convert again.",
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self._location, "directory": self._directory, "fingerprint": self.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._location = state["location"]
        self._directory = state["directory"]
        self._load()
        if self.fingerprint != state["fingerprint"]:
            raise DamagedDatasetError(
                f"the dataset {self._location!r} must not change while it is being read",
                got="another fingerprint in its manifest",
                remedy="Start again, so that every process opens the same dataset.",
            )


def _checked_index(directory: Path, manifest: Manifest) -> np.ndarray:
    """The index, once no row of it points outside the shards or classes that the manifest lists."""
    path = directory / INDEX_NAME
    index = open_index(path, fields=tuple(manifest.members), samples=manifest.samples)
    shard_sizes = np.array([shard.size for shard in manifest.shards], dtype=np.uint64)
    labels, shards = index["label"], index["shard"]
    wrong = (labels < 0) | (labels >= len(manifest.class_names)) | (shards >= len(shard_sizes))
    if not wrong.any() and len(index):
        room = shard_sizes[shards]
        for field in manifest.members:
            # Subtracted, not added: a sum of two damaged u8 could wrap around.
            sizes, offsets = index[f"size_{field}"], index[f"offset_{field}"]
            wrong |= (sizes > room) | (offsets > room - np.minimum(sizes, room))
    if wrong.any():
        raise DamagedDatasetError(
            f"every row of the index {str(path)!r} must lie within the manifest's shards and classes",
            got=f"row {int(np.argmax(wrong))} does not",
            remedy="Convert the dataset again.",
        )
    return index
