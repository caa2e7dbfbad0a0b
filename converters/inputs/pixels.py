"""Pixels that are not encoded yet, encoded: arrays and Pillow images to PNG or JPEG bytes, the same ones each time."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from PIL import Image

from wellfed.pipeline.decode.reference import decode_rgb
from wellfed.pipeline.errors import SampleRejectedError, UsageError, words_of

_ENCODING = re.compile(r"png|jpeg:([1-9][0-9]?|100)")
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
_CONVERTED = {"La": "LA", "PA": "RGBA", "RGBa": "RGBA", "RGBX": "RGB", "CMYK": "RGB", "YCbCr": "RGB", "HSV": "RGB"}
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class PixelEncoding:
    """How pixels become bytes.

    PNG keeps 8-bit gray, RGB, alpha, palette and 16-bit gray exactly; the rest is converted to RGB first. JPEG gets
    the 8-bit RGB or gray picture (alpha on white, 16-bit divided by 257), with Pillow's 4:2:0 subsampling.

    Attributes:
        format: "png" or "jpeg".
        quality: of JPEG, 1 to 100; None for PNG.
    """

    format: Literal["png", "jpeg"]
    quality: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """From "png" or "jpeg:QUALITY". Raises UsageError for anything else."""
        match = _ENCODING.fullmatch(text)
        if match is None:
            raise UsageError(
                'the encoding must be "png" or "jpeg:QUALITY" with a quality from 1 to 100',
                got=text,
                remedy='Write "png" or, for example, "jpeg:95".',
            )
        return cls("jpeg", int(match[1])) if match[1] else cls("png", None)

    def encode(self, image: Image.Image) -> bytes:
        """The encoded picture, without metadata: the pixels as they are, whatever an EXIF orientation says.

        Raises:
            SampleRejectedError: no pixels, a kind of pixel without a stated range, or Pillow cannot encode it.
        """
        if not image.width or not image.height:
            raise SampleRejectedError("an image must have pixels", got=f"{image.width} x {image.height}")
        try:
            plain = _plain(image)
            if self.format == "png":
                return _saved(plain, "PNG")
            if plain.mode not in ("L", "RGB") or "transparency" in plain.info:
                plain = Image.fromarray(decode_rgb(_saved(plain, "PNG")))
            return _saved(plain, "JPEG", quality=self.quality)
        except SampleRejectedError:
            raise
        except Exception as error:
            raise SampleRejectedError("the pixels must be encodable", got=words_of(error)) from error


def image_of_array(array: np.ndarray, layout: Literal["CHW", "HWC"]) -> Image.Image:
    """A picture of an array of pixels.

    Args:
        array: uint8, float of 0..1, or uint16 gray; shape (H, W) or, with 1, 3 or 4 channels, (C, H, W) or (H, W, C).
        layout: what a shape means that could be both.

    Raises:
        SampleRejectedError: another shape, another dtype, or floats outside 0..1.
    """
    pixels = _bytes_of_floats(array) if array.dtype.kind == "f" else array
    if pixels.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)):
        raise SampleRejectedError(
            "pixels must be uint8, float from 0 to 1, or uint16 gray",
            got=str(array.dtype),
            remedy="Convert them in the dataset.",
        )
    if 0 in pixels.shape:
        raise SampleRejectedError("an image must have pixels", got=f"shape {array.shape}")
    if pixels.ndim == 3:
        first, last = pixels.shape[0] in _CHANNELS, pixels.shape[2] in _CHANNELS
        if not first and not last:
            raise SampleRejectedError("pixels must have 1, 3 or 4 channels", got=f"shape {array.shape}")
        if first and (layout == "CHW" or not last):
            pixels = pixels.transpose(1, 2, 0)
        if pixels.shape[2] == 1:
            pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.dtype == np.uint16):
        raise SampleRejectedError(
            "pixels must be a gray, RGB or RGBA picture (gray for uint16)", got=f"shape {array.shape}, {array.dtype}"
        )
    return Image.fromarray(np.ascontiguousarray(pixels))


def _bytes_of_floats(array: np.ndarray) -> np.ndarray:
    # Anything that rounds to 0..255 passes: resizing overshoots by a rounding error.
    scaled = np.rint(array.astype(np.float64) * 255)
    if scaled.size and not bool(((scaled >= 0) & (scaled <= 255)).all()):
        raise SampleRejectedError(
            "float pixels must lie between 0 and 1",
            got=f"{float(array.min()):g} to {float(array.max()):g}",
            remedy="Leave normalization to the training step.",
        )
    return scaled.astype(np.uint8)


def _plain(image: Image.Image) -> Image.Image:
    image.load()
    if image.mode == "I" or (image.mode.startswith("I;16") and image.mode != "I;16"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise SampleRejectedError(
                "integer pixels must lie between 0 and 65535", got=f"{values.min()} to {values.max()}"
            )
        return Image.fromarray(values.astype(np.uint16))
    if image.mode in _CONVERTED:
        return image.convert(_CONVERTED[image.mode])
    if image.mode not in _PNG_MODES:
        raise SampleRejectedError("pixels must have a stated range", got=f"Pillow's mode {image.mode}")
    plain = image.copy()
    # Profiles, comments and EXIF would be written too, in ways that differ with Pillow's version.
    plain.info = {"transparency": image.info["transparency"]} if "transparency" in image.info else {}
    return plain


def _saved(image: Image.Image, format_name: str, **arguments: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format_name, **arguments)
    return buffer.getvalue()
