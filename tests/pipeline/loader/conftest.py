"""A small folder of images, and loaders over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wellfed.pipeline.config import LoaderConfig, LoaderSettings
from wellfed.pipeline.loader import DataLoader


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """11 JPEGs of 40x30 in 2 classes; sample k is of gray 20 * k, so pixels tell which it is."""
    root = tmp_path_factory.mktemp("loader") / "grays"
    for number in range(11):
        folder = root / ("first" if number < 6 else "second")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.full((30, 40, 3), 20 * number, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.jpg", quality=95)
    return root


@pytest.fixture
def open_loader(image_folder: Path) -> Any:
    """DataLoader over the folder with small images; closed after the test."""
    opened: list[Any] = []

    def make(**options: Any) -> Any:
        loader = DataLoader(image_folder, **{"batch_size": 4, "image_size": 8, "num_workers": 0, **options})
        opened.append(loader)
        return loader

    yield make
    for loader in opened:
        loader.close()


@pytest.fixture(scope="session")
def make_config() -> Callable[..., LoaderConfig]:
    """A LoaderConfig from keywords of settings and of the configuration alike."""
    known = {"backend", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "batch_size"}

    def make(**options: Any) -> LoaderConfig:
        settings = {name: options.pop(name) for name in known & set(options)}
        return LoaderConfig(settings=LoaderSettings(**settings), **options)

    return make
