"""Facts about the GPUs, from NVML."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .fact import Fact
from .nvml import NvmlDevice, open_nvml

__all__ = ["gpu_facts", "gpu_models", "process_name"]

SOURCE = "NVML"

_FIRST_PID_NAMESPACE = "pid:[4026531836]"
# PROC_PID_INIT_INO of Linux (include/linux/proc_ns.h): the machine's own numbers, which are NVML's.


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
        others = [
            {"pid": p.pid, "name": process_name(p.pid), "used_bytes": p.used_bytes}
            for p in processes.value
            if p.pid != os.getpid()
        ]
    return [
        Fact(f"{prefix} name", name.value, "", SOURCE, name.reason or ""),
        Fact(f"{prefix} memory", total, "bytes", SOURCE, memory.reason or ""),
        Fact(f"{prefix} memory free", free, "bytes", SOURCE, memory.reason or ""),
        Fact(f"{prefix} utilization", util.value, "percent", SOURCE, util.reason or ""),
        Fact(f"{prefix} other processes", others, "", SOURCE, processes.reason or ""),
        Fact(
            f"{prefix} MIG",
            "on" if device.mig() else "off",
            "",
            SOURCE,
            "of an instance NVML reports memory, and no utilization" if device.mig() else "",
        ),
    ]


def process_name(pid: int, root: Path = Path("/")) -> str | None:
    """The name of a process by NVML's number of it; None in a container, where another process has that number."""
    try:
        if os.readlink(root / "proc/self/ns/pid") != _FIRST_PID_NAMESPACE:
            return None
        return (root / f"proc/{pid}/comm").read_text(errors="replace").strip() or None
    except OSError:
        return None


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
