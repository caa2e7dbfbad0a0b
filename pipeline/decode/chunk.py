"""Decode a chunk of a batch: by the C extension in one call without the GIL, where it is built."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..config import DecodeMode
from ..errors import SampleRejectedError
from ..formats.base import Source
from ..formats.reading import Encoded, Stretches, read_rows, stretches_of
from .cpu import decode_into
from .extension import native as _native
from .extension import native_error as _native_error

__all__ = ["decode_chunk", "decode_files", "native_state", "read_encoded"]


def native_state() -> str:
    """What `doctor` says of the C extension."""
    if _native is None:
        return (
            f"not built ({_native_error}): images decode by torchvision, slower, and decode='fast' "
            "is exact, too. Install gcc and libjpeg's headers "
            "(Debian: libjpeg62-turbo-dev), then `pip install --force-reinstall --no-deps wellfed`"
        )
    return f"available, {_native.LIBRARY}, {_native.KERNELS} kernels"


def decode_chunk(
    encoded: Sequence[bytes | memoryview],
    boxes: np.ndarray,
    orientations: np.ndarray,
    flips: np.ndarray,
    out: torch.Tensor,
    mode: DecodeMode = "fast",
) -> dict[int, str]:
    """Decode, crop, resize (bilinear, antialiased) and flip n images into `out`.

    JPEGs go through the C extension; whatever it does not decode, and everything where it is not built, through
    `decode_into`, which has the last word and never reduces.

    Args:
        encoded: n encoded images.
        boxes: int32 of shape (n, 4): x, y, width, height in the EXIF-oriented frame, pixels.
        orientations: uint8 of shape (n,): EXIF 1..8.
        flips: bool of shape (n,): mirror left and right after the crop.
        out: uint8 of shape (n, 3, S, S) on the CPU, in channels-last memory.
        mode: "fast" lets libjpeg halve, quarter or eighth an undamaged JPEG while it decodes (by its inverse DCT),
            where the crop stays at least S wide and high; "exact" never does.

    Returns:
        The places that do not decode, with the reason.
    """
    waiting: Sequence[int] = range(len(encoded))
    pixels = out.permute(0, 2, 3, 1)
    if _native is not None and pixels.is_contiguous():
        status = np.full(len(encoded), -1, dtype=np.int32)
        _native.decode(
            encoded,
            np.ascontiguousarray(boxes, dtype=np.int32),
            np.ascontiguousarray(orientations, dtype=np.uint8),
            np.ascontiguousarray(flips, dtype=np.uint8),
            pixels.numpy(),
            out.shape[2],
            mode == "fast",
            False,
            status,
        )
        waiting = np.flatnonzero(status).tolist()
    failures: dict[int, str] = {}
    for place in waiting:
        try:
            decode_into(bytes(encoded[place]), boxes[place].tolist(), bool(flips[place]), out[place])
        except SampleRejectedError as error:
            failures[place] = str(error)
    return failures


def read_encoded(source: Source, rows: np.ndarray) -> Sequence[Encoded]:
    """The encoded images of these rows, shape (n,), in their order; raises as `Source.read` does.

    Read in C where that is built: a call for each sample would make other threads wait for the interpreter as often.
    """
    stretches = stretches_of(source, rows) if _native is not None else None
    if _native is None or stretches is None:
        return read_rows(source, rows)
    memory = stretches.take(int(stretches.sizes.sum()))
    if _native.read_files(stretches.descriptors, stretches.offsets, stretches.sizes, memory) < len(rows):
        # The slower way says what is wrong.
        return read_rows(source, rows)
    return stretches.parted(memory)


def decode_files(
    stretches: Stretches,
    boxes: np.ndarray,
    orientations: np.ndarray,
    flips: np.ndarray,
    out: torch.Tensor,
    mode: DecodeMode = "fast",
) -> np.ndarray:
    """As `decode_chunk`, of JPEGs that the C extension reads itself, so that the interpreter is needed once a chunk.

    Args:
        stretches: of n samples.
        boxes, orientations, flips, out, mode: as in `decode_chunk`.

    Returns:
        The places, ascending, that are left for `decode_chunk`, whose rows of `out` are undefined; int64. All of them
        where the extension is not built.
    """
    pixels = out.permute(0, 2, 3, 1)
    status = np.full(len(boxes), -1, dtype=np.int32)
    if _native is not None and pixels.is_contiguous():
        _native.decode_files(
            stretches.descriptors,
            stretches.offsets,
            stretches.sizes,
            np.ascontiguousarray(boxes, dtype=np.int32),
            np.ascontiguousarray(orientations, dtype=np.uint8),
            np.ascontiguousarray(flips, dtype=np.uint8),
            pixels.numpy(),
            out.shape[2],
            mode == "fast",
            False,
            status,
        )
    return np.flatnonzero(status)
