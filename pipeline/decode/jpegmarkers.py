"""The markers of a JPEG's first picture: what kind it is, and in how many scans it comes."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["BASELINE", "count_scans", "frame_kind"]

BASELINE = 0xC0

_FRAMES = (*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0))
_BARE = (0x01, *range(0xD0, 0xD9))
_SCAN, _END = 0xDA, 0xD9


def frame_kind(data: bytes) -> int:
    """The second byte of the frame's marker: BASELINE (SOF0) or another kind; 0 where there is none."""
    return next((marker for marker in _markers(data) if marker in _FRAMES), 0)


def count_scans(data: bytes) -> int:
    """Start-of-scan markers; those inside metadata and behind the picture's end do not count."""
    if data.count(bytes((0xFF, _SCAN))) <= 1:
        return 1  # the usual one, without a walk through all of the data
    return sum(marker == _SCAN for marker in _markers(data))


def _markers(data: bytes) -> Iterator[int]:
    position = 2
    while 0 <= position < len(data) - 3:
        marker = data[position + 1]
        if data[position] != 0xFF or marker in (0x00, 0xFF, *_BARE):
            # Entropy-coded data, a restart or padding.
            position = data.find(b"\xff", position + 1)
        elif marker == _END:
            return
        else:
            yield marker
            position += 2 + int.from_bytes(data[position + 2 : position + 4])
