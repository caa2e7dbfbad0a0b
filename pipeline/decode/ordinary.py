"""Which JPEGs every decoder turns into the same picture; all else is for the CPU path, which has the last word."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .extension import native

__all__ = ["is_ordinary_in_python", "ordinary_jpegs"]

_FRAMES = frozenset((0xC0, 0xC1, 0xC2))
"""Baseline, extended and progressive Huffman. Some decoders refuse arithmetic, lossless and hierarchical ones."""

_OTHER_FRAMES = frozenset((0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF))
_BARE = frozenset((0x01, *range(0xD0, 0xD9)))
_RGB_IDS = b"RGB"
_ONE_BY_ONE = 0x11
"""Sampling factors. Those of a lone layer mean nothing (ITU T.81, A.2.2), yet nvJPEG goes by them: a wrong picture."""


def ordinary_jpegs(encoded: Sequence[bytes | memoryview], widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Of each of n samples `is_ordinary_in_python`; bool, shape (n,). In C where that is built.

    Args:
        widths, heights: as encoded, pixels; int64, shape (n,).
    """
    if native is None:
        samples = zip(encoded, widths.tolist(), heights.tolist(), strict=True)
        return np.array([is_ordinary_in_python(bytes(data), *size) for data, *size in samples], dtype=bool)
    found = np.zeros(len(encoded), dtype=np.uint8)
    native.ordinary(encoded, *(np.ascontiguousarray(sides, dtype=np.int64) for sides in (widths, heights)), found)
    return found.view(bool)


def is_ordinary_in_python(data: bytes, width: int, height: int) -> bool:
    """Whether this is a whole 8-bit JPEG, gray or YCbCr, of this size as encoded.

    Reads the markers before the first scan, some microseconds. Whole means that an end marker follows the scan: DALI
    and nvJPEG fill what is missing from a file cut short without an error. Three layers stored as RGB are left to
    libjpeg's rules (Adobe marker with transform 0, or layers named R, G, B).
    """
    if data[:2] != b"\xff\xd8":
        return False
    layers, stored_as_rgb = 0, False
    position, end = 2, len(data) - 4
    while position <= end:
        if data[position] != 0xFF:
            return False
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        if marker in _BARE:
            position += 2
            continue
        length = (data[position + 2] << 8) | data[position + 3]
        start, position = position + 4, position + 2 + length
        if marker == 0xDA:
            return layers > 0 and not (layers == 3 and stored_as_rgb) and data.rfind(b"\xff\xd9", position) >= 0
        if marker in _FRAMES:
            frame = data[start : start + 17]
            if layers or len(frame) < 9 or frame[0] != 8 or frame[5] not in (1, 3):
                return False
            if frame[5] == 1 and frame[7] != _ONE_BY_ONE:
                return False
            if ((frame[3] << 8) | frame[4], (frame[1] << 8) | frame[2]) != (width, height):
                return False
            layers = frame[5]
            stored_as_rgb = stored_as_rgb or frame[6:15:3] == _RGB_IDS
        elif marker in _OTHER_FRAMES or length < 2:
            return False
        elif marker == 0xEE and data[start : start + 5] == b"Adobe" and length >= 14:
            stored_as_rgb = data[start + 11] == 0
    return False
