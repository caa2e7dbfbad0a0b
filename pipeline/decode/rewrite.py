"""Images made smaller or easier to decode while a dataset is stored: baseline JPEG without loss, or resized."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import dataclass

import PIL
from PIL import Image

from .check import CheckLevel, check_image, refuse_many_scans
from .extension import native as _native
from .header import ImageHeader, read_header
from .jpegmarkers import BASELINE, count_scans, frame_kind
from .reference import decode_rgb

__all__ = ["HEADROOM", "Rewritten", "can_rewrite_baseline", "resize_encoder", "to_baseline", "to_resized"]

HEADROOM = 3
"""libjpeg may halve, quarter or eighth a picture while decoding where it stays this many times as large as the result.

With 3, files of photographs (quality 90) lie 4.344 of 255 from the pictures resized exactly to a shorter side of 32,
where Pillow's own files lie 4.336 from them; at 64, 3.432 and 3.417. With 1 in its place: 4.656 and 3.907.
"""

_LONGEST_JPEG = 65_500
_LONGEST_NATIVE = 16_384


@dataclass(frozen=True)
class Rewritten:
    """An image as it is to be stored.

    Attributes:
        data: the source's own bytes where nothing was to be changed.
        header: of `data`; its notes are the source's, with what was done: "made_baseline" or "not_baseline", "resized"
            or "not_resized".
        source: the header of the source.
    """

    data: bytes
    header: ImageHeader
    source: ImageHeader


def can_rewrite_baseline() -> bool:
    """Whether `to_baseline` works here: only the C extension copies coefficients."""
    return _native is not None


def resize_encoder() -> str:
    """What `to_resized` encodes with: equal sources give equal bytes only with the same."""
    library = "" if _native is None else f"{_native.LIBRARY}, "
    return f"{library}Pillow {PIL.__version__}"


def to_baseline(data: bytes, level: CheckLevel) -> Rewritten:
    """Rewrite a JPEG as one scan of baseline Huffman coding by copying its coefficients: equal pixels, all metadata.

    Bytes stay as they are, and are checked to the level, where they are no JPEG or are baseline in one scan already.
    They stay as well, with the note "not_baseline", where several pictures lie in one file (MPO) and where baseline
    cannot hold the picture (lossless; quantization of more than 8 bit; more than 10 blocks in an MCU).

    Raises:
        SampleRejectedError: see `check_image`; a JPEG that is rewritten is decoded to its end, whatever the level.
    """
    header = read_header(data)
    if header.format not in ("JPEG", "MPO"):
        return _kept(data, level)
    if frame_kind(data) == BASELINE and count_scans(data) == 1:
        return _kept(data, level)
    if header.frames == 1 and _native is not None:
        status, warnings, _, baseline = _native.baseline(data)
        if status == 0 and baseline is not None and frame_kind(baseline) == BASELINE:
            done = _noted(header, *(("decoder_warnings",) if warnings else ()), "made_baseline")
            return Rewritten(baseline, done, header)
    return _kept(data, "decode", "not_baseline")


def to_resized(data: bytes, *, side: int, quality: int, level: CheckLevel) -> Rewritten:
    """Resize an image so that its shorter side is `side` pixels, as a baseline JPEG (4:2:0) of that quality.

    The normative picture (see `decode_rgb`) is reduced with Pillow's antialiased triangle filter (BILINEAR) and
    rounded to the nearest size of the same shape. EXIF orientation is applied to the pixels; metadata is not kept.
    Gray stays gray. JPEGs are decoded once, by the C extension where it is built (those with damage that it works
    around may be decoded twice): but for `HEADROOM`, its pixels differ from Pillow's by rounding.

    A picture whose shorter side is no longer than that is never enlarged: its bytes stay, with the note "not_resized",
    and are checked to the level. So do those of one that would be longer than a JPEG can be.

    Raises:
        SampleRejectedError: see `check_image`; what is resized is decoded to its end, whatever the level.
    """
    header = read_header(data)
    width, height = header.width, header.height
    if header.orientation >= 5:
        width, height = height, width
    size = resized_size(width, height, side)
    if min(width, height) <= side or max(size) > _LONGEST_JPEG:
        return _kept(data, level, "not_resized")
    gray = "grayscale" in header.notes
    resized, warnings = None, 0
    if _native is not None and header.format in ("JPEG", "MPO") and max(size) <= _LONGEST_NATIVE:
        _, warnings, _, resized = _native.resize(data, header.orientation, *size, HEADROOM, quality, gray)
    if resized is None:
        warnings = 0
        resized = _resized_by_pillow(data, header, size, quality)
    notes = (*header.notes, *(("decoder_warnings",) if warnings else ()), "resized")
    done = ImageHeader("JPEG", "jpg", *size, orientation=1, mode="L" if gray else "RGB", frames=1, notes=notes)
    return Rewritten(resized, done, header)


def resized_size(width: int, height: int, side: int) -> tuple[int, int]:
    """Width and height with a shorter side of `side`, the other one rounded to the nearest, halves up."""
    shorter = min(width, height)
    return (2 * width * side + shorter) // (2 * shorter), (2 * height * side + shorter) // (2 * shorter)


def _resized_by_pillow(data: bytes, header: ImageHeader, size: tuple[int, int], quality: int) -> bytes:
    if header.format in ("JPEG", "MPO"):
        refuse_many_scans(data)
    pixels = decode_rgb(data)
    image = Image.fromarray(pixels[:, :, 0] if "grayscale" in header.notes else pixels)
    buffer = io.BytesIO()
    image.resize(size, Image.Resampling.BILINEAR).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _kept(data: bytes, level: CheckLevel, *notes: str) -> Rewritten:
    header = check_image(data, level)
    return Rewritten(data, _noted(header, *notes), header)


def _noted(header: ImageHeader, *notes: str) -> ImageHeader:
    return dataclasses.replace(header, notes=(*header.notes, *notes))
