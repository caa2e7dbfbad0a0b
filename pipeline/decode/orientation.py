"""Crops of the upright picture in the frame of the stored pixels, for decoders that do not apply EXIF orientation."""

from __future__ import annotations

import numpy as np

__all__ = ["Turns", "stored_boxes", "turns_after"]

_TRANSPOSED = (5, 6, 7, 8)
_MIRRORED = (2, 3, 6, 7)
_UPENDED = (3, 4, 7, 8)
"""Orientation o turns stored pixels upright by transposing, then mirroring left and right, then top and bottom,
each where o is in that tuple (EXIF 2.32, tag 0x0112)."""

Turns = tuple[np.ndarray, np.ndarray, np.ndarray]


def stored_boxes(boxes: np.ndarray, widths: np.ndarray, heights: np.ndarray, orientations: np.ndarray) -> np.ndarray:
    """The same crops before orientation is applied.

    Args:
        boxes: x, y, width, height in the upright picture; shape (n, 4).
        widths, heights: as encoded, before orientation, pixels; shape (n,).
        orientations: EXIF 1..8; shape (n,).

    Returns:
        int32 of shape (n, 4): x, y, width, height in the picture as encoded.
    """
    boxes = np.asarray(boxes, dtype=np.int64)
    transposed = np.isin(orientations, _TRANSPOSED)
    shown_widths = np.where(transposed, heights, widths)
    shown_heights = np.where(transposed, widths, heights)
    x, y, width, height = boxes.T
    x = np.where(np.isin(orientations, _MIRRORED), shown_widths - x - width, x)
    y = np.where(np.isin(orientations, _UPENDED), shown_heights - y - height, y)
    upright = np.stack([x, y, width, height], axis=1)
    return np.where(transposed[:, None], upright[:, [1, 0, 3, 2]], upright).astype(np.int32)


def turns_after(orientations: np.ndarray, flips: np.ndarray) -> Turns:
    """What to do with a stored crop to have the upright one, mirrored where `flips` says.

    Args:
        orientations: EXIF 1..8; shape (n,).
        flips: bool, shape (n,): mirror the upright crop left and right.

    Returns:
        bool arrays of shape (n,): mirror the stored crop left and right, mirror it top and bottom, and then transpose
        it. They commute with a resize to a square.
    """
    transposed = np.isin(orientations, _TRANSPOSED)
    horizontal = np.isin(orientations, _MIRRORED) ^ np.asarray(flips, dtype=bool)
    vertical = np.isin(orientations, _UPENDED)
    # Mirroring after transposing is mirroring along the other axis before it.
    return np.where(transposed, vertical, horizontal), np.where(transposed, horizontal, vertical), transposed
