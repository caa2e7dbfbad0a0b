"""Host memory that is used again once nobody holds the tensor made of it."""

from __future__ import annotations

import numpy as np
import torch

from ..formats.recycled import Recycled

__all__ = ["Blocks"]


class Blocks:
    """Recycles the pixel memory of batches.

    Fresh memory costs a page fault for every 4 KiB, about 0.1 ms an image, and more where many threads of a process
    fault at once. A block comes back when the last tensor that shares its storage is freed, so a batch that the caller
    keeps, or any view of it, is never written again.

    Threads: `uint8` is called by one thread; blocks come back from any.

    Args:
        spare: free blocks kept at most; further ones are given back to the system when the next is taken.
    """

    def __init__(self, spare: int) -> None:
        self._blocks = Recycled(spare)

    def uint8(self, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor of uint8 on the CPU, its contents undefined."""
        size = int(np.prod(shape))
        block = self._take(size)
        # torch holds this array until the storage is freed; the block behind it is what comes back.
        return torch.from_numpy(self._blocks.lend(block, size)).view(shape)

    def _take(self, size: int) -> np.ndarray:
        # A smaller one was of a last, shorter batch, or of an earlier batch size.
        while (block := self._blocks.take()) is not None:
            if len(block) >= size:
                return block
        return np.empty(size, dtype=np.uint8)
