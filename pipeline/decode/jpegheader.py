"""The header of an ordinary JPEG, read without Pillow in a tenth of its time; anything unusual is left to Pillow.

`tests/pipeline/decode/test_jpegheader.py` holds it to Pillow: it answers only where Pillow says the same.
"""

from __future__ import annotations

from .metadata import is_whole_profile

__all__ = ["plain_jpeg"]

_START = b"\xff\xd8\xff"
_APP0, _APP2, _APP14 = 0xE0, 0xE2, 0xEE
_TABLES, _SCAN = 0xDB, 0xDA
_FRAMES = frozenset((0xC0, 0xC1, 0xC2))
_SKIPPED = frozenset((0xC4, 0xDD, 0xFE))
"""Huffman tables, restart interval, comment: Pillow reads over them."""

_WHOLE_PROFILE = b"ICC_PROFILE\0\1\1"
"""A profile in one piece; Pillow joins several."""

_MODES = {1: "L", 3: "RGB"}
_MOST_PIXELS = 50_000_000
"""Below the size at which Pillow warns."""


def plain_jpeg(data: bytes) -> tuple[int, int, str] | None:
    """Width, height and Pillow's mode of a baseline, extended or progressive JPEG of 8 bits, gray or of three colours.

    None for whatever else, sound or not: with EXIF, XMP, a profile in pieces or a broken one, several pictures or
    Photoshop's resources, with four colours, with padding between segments, cut short, or larger than usual.
    """
    if data[:3] != _START:
        return None
    frame: tuple[int, int, str] | None = None
    place, end = 2, len(data)
    while place + 4 <= end:
        if data[place] != 0xFF:
            return None
        marker = data[place + 1]
        length = data[place + 2] << 8 | data[place + 3]
        start = place + 4
        place += 2 + length
        if length < 2 or place > end:
            return None
        if marker in _SKIPPED:
            continue
        if marker == _TABLES:
            if not _are_tables(data, start, place):
                return None
        elif marker == _SCAN:
            return frame
        elif marker in _FRAMES:
            if frame is not None or length < 8:
                return None
            layers = data[start + 5]
            width, height = data[start + 3] << 8 | data[start + 4], data[start + 1] << 8 | data[start + 2]
            if data[start] != 8 or layers not in _MODES or length != 8 + 3 * layers:
                return None
            if not 0 < width * height < _MOST_PIXELS:
                return None
            frame = width, height, _MODES[layers]
        elif marker == _APP0:
            if data[start : start + 4] != b"JFIF" or length < 14:
                return None
        elif marker == _APP2:
            if data[start : start + 14] != _WHOLE_PROFILE or not is_whole_profile(data[start + 14 : place]):
                return None
        elif marker != _APP14 or data[start : start + 5] != b"Adobe" or length < 14:
            return None
    return None


def _are_tables(data: bytes, place: int, end: int) -> bool:
    while place < end:
        place += 65 if data[place] < 16 else 129
    return place == end
