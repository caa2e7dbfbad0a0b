"""Values written on the command line: sizes and numbers of workers."""

from __future__ import annotations

import math
import re

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
