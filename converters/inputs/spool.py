"""Columns and reasons on disk: written row after row in constant memory, read memory-mapped."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

CHUNK = 1 << 16
"""Rows held in memory at a time."""


class Column:
    """An i8 column being written.

    Args:
        missing: rows that came before the column was first used; they get -1.
    """

    def __init__(self, path: Path, missing: int) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close
        self._buffer = array("q")
        for start in range(0, missing, CHUNK):
            self._file.write(np.full(min(CHUNK, missing - start), -1, "<i8").tobytes())

    def append(self, value: int) -> None:
        """Add a row."""
        self._buffer.append(value)
        if len(self._buffer) >= CHUNK:
            self._flush()

    def extend(self, values: Sequence[int]) -> None:
        """Add rows."""
        self._buffer.extend(values)
        if len(self._buffer) >= CHUNK:
            self._flush()

    def _flush(self) -> None:
        self._file.write(np.array(self._buffer, "<i8").tobytes())
        del self._buffer[:]

    def close(self) -> None:
        """Write what is left."""
        self._flush()
        self._file.close()


class Refused(Mapping[int, str]):
    """Refused rows with the reason, in ascending order.

    Args:
        rows: i8, ascending. ends: i8, where each reason's UTF-8 ends in text. text: u1.
    """

    def __init__(self, rows: np.ndarray, ends: np.ndarray, text: np.ndarray) -> None:
        self._rows, self._ends, self._text = rows, ends, text

    @classmethod
    def load(cls, directory: Path, prefix: str) -> Self:
        """Open what a `RefusedSpool` of that prefix wrote."""
        rows, ends, text = (directory / name for name in refused_files(prefix))
        return cls(open_raw(rows, "<i8"), open_raw(ends, "<i8"), open_raw(text, "u1"))

    def save(self, directory: Path, prefix: str) -> None:
        """Write what `load` needs."""
        for name, values in zip(refused_files(prefix), (self._rows, self._ends, self._text), strict=True):
            write_raw(directory / name, values)

    def __getitem__(self, row: int) -> str:
        place = int(np.searchsorted(self._rows, row))
        if place == len(self._rows) or self._rows[place] != row:
            raise KeyError(row)
        start = int(self._ends[place - 1]) if place else 0
        return self._text[start : int(self._ends[place])].tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self._rows), CHUNK):
            yield from self._rows[start : start + CHUNK].tolist()

    def __len__(self) -> int:
        return len(self._rows)


class RefusedSpool:
    """Refused rows being written, in ascending order."""

    def __init__(self, directory: Path, prefix: str) -> None:
        rows, ends, text = (directory / name for name in refused_files(prefix))
        self._rows, self._ends = Column(rows, 0), Column(ends, 0)
        self._text = open(text, "wb")  # noqa: SIM115 - closed by close
        self._size = 0

    def add(self, row: int, reason: str) -> None:
        """Append a row."""
        encoded = reason.encode("utf-8", "surrogatepass")
        self._text.write(encoded)
        self._size += len(encoded)
        self._rows.append(row)
        self._ends.append(self._size)

    def close(self) -> None:
        """Write what is left."""
        self._rows.close()
        self._ends.close()
        self._text.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def refused_files(prefix: str) -> tuple[str, str, str]:
    """The files of a `RefusedSpool`: rows, ends and text."""
    return f"{prefix}rows", f"{prefix}ends", f"{prefix}text"


def open_raw(path: Path, dtype: str) -> np.ndarray:
    """Map a file of nothing but values; shape (n,)."""
    # An empty file cannot be mapped.
    # As a plain array: a memmap object is several times slower to index, and adds nothing once the file is mapped.
    return np.asarray(np.memmap(path, dtype, mode="r")) if path.stat().st_size else np.zeros(0, dtype)


def write_raw(path: Path, values: np.ndarray) -> None:
    """Write what `open_raw` maps."""
    with open(path, "wb") as file:
        for start in range(0, len(values), CHUNK):
            file.write(values[start : start + CHUNK].tobytes())


def digest_of(path: Path) -> bytes:
    """SHA-256 of a file, read in pieces: a mapped one would stay in memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
