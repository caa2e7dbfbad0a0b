"""Members of an archive, one after another, whatever kind of archive: what a walker yields and what names mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wellfed.pipeline.errors import UsageError

NOT_REGULAR = "a member must be a regular file"
OUTSIDE = "a member's path must not be absolute or lead out of the archive"
NAMELESS = "a member must have a name"
FULL_FOLDER = "an archive's entry for a folder must hold no data"

Capture = Callable[[bytes], int]
"""Member name to the largest size up to which a walker reads the member's data on its way; 0 for none."""


class Member(NamedTuple):
    """One entry of an archive.

    Attributes:
        name: path as stored, any bytes.
        offset: where it is found: first byte of its data in a tar, of its local header in a zip.
        size: bytes of its data.
        folder: an entry for a folder, not for a file.
        reason: why it cannot be part of a sample; None where it can.
        data: its bytes where `Capture` asked for them.
        packed, method, crc: compressed bytes, compression and CRC-32 in a zip.
    """

    name: bytes
    offset: int
    size: int
    folder: bool = False
    reason: str | None = None
    data: bytes | None = None
    packed: int = 0
    method: int = 0
    crc: int = 0


class ArchiveCutError(Exception):
    """The archive's bytes end, or stop making sense, before its end; caught by the walkers' callers."""


def shown(name: bytes) -> str:
    """A name for messages, at most 200 characters."""
    text = name.decode("utf-8", "backslashreplace")
    return text if len(text) <= 200 else text[:200] + "..."


def cut_error(where: str, last: bytes | None, what: str) -> UsageError:
    """The error of an archive that is not whole, naming the member before the damage."""
    after = f"after the member {shown(last)!r}" if last is not None else "before its first whole member"
    return UsageError(
        f"the archive {where!r} must be whole",
        got=f"{what}, {after}",
        remedy="Copy it again; --prefix takes the whole members before that place.",
    )


def split_name(name: bytes) -> tuple[bytes, bytes]:
    """Key and extension: the path up to the first dot after the last slash, and the lower-cased rest.

    The extension is empty where there is no dot.
    """
    start = name.rfind(b"/") + 1
    dot = name.find(b".", start)
    return (name, b"") if dot < 0 else (name[:dot], name[dot + 1 :].lower())


def is_metadata(name: bytes) -> bool:
    """`__x__` at the root, which describes a shard and is no sample."""
    name = name.removeprefix(b"./")
    return b"/" not in name and len(name) > 4 and name.startswith(b"__") and name.endswith(b"__")


def unsafe_reason(name: bytes) -> str | None:
    """Why a path must not be followed; None where it may be."""
    if not name:
        return NAMELESS
    return OUTSIDE if name.startswith(b"/") or b".." in name.split(b"/") else None


def skip_kind(name: bytes) -> str | None:
    """What a hidden or system file is counted as; None for any other."""
    for part in name.split(b"/"):
        lower = part.lower()
        if lower.startswith(b"._"):
            return "apple_double"
        if lower.startswith(b".") and lower not in (b".", b".."):
            return "hidden"
        if lower == b"thumbs.db":
            return "thumbs_db"
        if lower == b"desktop.ini":
            return "desktop_ini"
        if lower == b"__macosx":
            return "macosx"
    return None
