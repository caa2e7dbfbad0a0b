"""Which backends can run on a device here: what the tuner may choose from."""

from __future__ import annotations

import torch

from ..config import BackendName
from ..errors import MissingDependencyError
from .dali_library import require_dali
from .nvjpeg import has_nvjpeg

__all__ = ["usable_backends"]


def usable_backends(device: str) -> tuple[BackendName, ...]:
    """Threads and processes on any device; on CUDA also those whose library is there and fits.

    DALI on the CPU is left to those who ask for it: the CPU path does the same work there.
    """
    names: list[BackendName] = ["threads", "processes"]
    if torch.device(device).type != "cuda":
        return tuple(names)
    if _dali_fits():
        names.append("dali")
    if has_nvjpeg():
        names.append("nvjpeg")
    if len(names) > 2:
        names.append("hybrid")
    return tuple(names)


def _dali_fits() -> bool:
    try:
        require_dali("cuda")
    except MissingDependencyError:
        # Nobody asked for it here; `wellfed doctor` says why it is not usable.
        return False
    return True
