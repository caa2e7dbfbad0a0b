"""Who else uses the device: their work slows a step down and their memory cannot be had."""

from __future__ import annotations

from dataclasses import dataclass

from ..hardware.nvml import GpuProcess, Reading

__all__ = ["Sharers", "find_sharers"]

UNLISTED_BYTES = 2 << 30
"""More than this in use without a process that NVML lists is somebody's whom a container hides, not the driver's own:
an idle H200 has 0.6 GiB in use where NVML does not tell apart what the driver reserves."""


@dataclass(frozen=True, kw_only=True)
class Sharers:
    """Other programs on the device.

    Attributes:
        processes: that compute there, beside this one; None where that is not known.
        unlisted_bytes: in use by nobody whom NVML lists; 0 where it lists everybody, or where that cannot be told.
        reason: why `processes` is None; None where it is known.
    """

    processes: tuple[GpuProcess, ...] | None
    unlisted_bytes: int = 0
    reason: str | None = None


def find_sharers(processes: Reading, memory: Reading, *, own_pids: frozenset[int], own_bytes: int | None) -> Sharers:
    """Who is there, from what NVML said.

    Args:
        processes, memory: of `NvmlDevice`.
        own_pids: this process and its children, as this process knows them.
        own_bytes: device memory this process may hold; 0 before it has used the device, None where it may be any.
    """
    if processes.value is None:
        return Sharers(processes=None, reason=processes.reason)
    others = [p for p in processes.value if p.pid not in own_pids and p.computes]
    listed = len(others) < sum(p.computes for p in processes.value)
    if own_bytes != 0 and not listed and len(others) == 1:
        # In a container NVML numbers processes as the host does: one alone that uses the device is this one.
        others = []
        listed = True
    unlisted = 0
    if not processes.value and memory.value is not None and own_bytes is not None:
        unlisted = max(0, memory.value[1] - own_bytes)
    return Sharers(processes=tuple(others), unlisted_bytes=unlisted if unlisted > UNLISTED_BYTES else 0)
