"""What torchrun says of the ranks on this machine, and one rank's share of a fact about it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from ..errors import ConfigError
from .fact import Fact

__all__ = ["cuda_index_of_rank", "local_rank", "local_world_size", "share_of_rank"]


def local_world_size(environment: Mapping[str, str] = os.environ) -> int:
    """Ranks on this machine, as torchrun sets LOCAL_WORLD_SIZE; unset stands for one.

    Raises:
        ConfigError: LOCAL_WORLD_SIZE is not a number of at least 1.
    """
    found = environment.get("LOCAL_WORLD_SIZE", "1")
    if not found.isdecimal() or int(found) < 1:
        raise ConfigError(
            "the environment variable LOCAL_WORLD_SIZE must be a whole number of at least 1, or be unset",
            got=f"LOCAL_WORLD_SIZE={found}",
            remedy="Set it to the ranks on this machine as torchrun does, or give num_workers=.",
        )
    return int(found)


def local_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """This rank's number on this machine, as torchrun sets LOCAL_RANK; None where it is unset.

    Raises:
        ConfigError: LOCAL_RANK is not a whole number from 0.
    """
    found = environment.get("LOCAL_RANK")
    if found is None:
        return None
    if not found.isdecimal():
        raise ConfigError(
            "the environment variable LOCAL_RANK must be a whole number from 0, or be unset",
            got=f"LOCAL_RANK={found}",
            remedy="Set it to this rank's number on its machine as torchrun does, or name the device, as cuda:0.",
        )
    return int(found)


def share_of_rank(fact: Fact, ranks: int, *, least: int = 0) -> Fact:
    """A rank's equal share of what all ranks of the machine use, rounded down; what was not measured stays None.

    Args:
        fact: a whole number of something, such as cores or bytes.
        ranks: on this machine.
        least: of the share.
    """
    if ranks == 1 or fact.value is None:
        return fact
    note = f"one of {ranks} local ranks' share of {fact.value}"
    return replace(fact, value=max(least, fact.value // ranks), note=f"{fact.note}, {note}" if fact.note else note)


def cuda_index_of_rank(rank: int | None, *, devices: int, current: int) -> int:
    """The number of the CUDA device that "cuda" without one means to a rank.

    A program that chose a current device other than the first means that one. Otherwise a rank's device is that of its
    number, as scripts for torchrun have it: ranks that forgot `torch.cuda.set_device` would all use the first. Where
    the launcher shows each rank a single device, or fewer than there are ranks, it is the current one.

    Args:
        rank: on this machine; None outside of torchrun.
        devices: how many this process sees.
        current: torch's current device.
    """
    return rank if rank is not None and current == 0 and rank < devices else current
