"""A folder of class folders, read as it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DamagedDatasetError, UsageError
from .index import index_dtype
from .scan import FolderScan, scan_folder


class FolderSource:
    """Class folders of image files; see `Source`.

    The key of a file is its planned number, as a conversion would give it, so that the same images give the same
    order and crops read directly or converted. Entries that the scan rejects are left out and leave gaps. Image
    headers are not read: width and height are 0 in the index, the mode is "unknown" and `ext` is the file's suffix.

    Pickling keeps the path; the other process scans again and requires the same fingerprint.

    Args:
        location: the folder.

    Raises:
        UsageError: as `scan_folder`, or no entry can be a sample.
    """

    kind = "folder"

    def __init__(self, location: str | Path) -> None:
        self._location = str(location)
        self._root = Path(os.path.abspath(location))
        self._scan()

    def _scan(self) -> None:
        scan = scan_folder(self._root)
        rows = np.ones(len(scan), dtype=bool)
        rows[list(scan.reasons)] = False
        self._planned = np.flatnonzero(rows)
        if not len(self._planned):
            row, reason = next(iter(scan.reasons.items()))
            raise UsageError(
                "the folder must hold at least one readable file",
                got=f"{self._location}, where {scan.name_bytes(row)!r} and all {len(scan)} entries fail: {reason}",
                remedy="Check the files and where their links lead.",
            )
        self._found = scan
        self._index = _index_of(scan, self._planned)

    @property
    def location(self) -> str:
        """Path as the user gave it."""
        return self._location

    @property
    def scan(self) -> FolderScan:
        """What the scan found, rejected and skipped entries included."""
        return self._found

    @property
    def fingerprint(self) -> str:
        """Hex digest over names, sizes and classes."""
        return self._found.fingerprint

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names, sorted as text; a label is a position in it."""
        return self._found.class_names

    @property
    def index(self) -> np.ndarray:
        """The index, shape (len(self),), with the fields of `index_dtype(("image",))`."""
        return self._index

    def __len__(self) -> int:
        return len(self._planned)

    def read(self, row: int) -> bytes:
        """The bytes of a row's file.

        Raises:
            DamagedDatasetError: the file is gone, cannot be read or has another size than when it was scanned.
            IndexError: a row outside 0..len-1.
        """
        name = self._name_bytes(row)
        size = int(self._index["size_image"][row])
        try:
            with open(os.path.join(os.fsencode(self._root), name), "rb") as file:
                data = file.read()
        except OSError as error:
            raise self._changed(row, name, error.strerror or str(error)) from error
        if len(data) != size:
            raise self._changed(row, name, f"{len(data)} bytes instead of {size}")
        return data

    def name(self, row: int) -> str:
        """The relative path of a row (bytes that are not UTF-8 as surrogate escapes)."""
        return self._name_bytes(row).decode("utf-8", "surrogateescape")

    def close(self) -> None:
        """Nothing is kept open."""

    def _name_bytes(self, row: int) -> bytes:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {self._location!r}, which has {len(self)}")
        return self._found.name_bytes(int(self._planned[row]))

    def _changed(self, row: int, name: bytes, what: str) -> DamagedDatasetError:
        return DamagedDatasetError(
            f"the file {name.decode('utf-8', 'backslashreplace')!r} (row {row}) of {self._location!r} must stay as it "
            "was when the folder was opened",
            got=what,
            remedy="Start again, so that the folder is scanned anew, or convert it once.",
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self._location, "root": self._root, "fingerprint": self.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._location = state["location"]
        self._root = state["root"]
        self._scan()
        if self.fingerprint != state["fingerprint"]:
            raise DamagedDatasetError(
                f"the folder {self._location!r} must not change while it is being read",
                got="other names or sizes than when it was opened",
                remedy="Start again, so that every process reads the same files, or convert the folder once.",
            )


def _index_of(scan: FolderScan, planned: np.ndarray) -> np.ndarray:
    index = np.zeros(len(planned), dtype=index_dtype(("image",)))
    index["key"] = planned
    index["label"] = scan.labels[planned]
    index["orientation"] = 1
    index["size_image"] = scan.sizes[planned]
    index["ext"] = [_suffix(scan.name_bytes(int(row))) for row in planned]
    return index


def _suffix(name: bytes) -> bytes:
    suffix = os.path.splitext(name)[1][1:].lower()
    return suffix if suffix.isalnum() and len(suffix) <= 8 else b""
