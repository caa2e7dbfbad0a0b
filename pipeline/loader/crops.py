"""Crops and flips drawn for several batches at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..formats.index import index_rows

if TYPE_CHECKING:
    from ..formats.base import Source
    from .batch import BatchTask

__all__ = ["DrawCrops", "DrawnCrops", "drawn_ahead"]

SAMPLES_AT_ONCE = 2048
"""One draw costs the interpreter about a millisecond whatever the number of samples; more at once would delay the
first batch."""

DrawCrops = Callable[[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From epoch, crop keys, widths, heights and orientations to boxes and flips."""


@dataclass(frozen=True, kw_only=True)
class DrawnCrops:
    """What the index says of b samples, and how they are cropped.

    Attributes:
        widths, heights: as encoded, pixels; int64, shape (b,).
        orientations: EXIF 1..8; uint8, shape (b,).
        boxes: x, y, width, height of the crop in the EXIF-oriented picture; int32, shape (b, 4).
        flips: bool, shape (b,).
    """

    widths: np.ndarray
    heights: np.ndarray
    orientations: np.ndarray
    boxes: np.ndarray
    flips: np.ndarray

    def part(self, start: int, stop: int) -> DrawnCrops:
        """Those from `start` to `stop`."""
        return DrawnCrops(
            widths=self.widths[start:stop],
            heights=self.heights[start:stop],
            orientations=self.orientations[start:stop],
            boxes=self.boxes[start:stop],
            flips=self.flips[start:stop],
        )


def drawn_ahead(tasks: Iterator[BatchTask], source: Source, draw: DrawCrops) -> Iterator[BatchTask]:
    """The tasks with their crops, but for those that hold a sample whose size the index does not know."""
    together: list[BatchTask] = []
    samples = 0
    for task in tasks:
        # A draw is of one epoch.
        if together and together[0].epoch != task.epoch:
            yield from _drawn(together, source, draw)
            together, samples = [], 0
        together.append(task)
        samples += len(task.rows)
        if samples >= SAMPLES_AT_ONCE:
            yield from _drawn(together, source, draw)
            together, samples = [], 0
    yield from _drawn(together, source, draw)


def _drawn(tasks: list[BatchTask], source: Source, draw: DrawCrops) -> Iterator[BatchTask]:
    if not tasks:
        return
    entries = index_rows(source.index, np.concatenate([task.rows for task in tasks]))
    widths, heights = entries["width"].astype(np.int64), entries["height"].astype(np.int64)
    orientations = entries["orientation"].astype(np.uint8)
    ends = np.cumsum([len(task.rows) for task in tasks]).tolist()
    starts = [0, *ends[:-1]]
    keys = entries["key"].astype(np.uint64)
    for task, start, end in zip(tasks, starts, ends, strict=True):
        keys[start:end] = task.crop_keys(keys[start:end])
    known = (widths > 0) & (heights > 0)
    boxes, flips = np.zeros((len(keys), 4), dtype=np.int32), np.zeros(len(keys), dtype=bool)
    if known.any():
        boxes[known], flips[known] = draw(
            tasks[0].epoch, keys[known], widths[known], heights[known], orientations[known]
        )
    crops = DrawnCrops(widths=widths, heights=heights, orientations=orientations, boxes=boxes, flips=flips)
    for task, start, end in zip(tasks, starts, ends, strict=True):
        yield replace(task, crops=crops.part(start, end)) if known[start:end].all() else task
