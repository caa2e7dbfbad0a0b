"""Versions of the software that speed depends on."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from ..version import __version__
from .nvml import open_nvml

__all__ = ["MATTERING", "versions"]

_LIBRARIES = (
    "torch",
    "torchvision",
    "torchdata",
    "numpy",
    "pillow",
    "lmdb",
    "webdataset",
    "nvidia-ml-py",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
)

MATTERING = ("wellfed", "torch", "torchvision", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "NVIDIA driver")
"""Where one of these changes, measured speeds may have changed with it."""


def versions(*, nvml: Any = None) -> dict[str, str]:
    """Versions by name; a library that is not installed, and a driver that is not there, are left out.

    Args:
        nvml: pynvml or a fake; None imports it.
    """
    found = {"wellfed": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    opened = open_nvml(nvml)
    if opened.value is not None:
        try:
            driver = opened.value.driver_version()
        finally:
            opened.value.close()
        if driver.value is not None:
            found["NVIDIA driver"] = driver.value
    return found
