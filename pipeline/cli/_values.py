"""Values written on the command line: sizes, names, shares and numbers of workers."""

from __future__ import annotations

import math
import re
from typing import Any

from ..errors import UsageError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_COLUMN_TYPES = ("number", "text", "json", "array", "bytes")


def parse_bytes(text: str, *, option: str) -> int:
    """Bytes from "256MB", "1GiB" or "1000".

    Raises:
        UsageError: anything else, or less than one byte.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    unit = _UNITS.get(match[2]) if match else None
    size = float(match[1]) * unit if match and unit else 0.0
    if not 1 <= size < math.inf:
        raise UsageError(
            f"{option} must be a positive size with a unit from B to TiB", got=text, remedy="Write for example 256MB."
        )
    return int(size)


def parse_shard_size(text: str, *, option: str) -> tuple[int, int | None]:
    """Bytes, and the samples where they are the size: "256MB" gives (256000000, None), "1000samples" (0, 1000).

    Raises:
        UsageError: neither, or a number without a unit.
    """
    match = re.fullmatch(r"\s*(\d+)\s*samples?\s*", text.lower())
    if match is None:
        if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text):
            # It may mean bytes or samples.
            raise UsageError(
                f"{option} must have a unit: B to TiB, or samples",
                got=text,
                remedy="Write for example 256MB or 1000samples.",
            )
        return parse_bytes(text, option=option), None
    if int(match[1]) < 1:
        raise UsageError(f"{option} must be at least 1 sample", got=text, remedy="Write for example 1000samples.")
    return 0, int(match[1])


def parse_names(text: str, *, option: str) -> tuple[str, ...]:
    """Names between commas.

    Raises:
        UsageError: one of them is empty.
    """
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f"{option} must be names between commas", got=text, remedy="Write for example cat,dog.")
    return names


def parse_column(text: str, *, option: str) -> tuple[str, Any]:
    """A field's name and type: "caption:text".

    Raises:
        UsageError: anything else.
    """
    name, _, kind = text.rpartition(":")
    if not name or kind not in _COLUMN_TYPES:
        raise UsageError(
            f"{option} must be NAME:TYPE with a type of {', '.join(_COLUMN_TYPES)}",
            got=text,
            remedy="Write for example caption:text.",
        )
    return name, kind


def parse_shares(text: str, *, option: str) -> tuple[tuple[str, float], ...]:
    """Names with shares: "train=0.9,val=0.1".

    Raises:
        UsageError: anything else.
    """
    parts = [part.partition("=") for part in text.split(",")]
    try:
        return tuple((name.strip(), float(share)) for name, _, share in parts)
    except ValueError:
        raise UsageError(
            f"{option} must be names with shares", got=text, remedy="Write for example train=0.9,val=0.1."
        ) from None


def parse_whole(text: str, *, option: str) -> int:
    """A whole number, of either sign, of at most 4,000 digits; its user knows the range.

    Raises:
        UsageError: anything else.
    """
    # Python refuses to turn longer texts into numbers.
    if not re.fullmatch(r"-?[0-9]{1,4000}", text):
        raise UsageError(f"{option} must be a whole number", got=text, remedy="Write for example 7.")
    return int(text)


def parse_workers(text: str) -> int | None:
    """A number of workers; None for "auto".

    Raises:
        UsageError: neither "auto" nor a whole number from 1 on.
    """
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError("--workers must be auto or a whole number from 1 on", got=text, remedy="Write for example 4.")
    return int(text)
