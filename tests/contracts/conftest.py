"""The images that every loader backend and every input must read alike, in each kind of storage."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wellfed.converters.inputs import InputOptions
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


# Inputs: one builder for each kind, which puts the same twelve images where that kind of input finds them.

LabelledImage = tuple[str, str, bytes]
"""Class name, file name and encoded bytes."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a builder made.

    Attributes:
        location, options: for `list_input`.
        images: (class name, encoded bytes) of each sample that must come out; None for those that were given.
        detected: the kind is found without being told.
    """

    location: str
    options: InputOptions = field(default_factory=InputOptions)
    images: Sequence[tuple[str, bytes]] | None = None
    detected: bool = True


Builder = Callable[[Path, Sequence[LabelledImage]], Built]
BUILDERS: dict[str, Builder] = {}


def builds(kind: str) -> Callable[[Builder], Builder]:
    """Register the builder of a kind of input: (an empty folder, the images) to what it made."""

    def register(builder: Builder) -> Builder:
        BUILDERS[kind] = builder
        return builder

    return register


@builds("folder")
def build_folder(directory: Path, images: Sequence[LabelledImage]) -> Built:
    for class_name, name, data in images:
        (directory / class_name).mkdir(exist_ok=True)
        (directory / class_name / name).write_bytes(data)
    return Built(location=str(directory))


@builds("flat")
def build_flat(directory: Path, images: Sequence[LabelledImage]) -> Built:
    for class_name, name, data in images:
        (directory / f"{class_name}_{name}").write_bytes(data)
    return Built(location=str(directory), options=InputOptions(label_regex=r"^([a-z]+)_"))


@pytest.fixture(scope="session")
def twelve_images() -> Sequence[LabelledImage]:
    """Four images each of bird, cat and dog; JPEG but for one PNG in each class; all different."""
    rng = np.random.default_rng(8)
    made = []
    for number in range(12):
        class_name, extension = ("bird", "cat", "dog")[number % 3], "png" if number < 3 else "jpg"
        buffer = io.BytesIO()
        photo(rng, 24 + number, 20).save(buffer, "PNG" if extension == "png" else "JPEG")
        made.append((class_name, f"{number:02d}.{extension}", buffer.getvalue()))
    return made


@pytest.fixture(scope="session")
def input_builders() -> Mapping[str, Builder]:
    """Every builder, by kind."""
    return BUILDERS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `input_kind` runs for each kind that has a builder."""
    if "input_kind" in metafunc.fixturenames:
        metafunc.parametrize("input_kind", sorted(BUILDERS), scope="session")


@pytest.fixture(scope="session")
def built(
    input_kind: str, twelve_images: Sequence[LabelledImage], tmp_path_factory: pytest.TempPathFactory
) -> Built:
    """The twelve images as that kind of input."""
    directory = tmp_path_factory.mktemp(f"input-{input_kind}") / "source"
    directory.mkdir()
    made = BUILDERS[input_kind](directory, twelve_images)
    return replace(made, images=[(name, data) for name, _, data in twelve_images]) if made.images is None else made
