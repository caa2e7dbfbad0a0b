"""Decide whether an image can be stored, to the depth the user asks for."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..errors import SampleRejectedError
from .extension import native as _native
from .header import ImageHeader, read_header
from .jpegmarkers import count_scans
from .reference import decode_rgb

__all__ = ["CheckLevel", "check_image"]

CheckLevel = Literal["header", "decode"]

MAX_SCANS = 500
"""A JPEG of more scans is made to waste time: libjpeg-turbo's own advice for untrusted input."""


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
    if is_jpeg:
        refuse_many_scans(data)
    decode_rgb(data)
    return header


def refuse_many_scans(data: bytes) -> None:
    """Raises SampleRejectedError for a JPEG that would take very long to decode for its size."""
    if (scans := count_scans(data)) > MAX_SCANS:
        raise SampleRejectedError(f"a JPEG must have at most {MAX_SCANS} scans", got=str(scans))
