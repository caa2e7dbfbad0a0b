"""Limits of the control group this process is in, version 1 and version 2."""

from __future__ import annotations

from pathlib import Path

__all__ = ["UNLIMITED_BYTES", "cpu_quota", "memory_limit", "memory_usage"]

UNLIMITED_BYTES = 1 << 60
# Version 1 writes "no limit" as the largest multiple of the page size, about 2**63.


def _own_groups(root: Path) -> dict[str, str]:
    """Controller -> path of the own group; version 2 has the controller ""."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    groups: dict[str, str] = {}
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                groups[controller] = parts[2]
    return groups


def _folders(root: Path, controller: str) -> list[Path]:
    """The own group and its parents of this controller, innermost first; a limit of any of them binds.

    In a container the own group is mounted as the root, and the path in /proc/self/cgroup may name one that is not
    visible; such folders are left out by whoever reads them, and the root remains.
    """
    base = root / "sys/fs/cgroup"
    if controller:
        base = base / controller
    elif not (base / "cgroup.controllers").exists() and (base / "unified").exists():
        base = base / "unified"
    path = _own_groups(root).get(controller, "/").strip("/")
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def cpu_quota(root: Path = Path("/")) -> tuple[float, str] | None:
    """The tightest CPU quota in cores, and the file it stands in; None where there is none."""
    found: list[tuple[float, str]] = []
    for folder in _folders(root, ""):
        text = _read(folder / "cpu.max")
        if text:
            quota, _, period = text.partition(" ")
            if quota != "max":
                found.append((int(quota) / int(period or 100_000), _shown(folder / "cpu.max", root)))
    for controller in ("cpu", "cpu,cpuacct"):
        for folder in _folders(root, controller):
            quota_text, period_text = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
            if quota_text and period_text and int(quota_text) > 0 and int(period_text) > 0:
                found.append((int(quota_text) / int(period_text), _shown(folder / "cpu.cfs_quota_us", root)))
    return min(found) if found else None


def memory_limit(root: Path = Path("/")) -> tuple[int, str] | None:
    """The tightest memory limit in bytes, and the file it stands in; None where there is none."""
    found: list[tuple[int, str]] = []
    for controller, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        for folder in _folders(root, controller):
            text = _read(folder / name)
            if text and text != "max" and 0 < int(text) < UNLIMITED_BYTES:
                found.append((int(text), _shown(folder / name, root)))
    return min(found) if found else None


def memory_usage(limit_source: str, root: Path = Path("/")) -> int | None:
    """Bytes the group whose limit `memory_limit` found cannot give back: usage less inactive page cache.

    The rule is that of Kubernetes' "working set".
    """
    limit = root / limit_source.lstrip("/")
    second = limit.name == "memory.max"
    text = _read(limit.with_name("memory.current" if second else "memory.usage_in_bytes"))
    if not text:
        return None
    cache = 0
    for line in (_read(limit.with_name("memory.stat")) or "").splitlines():
        key, _, value = line.partition(" ")
        if key == ("inactive_file" if second else "total_inactive_file"):
            cache = int(value)
    return max(0, int(text) - cache)


def _shown(path: Path, root: Path) -> str:
    return "/" + str(path.relative_to(root))
