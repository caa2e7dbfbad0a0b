"""Versions of the libraries that a result depends on."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib import metadata


def versions_of(libraries: Iterable[str]) -> dict[str, str]:
    """Of Python and of these distributions; those that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in libraries:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
