"""Whether a zstd file ends with a whole frame: zstandard's reader ends without a word inside a block or a checksum."""

from __future__ import annotations

import os
from typing import IO, Any

_SKIPPABLE = b"\x2a\x4d\x18"
"""A skippable frame's magic number is any of 0x50 to 0x5F and these."""
_LONGEST_HEADER = 18
_RLE = 1


class WholeFrames:
    """A reader of zstandard's over a regular file, which ends where the last frame does and nowhere else.

    Args:
        file: compressed.
        reader: of zstandard's, which was given the file.
    """

    def __init__(self, file: IO[bytes], reader: Any) -> None:
        self._file = file
        self._reader = reader

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. Raises EOFError where the last frame is not whole."""
        data: bytes = self._reader.read(size)
        if not data and size:
            check_frames(self._file.fileno())
        return data


def check_frames(descriptor: int) -> None:
    """Go from frame to frame and block to block by their sizes: 3 bytes are read for each 128 KiB of data.

    The format is RFC 8878's, section 3.1. Only for a file that was decompressed without an error.

    Raises:
        EOFError: the file ends inside a frame.
    """
    import zstandard

    size, place = os.fstat(descriptor).st_size, 0
    while place < size:
        start = os.pread(descriptor, _LONGEST_HEADER, place)
        if start[1:4] == _SKIPPABLE and 0x50 <= start[0] <= 0x5F:
            place += 8 + int.from_bytes(start[4:8].ljust(4, b"\xff"), "little")
            continue
        try:
            place += zstandard.frame_header_size(start)
            has_checksum = zstandard.get_frame_parameters(start).has_checksum
        except (zstandard.ZstdError, ValueError) as error:
            raise EOFError(f"it ends inside a frame's header: {error}") from error
        last = False
        while not last and place < size:
            block = int.from_bytes(os.pread(descriptor, 3, place).ljust(3, b"\xff"), "little")
            last = bool(block & 1)
            place += 3 + (1 if block >> 1 & 3 == _RLE else block >> 3)
        if not last:
            raise EOFError("it ends before a frame's last block")
        place += 4 if has_checksum else 0
    if place > size:
        raise EOFError("it ends inside a frame")
