"""Which rank a loader is of: given, or found in torch.distributed or in what torchrun sets."""

from __future__ import annotations

import os

import torch.distributed

from ..errors import ConfigError, UsageError
from ..hardware.ranks import cuda_index_of_rank, local_rank, local_world_size

__all__ = ["check_ranks", "cores_of_rank", "device_of_rank", "found_ranks", "of_ranks", "rank_bytes"]


def found_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size): those given, else those of torch.distributed, else of RANK and WORLD_SIZE, else one rank.

    Raises:
        UsageError: one of them is given.
        ConfigError: RANK and WORLD_SIZE make no sense.
    """
    if (rank is None) != (world_size is None):
        raise UsageError(
            "rank and world_size go together",
            got=f"rank={rank!r}, world_size={world_size!r}",
            remedy="Give both, or neither to take them from torch.distributed or the environment.",
        )
    if rank is not None and world_size is not None:
        return rank, world_size
    now = _distributed()
    if now is not None:
        return now
    found = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    if not found:
        return 0, 1
    try:
        rank, world_size = int(found["RANK"]), int(found["WORLD_SIZE"])
        if not 0 <= rank < world_size:
            raise ValueError("no such rank")
    except (KeyError, ValueError) as error:
        raise ConfigError(
            "the environment variables RANK and WORLD_SIZE must both be whole numbers, with RANK from 0 to below "
            "WORLD_SIZE, or both be unset",
            got=", ".join(f"{name}={value}" for name, value in found.items()),
            remedy="Set both as torchrun does, or give rank= and world_size=; with Lightning make the loader in "
            "train_dataloader(), where the ranks are known.",
        ) from error
    return rank, world_size


def check_ranks(rank: int, world_size: int) -> None:
    """Refuse to load the wrong share in silence.

    A loader that is made before Lightning, or a script, sets up its processes believes to be alone, and every rank
    would train on all samples (Lightning #19409).

    Raises:
        UsageError: torch.distributed says other ranks by now.
    """
    now = _distributed()
    if now is not None and now != (rank, world_size):
        raise UsageError(
            f"a loader made for rank {rank} of {world_size} loads that rank's share, and torch.distributed, set up "
            f"since then, says rank {now[0]} of {now[1]}",
            remedy="Make the loader once the processes are set up (with Lightning in train_dataloader(), otherwise "
            "after init_process_group or Accelerator()), or give rank= and world_size=.",
        )


def cores_of_rank(cores: int) -> int:
    """This rank's share of the machine's usable cores, at least 1: ranks of one machine would each take all of them.

    Raises:
        ConfigError: LOCAL_WORLD_SIZE is not a number of at least 1.
    """
    return max(1, cores // local_world_size())


def device_of_rank(name: str) -> str:
    """The device that a name means to this rank: "cuda" under torchrun is the rank's own, see `cuda_index_of_rank`.

    Raises:
        ConfigError: LOCAL_RANK makes no sense.
    """
    if name != "cuda" or (rank := local_rank()) is None or not torch.cuda.is_available():
        return name
    # Asking for the current device would set CUDA up; before that it is the first.
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    return f"cuda:{cuda_index_of_rank(rank, devices=torch.cuda.device_count(), current=current)}"


def rank_bytes(free: int | None, total: int | None) -> int | None:
    """Of the bytes that are free, those that this rank's loader may count on: at most its share of all there are.

    Not a share of the free ones: other ranks may hold theirs already.
    """
    ranks = local_world_size()
    return free if free is None or total is None or ranks == 1 else min(free, total // ranks)


def of_ranks() -> str:
    """Words for an error about a rank's share; nothing for a single rank."""
    ranks = local_world_size()
    return "" if ranks == 1 else f" to one of {ranks} local ranks"


def _distributed() -> tuple[int, int] | None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None
