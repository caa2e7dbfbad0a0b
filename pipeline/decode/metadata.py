"""Whether metadata that no pixel depends on is whole: colour profiles and XMP."""

from __future__ import annotations

from typing import Any
from xml.parsers import expat

__all__ = ["is_whole_profile", "is_whole_xmp"]

_PROFILE_HEADER = 128


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
