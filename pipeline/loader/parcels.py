"""What goes to worker processes and comes back: a task with the place of its pixels, and a batch without them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from traceback import format_exception
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from ..errors import WellfedError
from .batch import BatchDecoder, BatchTask, HostBatch
from .shared_pixels import SharedBlocks, SharedPixels

__all__ = ["Batches", "Order", "Parcel", "Tasks"]


@dataclass(frozen=True)
class Order:
    """A task, and where its pixels go.

    Attributes:
        lender: whose block it is.
        block: None for memory of the worker's own.
    """

    task: BatchTask
    lender: int
    block: int | None


@dataclass(frozen=True)
class Parcel:
    """What a worker gives for an order; see there.

    Attributes:
        content: without the pixels that lie in a block.
        shape: of those pixels.
    """

    content: HostBatch | WellfedError
    lender: int = 0
    block: int | None = None
    shape: tuple[int, ...] = (0,)

    def open(self) -> HostBatch | WellfedError:
        """The whole; in the loader's process, once."""
        if self.block is not None:
            # Batches that are still on their way when a loader is closed belong to nobody.
            lender = _LENDERS.get(self.lender)
            if lender is not None:
                pixels = lender.hand_over(self.block, self.shape)
                if isinstance(self.content, HostBatch):
                    self.content.images = pixels.permute(0, 3, 1, 2)
        return self.content

    def pin_memory(self, device: str | None = None) -> Parcel:
        """The whole in page-locked memory; torch's pinning thread calls this by name."""
        content = self.open()
        return Parcel(content if isinstance(content, WellfedError) else content.pin_memory(device))


_NUMBERS = itertools.count(1)

_LENDERS: weakref.WeakValueDictionary[int, SharedPixels] = weakref.WeakValueDictionary()
"""By numbers that are never used again: torch's pinning thread knows a parcel and nothing else, and may be late."""


class Tasks(Sampler[Order]):
    """Hands torch the tasks of the current run.

    Attributes:
        refused: why the current run ends early: for lack of memory for its batches.
    """

    def __init__(self) -> None:
        self.refused: OSError | None = None
        self._pixels: SharedPixels | None = None
        self._lender = 0
        self._current: Iterator[BatchTask] = iter(())
        self._fresh = False

    def lend(self, pixels: SharedPixels | None) -> None:
        """Have batches decoded into these, or into memory of the workers' own."""
        _LENDERS.pop(self._lender, None)
        self._pixels = pixels
        if pixels is not None:
            self._lender = next(_NUMBERS)
            _LENDERS[self._lender] = pixels

    def begin(self, tasks: Iterator[BatchTask]) -> None:
        """Hand out these from now on."""
        self._current, self._fresh, self.refused = tasks, True, None

    def __iter__(self) -> Iterator[Order]:
        return self

    def __next__(self) -> Order:
        task = next(self._current)
        pixels = self._pixels
        if pixels is None:
            return Order(task, 0, None)
        if self._fresh:
            # torch asks for the first task once all workers have said that they are through with the last run's.
            pixels.reclaim()
            self._fresh = False
        try:
            return Order(task, self._lender, pixels.take())
        except OSError as error:
            # The batches under way are still handed over; an error would be raised in the midst of torch's accounts.
            self._current, self.refused = iter(()), error.with_traceback(None)
            raise StopIteration from error


class Batches(Dataset[Any]):
    """A map from order to parcel; errors travel as values, since torch would rebuild them from their text."""

    def __init__(self, decoder: BatchDecoder, memory: SharedBlocks | None) -> None:
        self._decoder = decoder
        self._memory = memory

    def __getitem__(self, order: Order) -> Parcel:
        side = self._decoder.image_size
        shape = (len(order.task.rows), side, side, 3)
        pixels = None
        if self._memory is not None and order.block is not None:
            pixels = self._memory.pixels(order.block, shape)
        try:
            batch = self._decoder.decode(order.task, pixels=pixels)
        except WellfedError as error:
            if error.__cause__ is not None:
                # A cause does not travel; what it says does, as part of the traceback that the loop shows.
                error.add_note("In the worker process:\n" + "".join(format_exception(error.__cause__)))
            return Parcel(error, order.lender, order.block)
        if pixels is not None:
            # Not a part of them, with which torch would send the whole.
            batch.images = torch.empty(0, dtype=torch.uint8)
        return Parcel(batch, order.lender, order.block, shape)
