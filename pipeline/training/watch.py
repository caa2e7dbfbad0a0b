"""What the GPUs of this machine are doing, whoever uses them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

from ..hardware.nvml import NvmlDevice, open_nvml
from .device_sampler import DeviceSampler

__all__ = ["watch_gpus"]


def watch_gpus(
    seconds: float,
    *,
    nvml: Any = None,
    sleep: Callable[[float], None] = time.sleep,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> tuple[list[dict[str, Any]], str | None]:
    """Watch every GPU for some seconds.

    Returns:
        For each GPU {"index", "name", "memory_total_bytes", "memory_free_bytes", "util_percent", "util_reason",
        "util_source", "util_samples", "processes": [{"pid", "name", "used_bytes"}] or None}; and the reason why there
        is none, else None.
    """
    opened = open_nvml(nvml)
    if opened.value is None:
        return [], opened.reason
    try:
        devices: list[NvmlDevice] = opened.value.devices()
        if not devices:
            return [], "the driver shows no GPU"
        samplers = [DeviceSampler(device, own_pids=frozenset, baseline_bytes=None, now_us=now_us) for device in devices]
        for sampler in samplers:
            sampler.start()
        try:
            sleep(seconds)
        finally:
            windows = [sampler.stop() for sampler in samplers]
        found = []
        for device, window in zip(devices, windows, strict=True):
            memory, processes = device.memory().value, device.processes().value
            found.append(
                {
                    "index": device.index,
                    "name": device.name().value,
                    "memory_total_bytes": None if memory is None else memory[0],
                    "memory_free_bytes": None if memory is None else memory[2],
                    "util_percent": window.util_percent,
                    "util_reason": window.util_reason,
                    "util_source": window.util_source,
                    "util_samples": list(window.util_samples),
                    "processes": None
                    if processes is None
                    else [{"pid": p.pid, "name": _process_name(p.pid), "used_bytes": p.used_bytes} for p in processes],
                }
            )
        return found, None
    finally:
        opened.value.close()


def _process_name(pid: int) -> str | None:
    try:
        return str(psutil.Process(pid).name())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        # In a container NVML's numbers are the host's.
        return None
