"""Crop, antialiased resize and mirror of a batch of decoded pictures on the GPU, in two launches.

The libraries that decode there resize with kernels that cost the training step more than the decoding in the GPU's
JPEG engines does; these take a part of it, and round between the axes as Pillow does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from ..errors import words_of

__all__ = ["Stored", "resample", "why_not"]

SCRATCH_BYTES = 32 << 20
"""Crops resized across and not yet down, at most, or one crop: what stays in the GPU's second-level cache."""

COLUMNS = 8
"""Of the table that the kernels read: address, width, height, three strides, turns, first row of the scratch."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """m decoded crops where they lie on the device.

    Attributes:
        addresses: of each crop's first byte; int64, shape (m,).
        sizes: width and height of each crop, pixels; shape (m, 2).
        strides: bytes from a row, a column and a channel to the next; int64, shape (m, 3).
        mirrored, upended: turn the resized crop left and right, top and bottom; bool, shape (m,).
    """

    addresses: np.ndarray
    sizes: np.ndarray
    strides: np.ndarray
    mirrored: np.ndarray
    upended: np.ndarray


def resample(crops: Stored, out: torch.Tensor) -> None:
    """Write the crops into `out`, in the order of the current stream, whose end the crops must outlive.

    The filter is the triangle of Pillow's `Image.resize(..., BILINEAR)`, widened where it shrinks, rounded to uint8
    after each axis as Pillow rounds.

    Args:
        out: uint8, shape (m, S, S, 3), contiguous, on the crops' device.
    """
    from . import resample_kernels as kernels

    size = out.shape[1]
    heights = crops.sizes[:, 1].astype(np.int64)
    for start, stop in _parts(heights * 3 * size):
        of = heights[start:stop]
        table = np.empty((stop - start, COLUMNS), dtype=np.int64)
        table[:, 0] = crops.addresses[start:stop]
        table[:, 1:3] = crops.sizes[start:stop]
        table[:, 3:6] = crops.strides[start:stop]
        table[:, 6] = crops.mirrored[start:stop] + 2 * crops.upended[start:stop].astype(np.int64)
        table[:, 7] = np.cumsum(of) - of
        scratch = torch.empty(int(of.sum()) * 3 * size, dtype=torch.uint8, device=out.device)
        kernels.launch(_on(out.device, table), int(of.max()), scratch, out[start:stop])


def _on(device: torch.device, table: np.ndarray) -> torch.Tensor:
    host = torch.from_numpy(table)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def _parts(needed: np.ndarray) -> list[tuple[int, int]]:
    """Start and stop of runs that fit into the scratch, of at least one crop."""
    parts, start, held = [], 0, 0
    for place, each in enumerate(needed.tolist()):
        if place > start and held + each > SCRATCH_BYTES:
            parts.append((start, place))
            start, held = place, 0
        held += each
    parts.append((start, len(needed)))
    return parts


@cache
def why_not(device: torch.device) -> str | None:
    """None where `resample` works on this CUDA device, which is tried once; otherwise what is in its way.

    Triton comes with torch's CUDA builds for Linux, but compiles with the machine's C compiler, which may be missing.
    """
    try:
        picture = torch.full((5, 7, 3), 9, dtype=torch.uint8, device=device)
        out = torch.empty((1, 4, 4, 3), dtype=torch.uint8, device=device)
        resample(_one(picture), out)
        right = bool((out == 9).all())
    # Triton raises errors of its own, of the compiler's and of the driver's; any of them means the same here.
    except Exception as error:
        return words_of(error)
    return None if right else "a gray picture did not stay gray"


def state(device: torch.device) -> str:
    """Who resizes on this CUDA device, for people."""
    reason = why_not(device)
    return "by our kernel" if reason is None else f"by DALI or torch, since our kernel does not run: {reason}"


def _one(picture: Any) -> Stored:
    height, width, _ = picture.shape
    return Stored(
        addresses=np.array([picture.data_ptr()]),
        sizes=np.array([[width, height]]),
        strides=np.array([picture.stride()])[:, [0, 1, 2]],
        mirrored=np.zeros(1, dtype=bool),
        upended=np.zeros(1, dtype=bool),
    )
