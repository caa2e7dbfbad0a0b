"""Encoded bytes to augmented pixels on one CPU core."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from ..errors import SampleRejectedError
from .header import MAX_PIXELS, opened, orientation_of, read_header
from .reference import decode_rgb

__all__ = ["decode_into", "image_frame"]

_FAST_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive Huffman; not lossless, not arithmetic
_OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)


def decode_into(data: bytes, box: Any, flip: bool, out: torch.Tensor) -> None:
    """Decode, crop, resize (bilinear, antialiased) and flip one image into `out`.

    Ordinary JPEGs go through torchvision; everything else through `decode_rgb` and Pillow's resize. The two differ by
    0.03 of 255 on average. Releases the GIL while it decodes and resizes.

    torch copies and flips with its intra-op threads, and every calling thread gets a pool of its own: callers that
    decode in several threads or processes call `torch.set_num_threads(1)` in each of them first.

    Args:
        data: the encoded image.
        box: x, y, width, height in the EXIF-oriented frame, pixels.
        flip: mirror left and right after the crop.
        out: uint8 of shape (3, S, S'), any strides, on the CPU; fastest as one image of a channels-last batch.

    Raises:
        SampleRejectedError: the bytes do not decode, or the box does not lie within the picture.
    """
    x, y, width, height = (int(value) for value in box)
    pixels = _decode_fast(data)
    fast = pixels is not None
    if pixels is None:
        pixels = decode_rgb(data)
    if not (x >= 0 and y >= 0 and 0 < width <= pixels.shape[1] - x and 0 < height <= pixels.shape[0] - y):
        raise SampleRejectedError(
            "a crop box must lie within the picture",
            got=f"x={x} y={y} {width} x {height} in {pixels.shape[1]} x {pixels.shape[0]}",
            remedy="Check that the index belongs to these files.",
        )
    crop = np.ascontiguousarray(pixels[y : y + height, x : x + width])
    size = (out.shape[1], out.shape[2])
    if fast:
        # The memory layout must be channels-last down to the batch's stride, or torch takes a path twice as slow.
        batch = torch.from_numpy(crop).unsqueeze(0).permute(0, 3, 1, 2)
        resized = F.interpolate(batch, size, mode="bilinear", antialias=True)[0]
    else:
        small = Image.fromarray(crop).resize((size[1], size[0]), Image.Resampling.BILINEAR)
        resized = torch.from_numpy(np.array(small)).permute(2, 0, 1)
    out.copy_(resized.flip(-1) if flip else resized)


class ImageFrame(NamedTuple):
    """Width and height as encoded, pixels, and the EXIF orientation 1..8."""

    width: int
    height: int
    orientation: int


def image_frame(data: bytes) -> ImageFrame:
    """Size and orientation from the header: for index rows that lack them.

    Raises:
        SampleRejectedError: see `read_header`.
    """
    frame = _scan_jpeg(data)
    if frame is None:
        header = read_header(data)
        frame = ImageFrame(header.width, header.height, header.orientation)
    return frame


@cache
def _torchvision_decoder() -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Encoded bytes to uint8 (3, height, width) by torchvision; None where it has no such operator any more.

    Imported when first needed: it takes a second and 90 MB in each process, and with the C extension built no ordinary
    JPEG comes here.
    """
    from torchvision.io import ImageReadMode

    # The operator itself: from 0.29 on `torchvision.io.decode_jpeg` around every call warns that it will go. Where it
    # is gone, every image takes the reference path, which is right and slower.
    operator = getattr(torch.ops.image, "decode_jpeg", None)
    return None if operator is None else lambda encoded: operator(encoded, ImageReadMode.RGB.value, False)


def _decode_fast(data: bytes) -> np.ndarray | None:
    """Oriented uint8 (height, width, 3) by torchvision, or None where the reference path must decide."""
    frame = _scan_jpeg(data)
    decode = _torchvision_decoder() if frame is not None else None
    if frame is None or decode is None:
        return None
    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    try:
        decoded = decode(encoded)
    except RuntimeError:
        # libjpeg refused: Pillow's decoder is the one whose word counts.
        return None
    return _orient(decoded.permute(1, 2, 0).numpy(), frame.orientation)


def _orient(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """A view of the picture turned upright."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def _scan_jpeg(data: bytes) -> ImageFrame | None:
    """The frame of an 8-bit gray or three-component Huffman JPEG; None for anything else.

    Walks the markers up to the first scan. Metadata is given to Pillow only where it can hold an orientation.
    """
    if data[:2] != b"\xff\xd8":
        return None
    width = height = 0
    ask_pillow = False
    position, end = 2, len(data) - 4
    while position <= end:
        if data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        if marker == 0xDA:
            break
        length = (data[position + 2] << 8) | data[position + 3]
        segment = data[position + 4 : position + 2 + length]
        if marker in _FAST_FRAMES and len(segment) >= 6:
            height, width = (segment[1] << 8) | segment[2], (segment[3] << 8) | segment[4]
            if segment[0] != 8 or segment[5] not in (1, 3):
                return None
        elif marker in _OTHER_FRAMES:
            return None
        elif marker == 0xE1:
            ask_pillow = ask_pillow or any(tag in segment for tag in (b"\x01\x12", b"\x12\x01", b"tiff:Orientation"))
        position += 2 + length
    if not 0 < width * height <= MAX_PIXELS:
        return None
    if not ask_pillow:
        return ImageFrame(width, height, 1)
    with opened(data) as image:
        return ImageFrame(width, height, orientation_of(image, data)[0])
