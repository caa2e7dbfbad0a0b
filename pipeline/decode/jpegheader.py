"""The header of an ordinary JPEG, read without Pillow, which takes longer; anything unusual is left to Pillow.

Here, and once more in native/jpegheader.c, which is quicker still. test_jpegheader.py holds both to Pillow: they answer
only where Pillow says the same.
"""

from __future__ import annotations

import struct

from .extension import native as _native
from .metadata import is_whole_profile

__all__ = ["plain_jpeg", "plain_jpeg_in_python"]

_START = b"\xff\xd8\xff"
_APP0, _APP2, _APP13, _APP14 = 0xE0, 0xE2, 0xED, 0xEE
_TABLES, _SCAN = 0xDB, 0xDA
_FRAMES = frozenset((0xC0, 0xC1, 0xC2))
_SKIPPED = frozenset((0xC4, 0xDD, 0xFE))
"""Huffman tables, restart interval, comment: Pillow reads over them."""

_WHOLE_PROFILE = b"ICC_PROFILE\0\1\1"
"""A profile in one piece; Pillow joins several."""

_PHOTOSHOP = b"Photoshop 3.0\0"
_RESOURCE = b"8BIM"

_MODES = {1: "L", 3: "RGB"}
_MOST_PIXELS = 50_000_000
"""Below the size at which Pillow warns."""


def plain_jpeg(data: bytes) -> tuple[int, int, str] | None:
    """Width, height and Pillow's mode of a baseline, extended or progressive JPEG of 8 bits, gray or of three colours.

    None for whatever else, sound or not: with EXIF, XMP, a profile in pieces or a broken one, several pictures or
    broken resources of Photoshop's, with four colours, with padding between segments, cut short, or larger than usual.
    """
    return plain_jpeg_in_python(data) if _native is None else _native.plain_header(data)


def plain_jpeg_in_python(data: bytes) -> tuple[int, int, str] | None:
    """`plain_jpeg` where the C extension is not built."""
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
        elif marker == _APP13:
            if not _are_resources(data[start:place]):
                return None
        elif marker != _APP14 or data[start : start + 5] != b"Adobe" or length < 14:
            return None
    return None


def _are_tables(data: bytes, place: int, end: int) -> bool:
    while place < end:
        place += 65 if data[place] < 16 else 129
    return place == end


def _are_resources(segment: bytes) -> bool:
    """Photoshop's image resources, each within the segment."""
    place = len(_PHOTOSHOP)
    if not segment.startswith(_PHOTOSHOP):
        return False
    while segment.startswith(_RESOURCE, place):
        place += 6  # its mark and its number
        if place >= len(segment):
            return False
        place += 1 + segment[place]  # its name
        place += place & 1
        if place + 4 > len(segment):
            return False
        place += 4 + struct.unpack_from(">I", segment, place)[0]
        if place > len(segment):
            return False
        place += place & 1
    return True
