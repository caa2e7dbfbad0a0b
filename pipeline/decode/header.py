"""What an image's header says, without decoding pixels: read by Pillow, or as Pillow reads it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import ExifTags, Image, UnidentifiedImageError

from ..errors import SampleRejectedError, words_of
from .jpegheader import plain_jpeg
from .metadata import is_whole_exif, is_whole_profile, is_whole_xmp

__all__ = ["EXTENSIONS", "MAX_PIXELS", "ImageHeader", "opened", "orientation_of", "read_header"]

EXTENSIONS = {
    "JPEG": "jpg",
    "MPO": "jpg",
    "PNG": "png",
    "WEBP": "webp",
    "GIF": "gif",
    "BMP": "bmp",
    "TIFF": "tif",
    "PPM": "ppm",
    "JPEG2000": "jp2",
    "AVIF": "avif",
    "ICO": "ico",
    "QOI": "qoi",
}
"""The formats that are read, by Pillow's name, and the extension a stored sample of each gets.

Left out are formats that start other programs (EPS), that have no signature (TGA, DIB), so that garbage would pass as
an image, and that hold no picture of their own.
"""

_OPENED = tuple(name for name in EXTENSIONS if name != "MPO")  # Pillow's JPEG reader finds MPO by itself

MAX_PIXELS = 178_956_970
"""Largest width x height that is decoded: twice Pillow's MAX_IMAGE_PIXELS, where Pillow itself raises."""

_SUPPORTED = ", ".join(sorted({*EXTENSIONS} - {"MPO"}))
_UNKNOWN_RANGE = ("F", "LAB")


@dataclass(frozen=True)
class ImageHeader:
    """What the header of an encoded image says.

    Attributes:
        format: Pillow's name ("JPEG").
        ext: extension for this content, lower-case, without its dot ("jpg").
        width: pixels, as encoded: before EXIF orientation.
        height: pixels, as encoded.
        orientation: EXIF 1..8; 1 where absent or invalid.
        mode: Pillow's mode of the first frame before conversion ("RGB", "L", "P", "CMYK", "I;16", ...).
        frames: pictures in the file.
        notes: what conversion counts: "grayscale", "exif_orientation", "cmyk", "sixteen_bit", "alpha", "palette",
            "animated", "multi_page", "broken_exif", "broken_icc", "broken_xmp".
    """

    format: str
    ext: str
    width: int
    height: int
    orientation: int
    mode: str
    frames: int
    notes: tuple[str, ...]


def read_header(data: bytes) -> ImageHeader:
    """Read what the header says.

    Raises:
        SampleRejectedError: empty, no image of a supported format, no pixels (0 x N), more than MAX_PIXELS, a kind of
            pixel that has no stated range (float, LAB), or a header that the decoder refuses.
    """
    if plain := plain_jpeg(data):
        width, height, mode = plain
        return ImageHeader("JPEG", "jpg", width, height, 1, mode, 1, ("grayscale",) if mode == "L" else ())
    with opened(data) as image:
        return _describe(image, data)


def _describe(image: Image.Image, data: bytes) -> ImageHeader:
    mode, name = image.mode, str(image.format)
    width, height = image.size
    sixteen_bit = mode.startswith("I") or _has_sixteen_bit_tiles(image)
    orientation, broken = orientation_of(image, data)
    if name == "TIFF":
        # Pillow gives a TIFF's size after orientation, or before it, depending on its version.
        width, height = int(image.tag_v2[256]), int(image.tag_v2[257])  # type: ignore[attr-defined]
    frames = _count_frames(image)
    notes = [
        note
        for note, holds in (
            ("grayscale", mode in ("1", "L", "LA", "La", "I", "F") or mode.startswith("I;16")),
            ("exif_orientation", orientation != 1),
            ("cmyk", mode == "CMYK"),
            ("sixteen_bit", sixteen_bit),
            ("alpha", mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info),
            ("palette", mode in ("P", "PA")),
            ("animated", frames > 1 and name not in ("TIFF", "MPO", "ICO")),
            ("multi_page", frames > 1 and name in ("TIFF", "MPO", "ICO")),
            ("broken_exif", broken or ("exif" in image.info and not is_whole_exif(image.info["exif"]))),
            ("broken_icc", "icc_profile" in image.info and not is_whole_profile(image.info["icc_profile"])),
            ("broken_xmp", "xmp" in image.info and not is_whole_xmp(image.info["xmp"])),
        )
        if holds
    ]
    return ImageHeader(name, EXTENSIONS[name], width, height, orientation, mode, frames, tuple(notes))


@contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """The image opened, its header checked; everything a decoder raises inside becomes a rejection.

    Raises:
        SampleRejectedError: see `read_header`; inside the block, with the decoder's own words.
    """
    if not data:
        raise SampleRejectedError("an image file must not be empty", got="0 bytes")
    try:
        with Image.open(io.BytesIO(data), formats=_OPENED) as image:
            _check(image)
            yield image
    except SampleRejectedError:
        raise
    except UnidentifiedImageError as error:
        if name := _named_by_signature(data):
            raise SampleRejectedError(
                "an image must have a header that its decoder reads, with a width and a height",
                got=f"{len(data)} bytes that begin as {name}",
            ) from error
        raise SampleRejectedError(
            f"a file must be an image of a supported format ({_SUPPORTED})",
            got=f"{len(data)} bytes starting with {bytes(data[:8])!r}",
        ) from error
    except Image.DecompressionBombError as error:
        raise SampleRejectedError(f"an image must have at most {MAX_PIXELS} pixels", got=str(error)) from error
    except Exception as error:
        # Decoders raise nearly any type on bad bytes (OSError, SyntaxError, struct.error, ZeroDivisionError, ...).
        raise SampleRejectedError("an image must decode", got=words_of(error)) from error


def _named_by_signature(data: bytes) -> str | None:
    """The format whose first bytes these are; Pillow's own tests, which say yes, no, or why not in words."""
    for name in _OPENED:
        accepts = Image.OPEN[name][1] if name in Image.OPEN else None
        if accepts is not None and accepts(data[:16]) is True:
            return name
    return None


def _check(image: Image.Image) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise SampleRejectedError("an image must have pixels", got=f"{width} x {height}")
    if width * height > MAX_PIXELS:
        raise SampleRejectedError(f"an image must have at most {MAX_PIXELS} pixels", got=f"{width} x {height}")
    if image.mode in _UNKNOWN_RANGE:
        raise SampleRejectedError(
            "an image's pixels must have a range that 8-bit RGB can hold (no float, no LAB)",
            got=f"mode {image.mode}",
            remedy="Convert it to 8 or 16 bit first.",
        )


def orientation_of(image: Image.Image, data: bytes) -> tuple[int, bool]:
    """EXIF orientation 1..8 as Pillow's `exif_transpose` sees it, and whether the metadata is broken."""
    # Pillow decodes a whole PNG to look for EXIF behind the pixels: only where a chunk of it can be there.
    if image.format == "PNG" and not any(mark in data for mark in (b"eXIf", b"profile type exif", b"com.adobe.xmp")):
        return 1, False
    if image.format == "PNG":
        image.load()
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:
        # Broken metadata leaves good pixels good; the caller counts the note.
        return 1, True
    if isinstance(value, int) and 1 <= value <= 8:
        return value, False
    return 1, True


def _count_frames(image: Image.Image) -> int:
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception:
        # Only the first frame is used: damage in a later one, met while counting, costs nothing.
        return 2


def _has_sixteen_bit_tiles(image: Image.Image) -> bool:
    tiles = getattr(image, "tile", None) or ()
    return any("16" in str(tile[3]) and "565" not in str(tile[3]) for tile in tiles) and image.format in ("PNG", "TIFF")
