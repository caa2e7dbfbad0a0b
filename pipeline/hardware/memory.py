"""Host memory, shared memory, open files and locked memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cgroup import memory_limit, memory_usage
from .fact import Fact

__all__ = [
    "available_memory",
    "locked_memory_limit",
    "memory_total",
    "open_file_limit",
    "open_files",
    "shared_memory",
]


def _meminfo(root: Path) -> dict[str, int]:
    values: dict[str, int] = {}
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        key, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            values[key] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return values


def memory_total(root: Path = Path("/")) -> list[Fact]:
    """The machine's memory and the control group's limit.

    They are two facts: on some virtual machines MemTotal starts small and grows with use, so the limit can be larger
    and still be what holds.
    """
    total = _meminfo(root).get("MemTotal")
    limit = memory_limit(root)
    return [
        Fact("memory", total, "bytes", "/proc/meminfo MemTotal", "" if total else "not readable"),
        Fact(
            "memory limit",
            limit[0] if limit else None,
            "bytes",
            limit[1] if limit else "/sys/fs/cgroup",
            "" if limit else "no limit is set",
        ),
    ]


def available_memory(root: Path = Path("/")) -> Fact:
    """Bytes that can be taken without swapping: the lesser of MemAvailable and what the group's limit leaves."""
    available = _meminfo(root).get("MemAvailable")
    limit = memory_limit(root)
    name = "memory available"
    if limit is not None:
        used = memory_usage(limit[1], root)
        left = None if used is None else max(0, limit[0] - used)
        if left is not None and (available is None or left < available):
            return Fact(name, left, "bytes", limit[1], "the limit less what the group uses and cannot drop")
    return Fact(name, available, "bytes", "/proc/meminfo MemAvailable", "" if available is not None else "not readable")


def shared_memory(path: Path = Path("/dev/shm"), *, statvfs: Callable[[Path], Any] = os.statvfs) -> list[Fact]:
    """Size and free bytes of the shared-memory file system through which worker processes hand over batches."""
    source = f"statvfs {path}"
    try:
        stat = statvfs(path)
    except OSError as error:
        reason = f"not there: {error.strerror}"
        return [Fact("shared memory", None, "bytes", source, reason), Fact("shared memory free", None, "bytes", source)]
    size = stat.f_blocks * stat.f_frsize
    note = "small: give a container --shm-size=8g" if size < 1 << 30 else ""
    return [
        Fact("shared memory", size, "bytes", source, note),
        Fact("shared memory free", stat.f_bavail * stat.f_frsize, "bytes", source),
    ]


def open_file_limit(*, getrlimit: Callable[[int], tuple[int, int]] = resource.getrlimit) -> Fact:
    """How many files this process may open now (the soft limit)."""
    soft, hard = getrlimit(resource.RLIMIT_NOFILE)
    shown: dict[str, Any] = {k: None if v == resource.RLIM_INFINITY else v for k, v in (("soft", soft), ("hard", hard))}
    if shown["soft"] is None:
        return Fact("open files", None, "files", "RLIMIT_NOFILE", "no limit is set")
    note = "" if soft == shown["hard"] else f"can be raised to {shown['hard'] or 'any number'}"
    return Fact("open files", soft, "files", "RLIMIT_NOFILE", note)


def open_files(root: Path = Path("/")) -> Fact:
    """How many descriptors this process holds now; the limit counts them all."""
    name, source = "open files now", "/proc/self/fd"
    try:
        # The one that lists the folder is closed again.
        return Fact(name, len(os.listdir(root / "proc/self/fd")) - 1, "files", source)
    except OSError as error:
        return Fact(name, None, "files", source, f"not readable: {error.strerror}")


def locked_memory_limit(*, getrlimit: Callable[[int], tuple[int, int]] = resource.getrlimit) -> Fact:
    """How much memory this process may lock by mlock.

    CUDA's page-locked memory is the driver's and is not counted by it: what bounds that is host memory.
    """
    soft, _ = getrlimit(resource.RLIMIT_MEMLOCK)
    name, source = "locked memory limit", "RLIMIT_MEMLOCK"
    if soft == resource.RLIM_INFINITY:
        return Fact(name, None, "bytes", source, "no limit is set")
    return Fact(name, soft, "bytes", source, "of mlock; CUDA's pinned memory is bounded by host memory instead")
