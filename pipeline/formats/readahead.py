"""Which blocks of shards were announced to the system, so that each is announced once."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["READ_BLOCK", "RecentBlocks"]

READ_BLOCK = 4 << 20
"""Bytes announced at once: a disk or a network file system is at its full rate with reads of that length."""

REMEMBERED = 1 << 14
"""Blocks remembered, 64 GiB of them: more than lies in any window, so that a stretch is announced once an epoch."""


class RecentBlocks:
    """The blocks of (shard, number) that were announced lately.

    Threads: one thread uses it.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[int, int], None] = OrderedDict()

    def add(self, block: tuple[int, int]) -> bool:
        """Note a block; say whether it is new."""
        if block in self._blocks:
            self._blocks.move_to_end(block)
            return False
        self._blocks[block] = None
        if len(self._blocks) > REMEMBERED:
            self._blocks.popitem(last=False)
        return True
