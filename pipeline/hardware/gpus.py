"""Facts about the GPUs, from NVML."""

from __future__ import annotations

import os
from typing import Any

from .fact import Fact
from .nvml import NvmlDevice, open_nvml

__all__ = ["gpu_facts", "gpu_models"]

SOURCE = "NVML"


def gpu_facts(module: Any = None) -> list[Fact]:
    """For each GPU: name, memory total and free, GPU-Util now, other processes, MIG.

    Without NVML it is one fact, "gpus", of value None with the reason.
    """
    opened = open_nvml(module)
    if opened.value is None:
        return [Fact("gpus", None, "", SOURCE, opened.reason or "")]
    try:
        devices = opened.value.devices()
        facts = [Fact("gpus", len(devices), "", SOURCE, "" if devices else "the driver shows none")]
        for device in devices:
            facts += _device_facts(device)
        return facts
    finally:
        opened.value.close()


def _device_facts(device: NvmlDevice) -> list[Fact]:
    prefix = f"gpu {device.index}"
    name, memory, util, processes = device.name(), device.memory(), device.util_rate(), device.processes()
    total, _, free = memory.value if memory.value is not None else (None, None, None)
    others = None
    if processes.value is not None:
        others = [{"pid": p.pid, "used_bytes": p.used_bytes} for p in processes.value if p.pid != os.getpid()]
    return [
        Fact(f"{prefix} name", name.value, "", SOURCE, name.reason or ""),
        Fact(f"{prefix} memory", total, "bytes", SOURCE, memory.reason or ""),
        Fact(f"{prefix} memory free", free, "bytes", SOURCE, memory.reason or ""),
        Fact(f"{prefix} utilization", util.value, "percent", SOURCE, util.reason or ""),
        Fact(f"{prefix} other processes", others, "", SOURCE, processes.reason or ""),
        Fact(f"{prefix} MIG", "on" if device.mig() else "off", "", SOURCE),
    ]


def gpu_models(module: Any = None) -> list[dict[str, Any]]:
    """[{"name", "memory_gib"}] of each GPU; empty without NVML."""
    opened = open_nvml(module)
    if opened.value is None:
        return []
    try:
        models = []
        for device in opened.value.devices():
            memory = device.memory().value
            models.append(
                {"name": device.name().value, "memory_gib": None if memory is None else round(memory[0] / 2**30)}
            )
        return models
    finally:
        opened.value.close()
