"""How many cores this process may really use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from .cgroup import cpu_quota
from .fact import Fact

__all__ = ["cpu_model", "usable_cores"]


def usable_cores(root: Path = Path("/"), *, affinity: int | None = None, online: int | None = None) -> Fact:
    """The least of CPU affinity, control-group quota and the machine's cores, at least 1, rounded down.

    Args:
        root: where /proc and /sys are looked for.
        affinity, online: for tests; None asks the system.
    """
    online = online if online is not None else (os.cpu_count() or 1)
    if affinity is None:
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else online
    limits: list[tuple[float, str]] = [(float(online), "os.cpu_count"), (float(affinity), "sched_getaffinity")]
    quota = cpu_quota(root)
    if quota is not None:
        limits.append(quota)
    cores, source = min(limits, key=lambda limit: limit[0])
    whole = max(1, math.floor(cores + 1e-9))
    note = f"{online} on the machine" if whole != online else ""
    if cores != whole:
        note += f"{', ' if note else ''}the quota is {cores:g}"
    return Fact("usable cores", whole, "cores", source, note)


def cpu_model(root: Path = Path("/")) -> Fact:
    """The processor's name."""
    source = "/proc/cpuinfo"
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError as error:
        return Fact("processor", None, "", source, f"not readable: {error.strerror}")
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Hardware", "cpu model") and value.strip():
            return Fact("processor", value.strip(), "", source)
    return Fact("processor", None, "", source, "the file names no model")
