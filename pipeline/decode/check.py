"""Decide whether an image can be stored, to the depth the user asks for."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..errors import SampleRejectedError
from .extension import native as _native
from .header import ImageHeader, read_header
from .reference import decode_rgb

__all__ = ["CheckLevel", "check_image"]

CheckLevel = Literal["header", "decode"]

MAX_SCANS = 500
"""A JPEG of more scans is made to waste time: libjpeg-turbo's own advice for untrusted input."""

_BARE_MARKERS = (0x01, *range(0xD0, 0xD9))
_SOS, _EOI = 0xDA, 0xD9


def check_image(data: bytes, level: CheckLevel) -> ImageHeader:
    """Check an image and return what its header says.

    "header" reads no pixels. "decode" decodes the whole first frame, so truncated and corrupt files are found here
    and not in training, where a crop may miss the damage: libjpeg's errors and a JPEG that ends early.

    JPEGs go through the C extension where it is built, which adds the note "decoder_warnings" where libjpeg warned
    of damage that it decoded around. What it refuses is decided by Pillow's decoder, as everything is without it, so
    that both give the same verdicts with the same words, but for what two versions of libjpeg decide differently.

    Raises:
        SampleRejectedError: with the reason.
    """
    header = read_header(data)
    if level == "header":
        return header
    is_jpeg = header.format in ("JPEG", "MPO")
    if is_jpeg and _native is not None:
        status, warnings, _ = _native.check(data)
        if status == 0:
            return dataclasses.replace(header, notes=(*header.notes, "decoder_warnings")) if warnings else header
    if is_jpeg and data.count(bytes((0xFF, _SOS))) > MAX_SCANS and count_scans(data) > MAX_SCANS:
        raise SampleRejectedError(f"a JPEG must have at most {MAX_SCANS} scans", got="more")
    decode_rgb(data)
    return header


def count_scans(data: bytes) -> int:
    """Scans of a JPEG's first picture; markers inside metadata do not count."""
    scans, position = 0, 2
    while 0 <= position < len(data) - 3:
        if data[position] != 0xFF or data[position + 1] in (0x00, 0xFF, *_BARE_MARKERS):
            # Entropy-coded data, a restart or padding.
            position = data.find(b"\xff", position + 1)
        elif data[position + 1] == _EOI:
            break
        else:
            scans += data[position + 1] == _SOS
            position += 2 + int.from_bytes(data[position + 2 : position + 4])
    return scans
