"""Files that are complete or not there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from .errors import ResourceError

__all__ = ["write_atomically"]

_KEPT = 40


def write_atomically(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name beside `path`, sync it, then rename it over `path`.

    Raises:
        ResourceError: the folder cannot be written.
    """
    # Cut, so that a name that is as long as names may be has one beside it; another thread's has another number.
    temporary = path.with_name(f".{path.name[:_KEPT]}.{os.getpid()}-{threading.get_native_id()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"the folder {str(path.parent)!r} must be writable", got=str(error), remedy="Choose another place."
        ) from error
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ResourceError(
            f"{str(path)!r} must be writable", got=str(error), remedy="Free space, or choose another place."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
