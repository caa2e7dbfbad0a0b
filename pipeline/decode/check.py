"""Decide whether an image can be stored, to the depth the user asks for."""

from __future__ import annotations

from typing import Literal

from .header import ImageHeader, read_header
from .reference import decode_rgb

__all__ = ["CheckLevel", "check_image"]

CheckLevel = Literal["header", "decode"]


def check_image(data: bytes, level: CheckLevel) -> ImageHeader:
    """Check an image and return what its header says.

    "header" reads no pixels. "decode" decodes the whole first frame, so truncated and corrupt files are found here
    and not in training, where a crop may miss the damage. It rejects what Pillow's decoder refuses: libjpeg's errors
    and a JPEG that ends early; other libjpeg warnings pass.

    Raises:
        SampleRejectedError: with the reason.
    """
    header = read_header(data)
    if level == "decode":
        decode_rgb(data)
    return header
