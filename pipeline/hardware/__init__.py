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
from .ranks import local_rank, local_world_size, share_of_rank
from .versions import versions

__all__ = [
    "Fact",
    "NvmlDevice",
    "available_memory",
    "cpu_model",
    "fingerprint",
    "gpu_facts",
    "local_rank",
    "local_world_size",
    "locked_memory_limit",
    "memory_total",
    "open_file_limit",
    "open_files",
    "open_nvml",
    "preflight",
    "share_of_rank",
    "shared_memory",
    "usable_cores",
    "versions",
]


def preflight(root: Path = Path("/"), *, nvml: Any = None, ranks: int | None = None) -> list[Fact]:
    """All facts that bound what can be tuned here.

    Of cores and of the memory that is free now they hold one rank's share, since all ranks of the machine load alike.

    Args:
        root: where /proc and /sys are looked for.
        nvml: pynvml or a fake; None imports it.
        ranks: on this machine; None takes LOCAL_WORLD_SIZE.

    Raises:
        ConfigError: LOCAL_WORLD_SIZE is no number of ranks.
    """
    ranks = local_world_size() if ranks is None else ranks
    shared, shared_free = shared_memory(root / "dev/shm")
    return [
        cpu_model(root),
        share_of_rank(usable_cores(root), ranks, least=1),
        *memory_total(root),
        share_of_rank(available_memory(root), ranks),
        shared,
        share_of_rank(shared_free, ranks),
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
