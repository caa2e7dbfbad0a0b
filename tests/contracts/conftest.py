"""The images that every loader backend must read alike, as a folder, as WebDataset and as LMDB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wellfed.converters.run import convert


def photo(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Smooth blobs with a little detail: decoders must not differ by what JPEG does to noise."""
    coarse = Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    detail = rng.integers(-6, 7, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(coarse).astype(int) + detail, 0, 255).astype(np.uint8))


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 images of mixed sizes in 3 classes; among them grayscale, progressive, PNG, rotated by EXIF, and CMYK."""
    root = tmp_path_factory.mktemp("images") / "photos"
    rng = np.random.default_rng(5)
    for number in range(23):
        folder = root / ("bird", "cat", "dog")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        image = photo(rng, int(rng.integers(50, 150)), int(rng.integers(50, 150)))
        path = folder / f"photo {number:02d}.jpg"
        if number == 4:
            image.convert("L").save(path, quality=90)
        elif number == 7:
            image.save(path, quality=90, progressive=True)
        elif number == 10:
            image.save(path.with_suffix(".png"))
        elif number == 13:
            exif = Image.Exif()
            exif[0x0112] = 6
            image.save(path, quality=90, exif=exif)
        elif number == 16:
            image.convert("CMYK").save(path, quality=90)
        else:
            image.save(path, quality=90)
    return root


@pytest.fixture(scope="session")
def datasets(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same images in each kind of storage."""
    made = {"folder": image_folder}
    for kind in ("webdataset", "lmdb"):
        made[kind] = tmp_path_factory.mktemp(kind) / "photos"
        convert(image_folder, made[kind], output=kind, workers=1)
    return made
