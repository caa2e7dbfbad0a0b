"""What this machine really has; every fact with its source, and None with the reason where it was not measured."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from .cpu import cpu_model, usable_cores
from .fact import Fact
from .gpus import gpu_facts, gpu_models
from .memory import (
    available_memory,
    locked_memory_limit,
    memory_total,
    open_file_limit,
    open_files,
    shared_memory,
)
from .nvml import NvmlDevice, open_nvml
from .versions import versions

__all__ = [
    "Fact",
    "NvmlDevice",
    "available_memory",
    "cpu_model",
    "fingerprint",
    "gpu_facts",
    "locked_memory_limit",
    "memory_total",
    "open_file_limit",
    "open_files",
    "open_nvml",
    "preflight",
    "shared_memory",
    "usable_cores",
    "versions",
]


def preflight(root: Path = Path("/"), *, nvml: Any = None) -> list[Fact]:
    """All facts that bound what can be tuned here.

    Args:
        root: where /proc and /sys are looked for.
        nvml: pynvml or a fake; None imports it.
    """
    return [
        cpu_model(root),
        usable_cores(root),
        *memory_total(root),
        available_memory(root),
        *shared_memory(root / "dev/shm"),
        open_file_limit(),
        open_files(root),
        locked_memory_limit(),
        *gpu_facts(nvml),
    ]


def fingerprint(root: Path = Path("/"), *, nvml: Any = None) -> dict[str, Any]:
    """Stable facts that a tuned configuration depends on; no host name, nothing that changes from hour to hour.

    Memory is the control group's limit where there is one: MemTotal grows with use on some virtual machines.
    """
    total, limit = memory_total(root)
    memory = limit.value if limit.value is not None else total.value
    return {
        "machine": platform.machine(),
        "cpu_model": cpu_model(root).value,
        "usable_cores": usable_cores(root).value,
        "memory_gib": None if memory is None else round(memory / 2**30),
        "gpus": gpu_models(nvml),
    }
