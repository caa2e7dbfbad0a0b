"""Small images of every kind, made with Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

Encode = Callable[..., bytes]


@pytest.fixture(scope="session")
def picture() -> np.ndarray:
    """uint8 (48, 64, 3): smooth gradients with an edge, different in every corner."""
    y, x = np.mgrid[0:48, 0:64]
    red, green = 4 * x, 5 * y
    blue = np.where((x - 20) ** 2 + (y - 30) ** 2 < 150, 220, 40)
    return np.stack([red, green, blue], axis=2).astype(np.uint8)


@pytest.fixture(scope="session")
def encode(picture: np.ndarray) -> Encode:
    """encode(format, mode="RGB", orientation=None, **save options) -> the picture's bytes."""

    def _encode(form: str, mode: str = "RGB", orientation: int | None = None, **options: Any) -> bytes:
        image = Image.fromarray(picture).convert(mode)
        if mode in ("LA", "RGBA"):
            image.putalpha(Image.fromarray(picture[:, :, 0]))
        if orientation is not None:
            exif = Image.Exif()
            exif[0x0112] = orientation
            options["exif"] = exif
        buffer = io.BytesIO()
        image.save(buffer, form, **options)
        return buffer.getvalue()

    return _encode
