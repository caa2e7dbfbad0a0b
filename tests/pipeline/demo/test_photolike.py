"""The demo's images: what they are, read back with Pillow."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from wellfed.pipeline.demo.photolike import make_photolike
from wellfed.pipeline.errors import UsageError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    make_photolike(root, count=26, classes=4, seed=3)
    return root


def test_images_are_spread_over_class_folders(made: Path) -> None:
    assert sorted(folder.name for folder in made.iterdir()) == ["class_00", "class_01", "class_02", "class_03"]
    assert [len(list(folder.iterdir())) for folder in sorted(made.iterdir())] == [7, 7, 6, 6]


def test_each_is_a_jpeg_of_80_to_140_kilobytes_about_as_large_as_a_web_photograph(made: Path) -> None:
    sizes = set()
    for path in sorted(made.rglob("*.jpg")):
        assert 80_000 <= path.stat().st_size <= 140_000
        with Image.open(path) as image:
            assert image.format == "JPEG"
            assert min(image.size) >= 300
            assert max(image.size) <= 500
            sizes.add(image.size)
            if image.mode == "RGB":
                assert JpegImagePlugin.get_sampling(image) == 2  # 4:2:0
    assert len(sizes) >= 3


def test_some_are_grayscale_and_some_progressive(made: Path) -> None:
    modes, progressive = [], []
    for path in sorted(made.rglob("*.jpg")):
        with Image.open(path) as image:
            modes.append(image.mode)
            progressive.append("progressive" in image.info)

    assert modes.count("L") == 1
    assert modes.count("RGB") == 25
    assert progressive.count(True) == 2


def test_the_spectrum_falls_as_one_over_f(made: Path) -> None:
    # Amplitude averaged over rings of frequency; natural images have a slope of -1 +- 0.3 in log-log.
    slopes = []
    for path in sorted(made.rglob("*.jpg"))[:8]:
        with Image.open(path) as image:
            luma = np.asarray(image.convert("L").crop((0, 0, 320, 320)), dtype=np.float64)
        window = np.hanning(320)[:, None] * np.hanning(320)[None, :]
        amplitude = np.abs(np.fft.fft2((luma - luma.mean()) * window))
        frequency = np.hypot(np.fft.fftfreq(320)[:, None], np.fft.fftfreq(320)[None, :])
        edges = np.geomspace(0.02, 0.3, 9)
        rings = [amplitude[(frequency >= a) & (frequency < b)].mean() for a, b in pairwise(edges)]
        slopes.append(np.polyfit(np.log(edges[:-1]), np.log(rings), 1)[0])

    assert -1.5 < np.mean(slopes) < -0.7


def test_the_same_arguments_make_the_same_bytes_and_another_seed_others(made: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    make_photolike(tmp_path / "again", count=4, classes=4, seed=3, progress=lambda done, of: seen.append((done, of)))
    make_photolike(tmp_path / "other", count=4, classes=4, seed=4)

    for path in sorted((tmp_path / "again").rglob("*.jpg")):
        name = path.relative_to(tmp_path / "again")
        assert path.read_bytes() == (made / name).read_bytes()
        assert path.read_bytes() != (tmp_path / "other" / name).read_bytes()
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(("count", "classes"), [(3, 4), (0, 0), (5, 0)])
def test_fewer_images_than_classes_are_refused(tmp_path: Path, count: int, classes: int) -> None:
    with pytest.raises(UsageError, match="at least one class"):
        make_photolike(tmp_path, count=count, classes=classes)
