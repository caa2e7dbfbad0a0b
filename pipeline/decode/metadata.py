"""Whether the metadata of an image is whole: EXIF, colour profile, XMP. Pillow is silent on most of the damage."""

from __future__ import annotations

import struct
from typing import Any
from xml.parsers import expat

__all__ = ["is_whole_exif", "is_whole_profile", "is_whole_xmp"]

_PROFILE_HEADER = 128
_EXIF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
"""Bytes of one value of each of TIFF's types."""


def is_whole_exif(exif: bytes) -> bool:
    """Whether an EXIF block has TIFF's header, and its first directory and that one's values lie within the block."""
    block = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    if order is None or len(block) < 8:
        return False
    (place,) = struct.unpack_from(f"{order}I", block, 4)
    if not 8 <= place <= len(block) - 2:
        return False
    (count,) = struct.unpack_from(f"{order}H", block, place)
    if place + 2 + 12 * count > len(block):
        return False
    for entry in range(count):
        _, kind, values, value_place = struct.unpack_from(f"{order}HHII", block, place + 2 + 12 * entry)
        size = _EXIF_SIZES.get(kind, 0) * values
        if size > 4 and value_place + size > len(block):
            return False
    return True


def is_whole_profile(profile: bytes | None) -> bool:
    """Whether an ICC profile has its signature and as many bytes as it says; None is what Pillow makes of pieces."""
    return (
        profile is not None
        and len(profile) > _PROFILE_HEADER
        and profile[36:40] == b"acsp"
        and _PROFILE_HEADER < int.from_bytes(profile[:4], "big") <= len(profile)
    )


def is_whole_xmp(packet: bytes | str) -> bool:
    """Whether an XMP packet is well-formed XML, without a document type, which could make a parser work for ever."""
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _refuse
    text = packet.encode() if isinstance(packet, str) else packet
    try:
        parser.Parse(text.strip(b"\0 \t\r\n"), True)
    except (expat.ExpatError, _DocumentTypeError):
        return False
    return True


class _DocumentTypeError(Exception):
    """Raised out of the parser."""


def _refuse(*declaration: Any) -> None:
    raise _DocumentTypeError
