"""How peers turn bytes into pixels, for those that leave it to the user: a crop box goes in, so that pixels compare.

A draw is a function of the picture's height and width that gives (top, left, height, width, flip). Each decoder takes
(bytes, draw) and gives uint8 of SIZE x SIZE, channels first or last.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

SIZE = 224
AREA, RATIO, ATTEMPTS = (0.08, 1.0), (3 / 4, 4 / 3), 10

Box = tuple[int, int, int, int, bool]
Draw = Callable[[int, int], Box]
Decoder = Callable[[bytes, Draw], Any]


def random_draw(height: int, width: int) -> Box:
    """torchvision's RandomResizedCrop and a flip with probability 1/2, without its tensors of one element."""
    flip = random.random() < 0.5
    for _ in range(ATTEMPTS):
        area = height * width * random.uniform(*AREA)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w, flip
    h = min(height, round(width / RATIO[0]))
    w = min(width, round(height * RATIO[1]))
    return (height - h) // 2, (width - w) // 2, h, w, flip


def _torchvision() -> Decoder:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2 import functional

    def decode(data: bytes, draw: Draw) -> Any:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        image = decode_jpeg(encoded, mode=ImageReadMode.RGB)
        top, left, height, width, flip = draw(image.shape[1], image.shape[2])
        image = functional.resized_crop(image, top, left, height, width, [SIZE, SIZE], antialias=True)
        return functional.horizontal_flip(image) if flip else image

    return decode


def _simplejpeg() -> Decoder:
    import cv2
    import simplejpeg
    import torch

    cv2.setNumThreads(0)

    def decode(data: bytes, draw: Draw) -> Any:
        full_height, full_width, _, _ = simplejpeg.decode_jpeg_header(data)
        top, left, height, width, flip = draw(full_height, full_width)
        # Scaled while decoding, where the crop stays as large as the result.
        image = simplejpeg.decode_jpeg(
            data,
            "RGB",
            min_height=math.ceil(full_height * SIZE / height),
            min_width=math.ceil(full_width * SIZE / width),
            min_factor=1,
        )
        down, across = image.shape[0] / full_height, image.shape[1] / full_width
        top, left = int(top * down), int(left * across)
        height, width = max(1, round(height * down)), max(1, round(width * across))
        filtered = cv2.INTER_AREA if height > SIZE or width > SIZE else cv2.INTER_LINEAR
        image = cv2.resize(image[top : top + height, left : left + width], (SIZE, SIZE), interpolation=filtered)
        return torch.from_numpy(cv2.flip(image, 1) if flip else image)

    return decode


def _pillow() -> Decoder:
    from PIL import Image
    from torchvision.transforms.v2 import functional

    def decode(data: bytes, draw: Draw) -> Any:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        top, left, height, width, flip = draw(image.height, image.width)
        image = functional.resized_crop(image, top, left, height, width, [SIZE, SIZE], antialias=True)
        return functional.pil_to_tensor(functional.horizontal_flip(image) if flip else image)

    return decode


DECODERS: dict[str, Callable[[], Decoder]] = {
    "torchvision": _torchvision,
    "simplejpeg": _simplejpeg,
    "pillow": _pillow,
}


def reference(data: bytes, box: Box, *, oriented: bool = False) -> np.ndarray:
    """Pillow's crop, bilinear resize (which filters when it shrinks) and flip; uint8 (SIZE, SIZE, 3).

    Args:
        oriented: turn the picture as its EXIF data say before cropping.
    """
    from PIL import Image, ImageOps

    top, left, height, width, flip = box
    image: Image.Image = Image.open(io.BytesIO(data))
    image = (ImageOps.exif_transpose(image) if oriented else image).convert("RGB")
    image = image.crop((left, top, left + width, top + height)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.asarray(ImageOps.mirror(image) if flip else image)
