"""`wellfed.index.npy`: one dense, fixed-width row for each stored sample, opened memory-mapped.

Every worker maps the same pages, so memory grows neither with workers nor with the number of samples.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DamagedDatasetError
from .npy import map_npy

INDEX_NAME = "wellfed.index.npy"

MODES = ("unknown", "1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F", "LAB", "HSV", "RGBX")
"""Pillow mode names by the code stored in the index's `mode` column; 0 where the header was not read."""

_BASE = [
    ("key", "<u8"),  # the planned number: the identity of a sample
    ("shard", "<u4"),  # position in the manifest's list of shards
    ("label", "<i8"),  # class index
    ("width", "<u4"),  # as encoded, before EXIF orientation; 0 where not known
    ("height", "<u4"),
    ("orientation", "u1"),  # EXIF 1..8; 1 where absent
    ("mode", "u1"),  # position in MODES
    ("ext", "S8"),  # extension of the image member, lower-case, without its dot
]


def index_dtype(fields: Sequence[str]) -> np.dtype:
    """The row of an index over these stored fields.

    Each field adds `offset_FIELD` (u8, first byte of the value in its shard file; 0 in LMDB, which is read by key),
    `size_FIELD` (u8, bytes) and `xxh3_FIELD` (u8, XXH3-64 of the value).
    """
    columns: list[tuple[str, str]] = list(_BASE)
    for field in fields:
        columns += [(f"offset_{field}", "<u8"), (f"size_{field}", "<u8"), (f"xxh3_{field}", "<u8")]
    return np.dtype(columns)


def row_struct(fields: Sequence[str]) -> struct.Struct:
    """The bytes of one row of `index_dtype(fields)`: packing them takes less than setting a row of an array."""
    codes = {"<u8": "Q", "<u4": "I", "<i8": "q", "u1": "B", "S8": "8s"}
    row = struct.Struct("<" + "".join(codes[code] for _, code in _BASE) + "QQQ" * len(fields))
    assert row.size == index_dtype(fields).itemsize
    return row


def index_rows(index: Any, rows: np.ndarray) -> np.ndarray:
    """A copy of these rows of a source's index, a memory map or a `MixIndex`; shape (n,) for rows of shape (n,)."""
    # A memory map as a plain array: each step on one makes another memory map, which is slow.
    return (index.view(np.ndarray) if isinstance(index, np.ndarray) else index)[rows]


def mode_code(mode: str) -> int:
    """The code of a Pillow mode; 0 for one that MODES does not hold."""
    return MODES.index(mode) if mode in MODES else 0


def open_index(path: Path, *, fields: Sequence[str], samples: int) -> np.ndarray:
    """Map an index read-only.

    Returns:
        A structured array of shape (samples,) and dtype `index_dtype(fields)`.

    Raises:
        DamagedDatasetError: missing, cut short, of another layout or row count, or keys not strictly ascending.
    """
    try:
        index = map_npy(path)
    except (OSError, ValueError) as error:
        raise DamagedDatasetError(
            f"the index {str(path)!r} must be a readable .npy file", got=str(error), remedy="Convert the dataset again."
        ) from error
    if index.dtype != index_dtype(fields) or index.shape != (samples,):
        raise DamagedDatasetError(
            f"the index {str(path)!r} must have {samples} rows of the manifest's fields",
            got=f"shape {index.shape}, columns {index.dtype.names}",
            remedy="Convert the dataset again.",
        )
    keys = index["key"]
    if samples and not bool(np.all(keys[1:] > keys[:-1])):
        raise DamagedDatasetError(f"keys in the index {str(path)!r} must ascend", remedy="Convert the dataset again.")
    return index
