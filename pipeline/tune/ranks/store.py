"""The store in which the ranks of a launched program meet for one tune, and what is opened with it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ...errors import ConfigError, ResourceError, words_of
from ...loader.ranks import found_ranks

__all__ = ["KeptStore", "SharedStore", "serve_store", "shared_store"]

MEETING_SECONDS = 300.0
"""For all ranks to come to the tune."""

_opened = 0


class KeptStore:
    """A store that lives in rank 0's process: where it does not answer any more, whatever is asked of it says so.

    Args:
        store: of torch.distributed.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, key: str, value: Any) -> None:
        """Raises ResourceError, as the others do: rank 0 is gone."""
        self._asked(self._store.set, key, value)

    def get(self, key: str) -> bytes:
        """The value of a key that is there."""
        return bytes(self._asked(self._store.get, key))

    def add(self, key: str, amount: int) -> int:
        return int(self._asked(self._store.add, key, amount))

    def check(self, keys: list[str]) -> bool:
        """Whether all of these keys are there."""
        return bool(self._asked(self._store.check, keys))

    def _asked(self, what: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return what(*arguments)
        except dist.DistError as error:
            raise ResourceError(
                "the ranks of a tune meet in a store of rank 0, which must live as long as the tune",
                got=words_of(error),
                remedy="Look into rank 0's log for what ended it.",
            ) from error


@dataclass(frozen=True)
class SharedStore:
    """A store and who uses it.

    Attributes:
        store: of torch.distributed.
        rank, world_size: of this process.
        host: of rank 0, as the other ranks reach it.
    """

    store: Any
    rank: int
    world_size: int
    host: str


def serve_store(host: str) -> Any:
    """A store in this process on a free port; it ends with the object."""
    return dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=MEETING_SECONDS))


@contextmanager
def shared_store() -> Iterator[SharedStore]:
    """Open a store of this tune's own on rank 0, and reach it from the others.

    Where it lies is told through the program's process group, or else through the store that the launcher named.

    Raises:
        ConfigError: the launcher named none.
        ResourceError: not all ranks came.
    """
    rank, world_size = found_ranks(None, None)
    together = os.environ.get("LOCAL_WORLD_SIZE") == str(world_size)
    host = "127.0.0.1" if together else socket.gethostname()
    server = serve_store(host) if rank == 0 else None
    mine = None if server is None else (host, int(server.port))
    try:
        host, port = _told_by_group(mine) if dist.is_initialized() else _told_by_launcher(mine, rank, world_size)
        store = server or dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=MEETING_SECONDS))
    except dist.DistError as error:
        raise ResourceError(
            f"all {world_size} ranks measure together, so each must come to the tune within {MEETING_SECONDS:g} s",
            got=words_of(error),
            remedy="Call tune() on every rank, or look into the other ranks' logs.",
        ) from error
    yield SharedStore(store, rank, world_size, host)


def _told_by_group(mine: tuple[str, int] | None) -> tuple[str, int]:
    # A group of gloo: the program's own may be of NCCL, which needs tensors on a GPU.
    group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=MEETING_SECONDS))
    try:
        told: list[Any] = [mine]
        dist.broadcast_object_list(told, src=0, group=group)
    finally:
        dist.destroy_process_group(group)
    host, port = told[0]
    return str(host), int(port)


def _told_by_launcher(mine: tuple[str, int] | None, rank: int, world_size: int) -> tuple[str, int]:
    global _opened
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            "ranks without a process group meet where MASTER_ADDR and MASTER_PORT say, as torchrun sets them",
            got=f"WORLD_SIZE={world_size} without {' and '.join(missing)}",
            remedy="Start with torchrun, or call tune() after init_process_group.",
        )
    launchers, _, _ = next(dist.rendezvous("env://", rank, world_size, timeout=timedelta(seconds=MEETING_SECONDS)))
    _opened += 1
    key = f"wellfed/tune/{_opened}"
    if mine is not None:
        launchers.set(key, f"{mine[0]} {mine[1]}")
        # Where it is served by this process, it ends with this function.
        launchers.wait([f"{key}/{other}" for other in range(1, world_size)])
        return mine
    host, _, port = launchers.get(key).decode().partition(" ")
    launchers.set(f"{key}/{rank}", b"1")
    return host, int(port)
