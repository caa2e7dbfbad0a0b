"""The process group that a step's collectives use: made where the program has none, and made again after a failure.

A rank that leaves a step in its middle leaves the others in a collective that never ends, and a group whose ranks have
run different collectives is of no use any more. A group that was made here is ended and made again; a group of the
user's own program is left alone.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["OwnGroup", "ProbeGroup", "as_rank_0", "group_if_launched_alone", "join_launched_group"]

GLOO_TIMEOUT_SECONDS = 130.0
"""gloo's collectives cannot be ended from outside: those that wait for a rank that is gone end by this.

Longer than the 120 s that a call of the step may take (`tune.machine.loaders.STALL_SECONDS`), so that of a rank that
stands still and one that waits for it the first is named; shorter than those and the 30 s in which an interrupted one
must end.
"""

ANSWER_SECONDS = 300.0
"""For rank 0's answer to what all ranks do next: longer than its step may take."""


def _backend_for(torch_device: str) -> str:
    """Backends of a group for a step on this device: NCCL for what lies on GPUs, gloo for what lies on the CPU."""
    return "cpu:gloo,cuda:nccl" if torch_device.startswith("cuda") else "gloo"


def _launched_alone(environment: Mapping[str, str]) -> bool:
    """Whether this environment is of one process, or of none that a launcher started."""
    return environment.get("WORLD_SIZE", "1") == "1"


@dataclass(frozen=True, kw_only=True)
class ProbeGroup:
    """Where child processes of all ranks form a group among themselves.

    Attributes:
        rank, world_size: of the parent.
        host, port: of a store that no other group uses.
        cancelled: whether another rank's child ended without a peak, so that this one waits for it in vain.
    """

    rank: int
    world_size: int
    host: str
    port: int
    cancelled: Callable[[], bool]

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The parent's environment, for its child; LOCAL_RANK and LOCAL_WORLD_SIZE stay."""
        return {
            **environment,
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
            # As torchrun's agent says it: the store is there, and rank 0 makes none.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }


def join_launched_group(torch_device: str) -> None:
    """Make the default group of a launched process that has none yet: of all ranks, or of one launched alone."""
    if "WORLD_SIZE" not in os.environ or not dist.is_available() or dist.is_initialized():
        return
    if _launched_alone(os.environ):
        # It ends with this process.
        group_if_launched_alone(torch_device).__enter__()
        return
    _use(torch_device)
    dist.init_process_group(_backend_for(torch_device))


def group_if_launched_alone(torch_device: str) -> AbstractContextManager[Any]:
    """The default group of one while it is open, where a launcher started one process: its step may be DDP's.

    Nothing where no launcher did, where it started several, or where the program has a group.
    """
    launched = "WORLD_SIZE" in os.environ and _launched_alone(os.environ)
    if not launched or not dist.is_available():
        return nullcontext()
    return OwnGroup(dist.HashStore(), 0, 1, torch_device)


def as_rank_0(number: int, wanted: bool) -> bool:
    """What rank 0 of a launched group wants in this numbered question; alone, what is wanted here.

    Clocks disagree, and a rank that runs one step more than the others waits for ever in the step's collective.

    Raises:
        torch.distributed.DistError: rank 0 does not say.
    """
    if _launched_alone(os.environ):
        return wanted
    store = _launched_store()
    key = f"wellfed/wanted/{number}"
    if os.environ["RANK"] == "0":
        store.set(key, str(int(wanted)))
        return wanted
    return bool(store.get(key) == b"1")


@functools.cache
def _launched_store() -> Any:
    """A connection of this process's own to the store of a launched group, whatever backend the group has."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(*address, is_master=False, timeout=timedelta(seconds=ANSWER_SECONDS))


def _use(torch_device: str) -> None:
    if torch_device.startswith("cuda"):
        # NCCL's communicators belong to the current device.
        torch.cuda.set_device(torch_device)


class OwnGroup:
    """The default process group, where the program has none; a context manager that ends it.

    Where the program has one, that is used and never ended: then `owned` is False and the methods do nothing.

    Args:
        store: that all ranks share.
        rank, world_size: of this process.
        torch_device: of the step.
    """

    def __init__(self, store: Any, rank: int, world_size: int, torch_device: str) -> None:
        self.owned = not dist.is_initialized()
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._device = torch_device
        self._made = 0

    def __enter__(self) -> OwnGroup:
        if self.owned:
            _use(self._device)
            self._make()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.owned and dist.is_initialized():
            dist.destroy_process_group()

    def _make(self) -> None:
        self._made += 1
        on_cuda = self._device.startswith("cuda")
        dist.init_process_group(
            _backend_for(self._device),
            store=dist.PrefixStore(f"group/{self._made}", self._store),
            rank=self._rank,
            world_size=self._world_size,
            timeout=None if on_cuda else timedelta(seconds=GLOO_TIMEOUT_SECONDS),
        )

    @property
    def can_abort(self) -> bool:
        """Whether `abort` ends collectives: NCCL's, in a group that was made here. gloo has its time limit instead."""
        return self.owned and self._device.startswith("cuda")

    def abort(self) -> None:
        """End what this rank waits for in a collective, from another thread."""
        group = dist.group.WORLD if self.can_abort and dist.is_initialized() else None
        if group is not None:
            group.abort()

    def make_again(self) -> None:
        """A new group in the place of one whose ranks did not run the same collectives; all ranks call it together."""
        if not self.owned:
            return
        gc.collect()  # a model that is in a cycle still holds the old one
        if dist.is_initialized():
            self.abort()
            dist.destroy_process_group()
        self._make()
