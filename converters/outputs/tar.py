"""Plain ustar files, written by our own headers: faster than tarfile, and every byte is decided here.

Inside what webdataset, wids and DALI read alike: ASCII names up to 100 bytes, integer mtime 0, regular files, no
extensions. `tests/converters/test_tar.py` holds it to Python's tarfile and to the tar command.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from ..writeback import Writeback

BLOCK = 512
LARGEST_MEMBER = 8**11 - 1
"""Bytes that the size field of a plain ustar header can state."""

_END = bytes(2 * BLOCK)
_BUFFER = 1 << 18
"""Bytes that wait to be written: they are in the processor's cache still."""

_LARGE = 1 << 14
"""Bytes from which a member is written and hashed from where it lies, not joined to its neighbours first."""

_MOST_SMALL = 512


def padded(size: int) -> int:
    """Bytes that a member's data takes in a tar."""
    return -(-size // BLOCK) * BLOCK


def header(name: str, size: int) -> bytes:
    """One 512-byte ustar header.

    Args:
        name: ASCII, at most 100 bytes.
        size: bytes of the member, at most LARGEST_MEMBER.
    """
    encoded = name.encode("ascii")
    if len(encoded) > 100 or not 0 <= size <= LARGEST_MEMBER:
        raise ValueError(f"no plain ustar header for {name!r} of {size} bytes")
    digits = b"%011o" % size
    checksum = _CONSTANT_SUM + sum(encoded) + sum(digits)
    return b"".join((encoded, _NAME_END[len(encoded) :], _MODE_AND_OWNER, digits, _TIME, b"%06o" % checksum, _REST))


_NAME_END = bytes(100)
_MODE_AND_OWNER = b"0000644\0" + b"0000000\0" + b"0000000\0"
_TIME = b"\0" + b"%011o\0" % 0
_REST = b"\0 " + b"0" + bytes(100) + b"ustar\0" + b"00" + bytes(247)
# The checksum counts its own eight bytes as spaces, in place of the two that _REST begins with.
_CONSTANT_SUM = sum(_MODE_AND_OWNER) + sum(_TIME) + 8 * 0x20 + sum(_REST[2:])


class TarWriter:
    """Writes one tar; it appears under its name, synced, only when the block ends without an exception.

    Attributes:
        size: bytes so far.
        sha256: hex digest of the whole file, after the block; empty for a staged one.

    Args:
        use: a "staged" file is read once and removed, its values checked: it is neither hashed nor synced.
    """

    def __init__(self, path: Path, *, use: Literal["published", "staged"] = "published") -> None:
        self._path = path
        self._temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._digest = hashlib.sha256() if use == "published" else None
        # A staged file is better removed before the disk ever sees it.
        self._writeback = Writeback(self._fd) if use == "published" else None
        self._written = 0
        self._small: list[bytes] = []
        self._pieces: list[bytes] = []
        self._waiting = 0
        self.size = 0
        self.sha256 = ""

    def add(self, name: str, data: bytes) -> int:
        """Append a member and return the offset of its data."""
        size = len(data)
        self._small.append(header(name, size))
        offset = self.size + BLOCK
        if size < _LARGE:
            self._small.append(data)
        else:
            self._put(b"".join(self._small))
            self._put(data)
            self._small = []
        if rest := -size % BLOCK:
            self._small.append(_END[:rest])
        self.size = offset + size + rest
        if self._waiting >= _BUFFER or len(self._small) > _MOST_SMALL:
            self._flush()
        return offset

    def _put(self, piece: bytes) -> None:
        # Hashed here, while what was read a moment ago is in the processor's cache.
        if self._digest is not None:
            self._digest.update(piece)
        self._pieces.append(piece)
        self._waiting += len(piece)

    def _flush(self) -> None:
        self._put(b"".join(self._small))
        # Not copied into one block: the system gathers the pieces.
        written = os.writev(self._fd, self._pieces)
        if written < self._waiting:
            rest = memoryview(b"".join(self._pieces))[written:]
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        self._written += self._waiting
        self._small, self._pieces, self._waiting = [], [], 0
        if self._writeback is not None:
            self._writeback.upto(self._written)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._small.append(_END)
                self.size += len(_END)
                self._flush()
                if self._digest is not None:
                    os.fsync(self._fd)
                os.replace(self._temporary, self._path)
                self.sha256 = self._digest.hexdigest() if self._digest is not None else ""
        finally:
            os.close(self._fd)
            self._temporary.unlink(missing_ok=True)
