"""The idx files of MNIST and its relatives: a big-endian header, then unsigned bytes; raw or gzip."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from wellfed.pipeline.errors import UsageError

_LARGEST_UNPACKED = 8 << 30
_CHUNK = 1 << 20


def read_idx(path: Path, dimensions: int, *, prefix: bool) -> np.ndarray:
    """The values of an idx file of unsigned bytes.

    Args:
        dimensions: that it must have: 3 for images, 1 for labels.
        prefix: of a file that was cut short, take the whole entries before the cut.

    Returns:
        u1 of that many dimensions, memory-mapped where the file is not compressed.

    Raises:
        UsageError: it cannot be read, is another kind of file, is cut short, or has bytes after its end.
    """
    try:
        if path.suffix == ".gz":
            header, body, is_cut = _unpacked(path, dimensions)
        else:
            is_cut = False
            with open(path, "rb") as file:
                header = file.read(4 + 4 * dimensions)
            size = path.stat().st_size
            body = np.memmap(path, np.uint8, mode="r")[len(header) :] if size > len(header) else np.zeros(0, np.uint8)
    except OSError as error:
        raise UsageError(f"{path.name} must be readable", got=error.strerror or str(error)) from error
    shape = _shape(header, path, dimensions)
    wanted = math.prod(shape)
    if len(body) > wanted:
        raise UsageError(
            f"{path.name} must end with its last entry", got=f"{len(body) - wanted} bytes more", remedy=_DAMAGED
        )
    if len(body) < wanted or is_cut:
        if not prefix:
            raise UsageError(
                f"{path.name} must hold {wanted:,} bytes of values",
                got=f"{len(body):,} bytes: it was cut short",
                remedy="Fetch it again, or ask for the whole samples before the cut (--prefix).",
            )
        entry = math.prod(shape[1:])
        if len(body) == wanted:
            # All values are there, and no sum says that they are right: the last entry is not whole.
            body = body[: max(0, wanted - 1)]
        shape = (len(body) // entry, *shape[1:])
        body = body[: math.prod(shape)]
    try:
        return body.reshape(shape)
    except ValueError as error:
        # No bytes at all fit any size with a 0 in it, and NumPy has a largest one.
        raise UsageError(
            f"{path.name} must state a size that it can have", got=" x ".join(map(str, shape)), remedy=_DAMAGED
        ) from error


_DAMAGED = "The file is damaged or of another kind; fetch it again."


def _shape(header: bytes, path: Path, dimensions: int) -> tuple[int, ...]:
    if len(header) < 4 + 4 * dimensions or header[:4] != bytes((0, 0, 8, dimensions)):
        raise UsageError(
            f"{path.name} must start as an idx file of unsigned bytes with {dimensions} dimensions",
            got=f"the bytes {header[:4].hex(' ') or '(none)'}",
            remedy=_DAMAGED,
        )
    shape = tuple(int(each) for each in np.frombuffer(header[4:], ">u4"))
    if 0 in shape[1:] or math.prod(shape) > _LARGEST_UNPACKED:
        raise UsageError(
            f"{path.name} must declare entries with pixels, at most 8 GiB in all",
            got=f"the dimensions {' x '.join(map(str, shape))}",
            remedy=_DAMAGED,
        )
    return shape


def _unpacked(path: Path, dimensions: int) -> tuple[bytes, np.ndarray, bool]:
    """Header, values, and whether the file ends before its gzip data, sum and length do."""
    header, body, is_cut = b"", bytearray(), False
    with gzip.open(path, "rb") as file:
        try:
            header = file.read(4 + 4 * dimensions)
            # Never more than declared and one: what a small file unpacks to has no limit.
            most = math.prod(_shape(header, path, dimensions)) + 1
            while len(body) < most and (chunk := file.read1(min(_CHUNK, most - len(body)))):
                body += chunk
        except EOFError:
            is_cut = True
        except (gzip.BadGzipFile, zlib.error) as error:
            raise UsageError(f"{path.name} must be a whole gzip file", got=str(error), remedy=_DAMAGED) from error
    return header, np.frombuffer(body, np.uint8), is_cut
