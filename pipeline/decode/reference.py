"""The one normative picture of an encoded image: what every backend's pixels are compared with."""

from __future__ import annotations

import numpy as np
from PIL import Image

from ..errors import SampleRejectedError
from .header import opened, orientation_of

__all__ = ["decode_rgb"]

_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_rgb(data: bytes) -> np.ndarray:
    """Decode the first frame to 8-bit RGB, EXIF orientation applied once.

    Grayscale is repeated, CMYK and YCCK go through Pillow's conversion, 16-bit gray is divided by 257 (never clipped),
    alpha and transparent palette entries are composed on white.

    Returns:
        uint8 of shape (height, width, 3).

    Raises:
        SampleRejectedError: the bytes do not decode; see `read_header` for the rest.
    """
    with opened(data) as image:
        orientation, _ = orientation_of(image, data)
        image.load()
        rgb = _to_rgb(image)
        # Pillow turns a TIFF by itself while loading.
        transpose = None if image.format == "TIFF" else _TRANSPOSES.get(orientation)
        return np.asarray(rgb if transpose is None else rgb.transpose(transpose))


def _to_rgb(image: Image.Image) -> Image.Image:
    transparent = "transparency" in image.info
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _sixteen_bit_to_rgb(image)
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or transparent:
        rgba = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _sixteen_bit_to_rgb(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise SampleRejectedError(
            "integer pixels must lie between 0 and 65535",
            got=f"{values.min()} to {values.max()}",
            remedy="Convert it to 8 or 16 bit first.",
        )
    gray = ((values + 128) // 257).astype(np.uint8)
    see_through = image.info.get("transparency")
    if isinstance(see_through, int):
        gray[values == see_through] = 255
    return Image.fromarray(gray).convert("RGB")
