"""Crop boxes and flips: pure functions of (seed, epoch, key) and the picture's size."""

from __future__ import annotations

import math

import numpy as np

from ..config import Augment
from ..errors import UsageError
from ..sampling import sample_words, uniform

__all__ = ["crop_parameters", "oriented_size"]

SCALE = (0.08, 1.0)
RATIO = (3.0 / 4.0, 4.0 / 3.0)
ATTEMPTS = 10
"""RandomResizedCrop's rule as torchvision has it: area share, aspect ratio, tries before the central crop."""

FLIP_DRAW = ATTEMPTS
"""Draws 0..9 are the attempts (words: area, ratio, x, y); word 0 of draw 10 is the flip."""

EVAL_SHARE = 224 / 256
"""Side of the central square over the shorter side: resizing to S * 256/224, then cropping S."""


def oriented_size(widths: np.ndarray, heights: np.ndarray, orientations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Widths and heights after EXIF orientation: 5..8 swap them. All of shape (n,); int64 out."""
    widths, heights = np.asarray(widths, dtype=np.int64), np.asarray(heights, dtype=np.int64)
    swap = np.asarray(orientations) >= 5
    return np.where(swap, heights, widths), np.where(swap, widths, heights)


def crop_parameters(
    augment: Augment, *, seed: int, epoch: int, keys: np.ndarray, widths: np.ndarray, heights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes and flips of these samples.

    "train" is torchvision's RandomResizedCrop (scale 0.08..1, ratio 3/4..4/3) and a flip with probability 1/2; "eval"
    is the central square of 224/256 of the shorter side, not flipped.

    Args:
        keys: sample keys, shape (n,).
        widths, heights: of the EXIF-oriented pictures, pixels, shape (n,), at least 1.

    Returns:
        int32 boxes of shape (n, 4): x, y, width, height in the EXIF-oriented frame; bool flips of shape (n,).

    Raises:
        UsageError: a width or height below 1 (an index row without a size: read it from the image first).
    """
    widths, heights = np.asarray(widths, dtype=np.int64), np.asarray(heights, dtype=np.int64)
    if len(widths) and min(widths.min(), heights.min()) < 1:
        raise UsageError("crop boxes need widths and heights of at least 1", remedy="Read sizes from the images first.")
    if augment == "eval":
        side = np.maximum(1, np.rint(np.minimum(widths, heights) * EVAL_SHARE).astype(np.int64))
        boxes = np.stack([(widths - side) // 2, (heights - side) // 2, side, side], axis=1)
        return boxes.astype(np.int32), np.zeros(len(widths), dtype=bool)
    boxes = _random_resized_crops(seed, epoch, np.asarray(keys, dtype=np.uint64), widths, heights)
    flips = uniform(sample_words(seed, epoch, keys, FLIP_DRAW)[:, 0]) < 0.5
    return boxes.astype(np.int32), flips


def _random_resized_crops(
    seed: int, epoch: int, keys: np.ndarray, widths: np.ndarray, heights: np.ndarray
) -> np.ndarray:
    boxes = np.zeros((len(keys), 4), dtype=np.int64)
    open_rows = np.arange(len(keys))
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for attempt in range(ATTEMPTS):
        if not len(open_rows):
            return boxes
        u = uniform(sample_words(seed, epoch, keys[open_rows], attempt))
        width, height = widths[open_rows], heights[open_rows]
        area = width * height * (SCALE[0] + u[:, 0] * (SCALE[1] - SCALE[0]))
        ratio = np.exp(low + u[:, 1] * (high - low))
        w = np.rint(np.sqrt(area * ratio)).astype(np.int64)
        h = np.rint(np.sqrt(area / ratio)).astype(np.int64)
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        x = np.floor(u[:, 2] * (width - w + 1)).astype(np.int64)
        y = np.floor(u[:, 3] * (height - h + 1)).astype(np.int64)
        boxes[open_rows[fits]] = np.stack([x, y, w, h], axis=1)[fits]
        open_rows = open_rows[~fits]
    boxes[open_rows] = _central_crops(widths[open_rows], heights[open_rows])
    return boxes


def _central_crops(widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """The largest central boxes whose ratio lies within RATIO."""
    ratio = widths / heights
    w = np.where(ratio > RATIO[1], np.rint(heights * RATIO[1]).astype(np.int64), widths)
    h = np.where(ratio < RATIO[0], np.rint(widths / RATIO[0]).astype(np.int64), heights)
    return np.stack([(widths - w) // 2, (heights - h) // 2, w, h], axis=1)
