"""Which cores are near a GPU: those of its NUMA node, from NVML or from the PCI device's entry in sysfs."""

from __future__ import annotations

from pathlib import Path

from .nvml import Nvml, NvmlDevice, Reading

__all__ = ["cpu_list", "gpus_of_node", "near_cores"]


def near_cores(device: NvmlDevice | None, pci_bus_id: str | None, root: Path = Path("/")) -> tuple[Reading, str]:
    """The numbers of the cores near a GPU, and where they were read.

    Args:
        device: its NVML device; None where there is none.
        pci_bus_id: its PCI address as NVML writes it ("00000000:65:00.0"), for sysfs where NVML doesn't tell.
        root: where /sys is looked for.

    Returns:
        A reading of a frozenset of numbers, None with the reason where neither tells; and the source in words.
    """
    reasons = []
    if device is not None:
        found = device.near_cores()
        if found.value:
            return found, "NVML"
        reasons.append(found.reason or "NVML names no core")
    if pci_bus_id is not None:
        found, source = _from_sysfs(pci_bus_id, root)
        if found.value:
            return found, source
        reasons.append(found.reason or "")
    return Reading(None, "; ".join(reasons) or "neither its NVML device nor its PCI address is known"), ""


def gpus_of_node(nvml: Nvml, cores: frozenset[int]) -> int:
    """How many of the machine's GPUs are near these very cores, at least 1."""
    return max(1, sum(device.near_cores().value == cores for device in nvml.devices()))


def _from_sysfs(pci_bus_id: str, root: Path) -> tuple[Reading, str]:
    # NVML writes the domain with eight digits, the kernel with four, in small letters.
    domain, _, rest = pci_bus_id.partition(":")
    folder = root / "sys/bus/pci/devices" / f"{int(domain, 16):04x}:{rest.lower()}"
    source = f"/{folder.relative_to(root)}/numa_node"
    try:
        node = int((folder / "numa_node").read_text())
        if node < 0:
            return Reading(None, f"{source}: the device has no NUMA node"), source
        return Reading(cpu_list((root / f"sys/devices/system/node/node{node}/cpulist").read_text())), source
    except (OSError, ValueError) as error:
        return Reading(None, f"{source}: {error}"), source


def cpu_list(text: str) -> frozenset[int]:
    """The numbers in the kernel's form of a list of cores, as "0-3,8,10-11".

    Raises:
        ValueError: it is none.
    """
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)
