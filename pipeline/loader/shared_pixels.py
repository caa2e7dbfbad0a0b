"""Shared memory that worker processes decode into, used again once nobody holds the batch made of it."""

from __future__ import annotations

import math
import mmap
import os
import weakref
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch

from ..formats.recycled import Recycled

__all__ = ["SharedBlocks", "SharedPixels"]


class SharedBlocks:
    """Blocks of memory that a process and those that it starts see alike; the system gives pages as they are written.

    Not in /dev/shm, whose size a container limits.

    Pickling: to a process that is being started, which maps the same memory. Forked processes have it anyway.

    Args:
        blocks: how many.
        block_bytes: of each, at least 1.
    """

    def __init__(self, blocks: int, block_bytes: int) -> None:
        file = os.memfd_create("wellfed-pixels")
        # Whole pages, so that no two batches share one.
        size = -(-block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(file, blocks * size)
        self._map(file, blocks, size)

    def _map(self, file: int, blocks: int, size: int) -> None:
        # Views of the mapping keep it, whatever becomes of the file and of this.
        weakref.finalize(self, os.close, file).atexit = False
        self._file = file
        self.rows = list(np.frombuffer(mmap.mmap(file, blocks * size), dtype=np.uint8).reshape(blocks, size))
        """The blocks: uint8, shape (size,) each."""

    def pixels(self, block: int, shape: tuple[int, ...]) -> torch.Tensor:
        """A uint8 tensor over the start of a block."""
        return torch.from_numpy(self.rows[block][: math.prod(shape)]).view(shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self._file), len(self.rows), len(self.rows[0]))


def _received(file: Any, blocks: int, size: int) -> SharedBlocks:
    self = SharedBlocks.__new__(SharedBlocks)
    self._map(file.detach(), blocks, size)
    return self


class SharedPixels:
    """Says which block of shared memory the next batch is decoded into, and hands over the batches that came back.

    Shared memory made for each batch would be zeroed, faulted in by two processes and passed on through a connection of
    its own: 10 ms for 64 images. What all that leaves in a worker's allocators also moves the place of the next
    allocation, so that over some hundred batches workers write to, and so copy, ever more of the pages that they share
    with their parent. A block comes back when the last tensor that shares it is freed, so a batch that the caller keeps
    is never written again.

    Threads: `take` and `reclaim` are called by one; `hand_over` by any.

    Args:
        blocks: batches that are in flight or in use at the same time; one more goes without a block.
        block_bytes: of the pixels of a batch.
    """

    def __init__(self, blocks: int, block_bytes: int) -> None:
        self.memory = SharedBlocks(blocks, block_bytes)
        self._numbers = {id(row): number for number, row in enumerate(self.memory.rows)}
        self._recycled = Recycled(spare=blocks)
        self._begun = 0
        self._out: set[int] = set()

    def take(self) -> int | None:
        """A block that nobody uses; None where there is none."""
        row = self._recycled.take()
        if row is not None:
            number = self._numbers[id(row)]
        elif self._begun < len(self.memory.rows):
            # No sooner than needed: a block that was never written takes no memory.
            number, self._begun = self._begun, self._begun + 1
        else:
            return None
        self._out.add(number)
        return number

    def hand_over(self, block: int, shape: tuple[int, ...]) -> torch.Tensor:
        """The pixels that were written to a block: uint8, of this shape."""
        self._out.discard(block)
        return torch.from_numpy(self._recycled.lend(self.memory.rows[block], math.prod(shape))).view(shape)

    def give_back(self, block: int) -> None:
        """Have back a block to which nothing was written."""
        self.hand_over(block, (0,))

    def reclaim(self) -> None:
        """Have back the blocks whose batches were thrown away; once no worker writes to one."""
        for block in list(self._out):
            self.give_back(block)
