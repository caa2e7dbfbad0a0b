"""Original relative paths of the samples, exactly as bytes: one blob and the offsets into it, both memory-mapped."""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Sequence
from itertools import accumulate, islice
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np

from ..errors import DamagedDatasetError
from .npy import map_npy

NAMES_BLOB = "wellfed.names.bin"
NAMES_OFFSETS = "wellfed.names.npy"

_PIECE = 1 << 24


class NamesWriter:
    """Writes the two files of names, row after row.

    Use it as a context manager: both files appear under their names, synced, only when the block ends without an
    exception; otherwise nothing is left. Temporary files of a killed writer are overwritten by the next one.
    """

    def __init__(self, directory: Path) -> None:
        self._blob_path = Path(directory) / NAMES_BLOB
        self._offsets_path = Path(directory) / NAMES_OFFSETS
        self._blob = open(_temporary(self._blob_path), "wb")  # noqa: SIM115 - lives as long as the writer
        self._offsets = array("Q", [0])

    def add(self, name: bytes) -> None:
        """Append the name of the next row."""
        self._blob.write(name)
        self._offsets.append(self._offsets[-1] + len(name))

    def extend(self, names: Sequence[bytes]) -> None:
        """Append the names of the next rows."""
        self._blob.write(b"".join(names))
        # Without the first, which is the end of the row before.
        self._offsets.extend(islice(accumulate(map(len, names), initial=self._offsets[-1]), 1, None))

    def close(self) -> None:
        """Publish both files; on a full disk nothing is left, and the OSError passes through."""
        try:
            _sync_and_close(self._blob)
            with open(_temporary(self._offsets_path), "wb") as file:
                np.save(file, np.array(self._offsets, dtype="<u8"), allow_pickle=False)
                _sync_and_close(file)
        except OSError:
            self.discard()
            raise
        os.replace(_temporary(self._blob_path), self._blob_path)
        os.replace(_temporary(self._offsets_path), self._offsets_path)

    def discard(self) -> None:
        """Remove what was written."""
        for path in (self._blob_path, self._offsets_path):
            _temporary(path).unlink(missing_ok=True)
        self._blob.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class Names:
    """Names by row.

    Args:
        blob: all names one after another.
        offsets: u8, shape (rows + 1,): name r is blob[offsets[r]:offsets[r + 1]].
    """

    def __init__(self, blob: bytes | mmap.mmap, offsets: np.ndarray) -> None:
        self._blob = blob
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def bytes_at(self, row: int) -> bytes:
        """The name of a row as it was in the source. Raises IndexError outside 0..len-1."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._blob[int(self._offsets[row]) : int(self._offsets[row + 1])]

    def save(self, directory: Path) -> None:
        """Write the two files into an existing folder, from what is mapped, even where its files were removed."""
        with open(Path(directory) / NAMES_BLOB, "wb") as file:
            for start in range(0, len(self._blob), _PIECE):
                file.write(self._blob[start : start + _PIECE])
                self.forget()
        np.save(Path(directory) / NAMES_OFFSETS, self._offsets, allow_pickle=False)

    def forget(self) -> None:
        """Give memory back that reading the names in order took; for callers that go through millions once."""
        if isinstance(self._blob, mmap.mmap) and hasattr(self._blob, "madvise"):
            self._blob.madvise(mmap.MADV_DONTNEED)

    def text_at(self, row: int) -> str:
        """The name of a row as text; bytes that are not UTF-8 become surrogate escapes."""
        return self.bytes_at(row).decode("utf-8", "surrogateescape")


def open_names(directory: Path, samples: int) -> Names:
    """Map a dataset's names.

    Raises:
        DamagedDatasetError: a file is missing, cut short, of another layout or another number of rows.
    """
    blob_path, offsets_path = Path(directory) / NAMES_BLOB, Path(directory) / NAMES_OFFSETS
    try:
        offsets = map_npy(offsets_path)
        with open(blob_path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            # An empty file cannot be mapped.
            blob = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except (OSError, ValueError) as error:
        raise DamagedDatasetError(
            f"the names in {str(directory)!r} must be readable", got=str(error), remedy="Convert the dataset again."
        ) from error
    whole = offsets.dtype == np.dtype("<u8") and offsets.shape == (samples + 1,)
    if not whole or offsets[0] != 0 or int(offsets[-1]) != size or bool(np.any(offsets[1:] < offsets[:-1])):
        raise DamagedDatasetError(
            f"the names {str(offsets_path)!r} must hold {samples} rows that fill {blob_path.name!r}",
            got=f"shape {offsets.shape}, {size} bytes of names",
            remedy="Convert the dataset again.",
        )
    # A memmap object is several times slower to index than the plain array over the same pages.
    return Names(blob, np.asarray(offsets))


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _sync_and_close(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
