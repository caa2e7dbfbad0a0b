"""Shared memory that worker processes decode into, used again once nobody holds the batch made of it."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
import weakref
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch

from ..formats.recycled import Recycled
from .shared_memory import SHARED_MEMORY
from .shared_memory import block_bytes as whole_pages

__all__ = ["SharedBlocks", "SharedPixels"]


class SharedBlocks:
    """Blocks of memory that a process and those that it starts see alike.

    They lie in a file without a name, so nothing stays behind however a program ends: in /dev/shm, or where there is
    none in the system's folder for temporary files.

    Pickling: to a process that is being started, which maps the same memory. Forked processes have it anyway.

    Args:
        blocks: how many.
        block_bytes: of each, at least 1.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, blocks: int, block_bytes: int) -> None:
        size = whole_pages(block_bytes)
        folder = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
        with tempfile.TemporaryFile(dir=folder, buffering=0) as made:
            os.truncate(made.fileno(), blocks * size)
            self._map(os.dup(made.fileno()), blocks, size)

    def _map(self, file: int, blocks: int, size: int) -> None:
        # Views of the mapping keep it, whatever becomes of the file and of this.
        weakref.finalize(self, os.close, file).atexit = False
        self._file = file
        self._memory = mmap.mmap(file, blocks * size)
        self.rows = list(np.frombuffer(self._memory, dtype=np.uint8).reshape(blocks, size))
        """The blocks: uint8, shape (size,) each."""

    def reserve(self, block: int) -> None:
        """Have the system set memory aside: writing to a block for which there is none kills a process.

        Raises:
            OSError: there is none.
        """
        if hasattr(os, "posix_fallocate"):
            size = len(self.rows[block])
            os.posix_fallocate(self._file, block * size, size)

    def release(self, block: int) -> None:
        """Give the memory of a block back to the system, whoever else still maps it."""
        if hasattr(mmap, "MADV_REMOVE"):
            size = len(self.rows[block])
            # Not every file system can; then it comes back with the rest.
            with contextlib.suppress(OSError):
                self._memory.madvise(mmap.MADV_REMOVE, block * size, size)

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
    its own. What all that leaves in a worker's allocators also moves the place of the next
    allocation, so that over some hundred batches workers write to, and so copy, ever more of the pages that they share
    with their parent. A block comes back when the last tensor that shares it is freed, so a batch that the caller keeps
    is never written again.

    That counts references in this process alone: a process that the caller forks while it holds a batch shares the
    batch's memory, and sees what is decoded there later. Clone what such a process is to have.

    Threads: `take`, `reclaim` and `release` are called by one; `hand_over` and `give_back` by any.

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
        """A block that nobody uses; None where there is none.

        Raises:
            OSError: the system has no memory for one more.
        """
        row = self._recycled.take()
        if row is not None:
            number = self._numbers[id(row)]
        elif self._begun < len(self.memory.rows):
            # No sooner than needed: few batches take few blocks.
            self.memory.reserve(self._begun)
            number, self._begun = self._begun, self._begun + 1
        else:
            return None
        self._out.add(number)
        return number

    def hand_over(self, block: int, shape: tuple[int, ...]) -> torch.Tensor:
        """The pixels that were written to a block that is out, once: uint8, of this shape.

        Raises:
            KeyError: the block is not out; handed over twice, two batches would be written to it.
        """
        self._out.remove(block)
        return torch.from_numpy(self._recycled.lend(self.memory.rows[block], math.prod(shape))).view(shape)

    def give_back(self, block: int) -> None:
        """Have back a block to which nothing was written."""
        self.hand_over(block, (0,))

    def reclaim(self) -> None:
        """Have back the blocks whose batches were thrown away; once no worker writes to one."""
        for block in list(self._out):
            self.give_back(block)

    def release(self) -> None:
        """Give the memory of all blocks that nobody uses back to the system; once there are no workers, at the end.

        A batch that the caller keeps would hold all of it, and so would processes that were forked meanwhile.
        """
        self.reclaim()
        while (row := self._recycled.take()) is not None:
            self.memory.release(self._numbers[id(row)])
