"""What ranks of one machine share, and which device is whose."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace

import torch

from ...errors import UsageError
from ...loader.ranks import device_of_rank as loader_device
from ..driver import Device
from ..model.space import Limits

__all__ = ["check_devices", "device_identity", "device_of_rank", "joined_device", "joined_limits"]


def device_of_rank(device: str) -> str:
    """The device of this rank, where "auto" or "cuda" leaves it open, as for a loader (`loader.ranks`)."""
    return loader_device("cuda" if device == "auto" and torch.cuda.is_available() else device)


def device_identity(torch_device: str) -> str | None:
    """What tells this GPU from the others of all machines; None where it is none."""
    if not torch_device.startswith("cuda"):
        return None
    properties = torch.cuda.get_device_properties(torch_device)
    return f"{socket.gethostname()} {getattr(properties, 'uuid', torch_device)}"


def check_devices(identities: Sequence[str | None]) -> None:
    """Refuse ranks that would measure each other.

    Raises:
        UsageError: two of them have the same GPU.
    """
    for rank, identity in enumerate(identities):
        first = identities.index(identity)
        if identity is not None and first < rank:
            raise UsageError(
                "each rank needs a GPU of its own",
                got=f"ranks {first} and {rank} on the same one",
                remedy="Leave out --device, or start no more ranks on a machine than it has GPUs.",
            )


def joined_limits(limits: Sequence[Limits]) -> Limits:
    """What every rank has."""

    def least(name: str) -> int | None:
        known = [value for each in limits if (value := getattr(each, name)) is not None]
        return min(known, default=None)

    backends = tuple(name for name in limits[0].backends if all(name in each.backends for each in limits))
    return replace(
        limits[0],
        cores=min(each.cores for each in limits),
        backends=backends,
        **{name: least(name) for name in ("memory_bytes", "shm_bytes", "open_files", "host_bytes")},
    )


def joined_device(devices: Sequence[Device]) -> Device:
    """The device with the least memory; they are otherwise taken to be alike."""
    return min(devices, key=lambda device: device.memory_total_bytes or 0)
