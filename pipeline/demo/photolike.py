"""Make JPEGs that cost a decoder what photographs cost, so that a demo needs no download.

A picture is a 1/f luminance spectrum (Field, JOSA A 1987: natural images' amplitude falls as 1/f) inside regions cut
by smooth masks, which give it edges; colours follow the luminance with slow drifts, as in photographs; and a little
sensor noise. Quality is searched for each file, so that bytes a pixel are those of web photographs.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from ..errors import UsageError

__all__ = ["make_photolike"]

_SIZES = ((500, 375), (500, 375), (500, 375), (500, 333), (500, 400), (375, 500), (333, 500), (440, 440))
_GRAY_EVERY, _PROGRESSIVE_EVERY = 25, 12
_NOISE_SHIFT = 9973
_BYTES_PER_PIXEL, _LEAST_BYTES, _MOST_BYTES = 0.60, 88_000, 130_000
_FIRST_QUALITY, _QUALITIES, _TRIES, _CLOSE = 93, (50, 97), 4, 0.08


def make_photolike(
    root: Path,
    *,
    count: int = 300,
    classes: int = 10,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write `root/class_NN/photo_NNNNN.jpg`: photo-like JPEGs of mixed sizes, 80-140 KB, 4:2:0.

    Every 25th is grayscale and every 12th progressive. The same arguments give the same pictures.

    Args:
        root: made where missing; files of the same names are replaced.
        count: images in all, spread evenly over the classes.
        seed: of everything random.
        progress: called with (done, count) after each image.

    Raises:
        UsageError: fewer than one class, or fewer images than classes.
    """
    if classes < 1 or count < classes:
        raise UsageError(
            "a demo set needs at least one class and one image for each",
            got=f"{count} images, {classes} classes",
            remedy="Ask for more images.",
        )
    for number in range(count):
        label = number % classes
        folder = root / f"class_{label:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        generator = np.random.default_rng((seed, number))
        pixels = _picture(generator, _SIZES[int(generator.integers(len(_SIZES)))], hue=label / classes)
        image = Image.fromarray(pixels)
        if number % _GRAY_EVERY == _GRAY_EVERY - 1:
            image = image.convert("L")
        progressive = number % _PROGRESSIVE_EVERY == _PROGRESSIVE_EVERY - 1
        (folder / f"photo_{number:05d}.jpg").write_bytes(_encode(image, generator, progressive=progressive))
        if progress is not None:
            progress(number + 1, count)


def _picture(generator: np.random.Generator, size: tuple[int, int], *, hue: float) -> np.ndarray:
    """uint8 RGB of shape (height, width, 3)."""
    width, height = size
    detail = _one_over_f(generator, height, width)
    # Three smooth masks cut the frame into up to eight regions, each with its own brightness, texture and colour.
    region = np.zeros((height, width), dtype=np.int64)
    for bit in range(3):
        region |= (_smooth(generator, height, width, cells=4 + 2 * bit) > 0).astype(np.int64) << bit
    angle = 2 * np.pi * (hue + generator.normal(0, 0.08, 8))
    strength = generator.uniform(4, 34, 8)
    looks = np.stack(
        [
            generator.uniform(50, 205, 8),
            generator.uniform(14, 48, 8),
            strength * np.cos(angle),
            strength * np.sin(angle),
        ],
        axis=1,
    ).astype(np.float32)
    brightness, texture, blue, red = (np.take(look, region) for look in np.ascontiguousarray(looks.T))
    luma = brightness + texture * detail + 18 * _smooth(generator, height, width, cells=3)
    blue = blue + 7 * _smooth(generator, height, width, cells=12)
    red = red + 7 * _smooth(generator, height, width, cells=12)
    # Colour differences to RGB by the weights of JPEG's YCbCr (ITU-T T.871).
    channels = (luma + 1.402 * red, luma - 0.344 * blue - 0.714 * red, luma + 1.772 * blue)
    # One run of noise, shifted for each channel: as good as three, and a third of the time.
    noise = 3.0 * generator.standard_normal(height * width + 2 * _NOISE_SHIFT, dtype=np.float32) + 0.5
    planes = np.empty((height, width, 3), dtype=np.uint8)
    for number, channel in enumerate(channels):
        start = number * _NOISE_SHIFT
        noisy = channel + noise[start : start + height * width].reshape(height, width)
        planes[:, :, number] = np.clip(noisy, 0, 255)
    return planes


def _one_over_f(generator: np.random.Generator, height: int, width: int) -> np.ndarray:
    """float32 noise of unit variance whose amplitude falls as 1/f."""
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    frequency = np.sqrt(rows**2 + columns**2)
    frequency[0, 0] = np.inf
    shape = frequency.shape
    parts = generator.standard_normal((2, *shape), dtype=np.float32) / frequency.astype(np.float32)
    spectrum = parts[0] + np.complex64(1j) * parts[1]
    noise = np.fft.irfft2(spectrum, s=(height, width))
    return (noise / noise.std()).astype(np.float32)


def _smooth(generator: np.random.Generator, height: int, width: int, *, cells: int) -> np.ndarray:
    """float32 noise without detail finer than a cell: a small random grid, enlarged."""
    grid = Image.fromarray(generator.standard_normal((cells, cells), dtype=np.float32))
    return np.asarray(grid.resize((width, height), Image.Resampling.BICUBIC))


def _encode(image: Image.Image, generator: np.random.Generator, *, progressive: bool) -> bytes:
    """A JPEG of about the bytes that a photograph of these pixels has."""
    wanted = image.width * image.height * _BYTES_PER_PIXEL * float(generator.uniform(0.8, 1.2))
    wanted = min(max(wanted, _LEAST_BYTES), _MOST_BYTES)
    quality, sizes = _FIRST_QUALITY, {}
    for _ in range(_TRIES):
        sizes[quality] = len(_jpeg(image, quality))
        if abs(sizes[quality] / wanted - 1) < _CLOSE:
            break
        # libjpeg divides coefficients by 200 - 2 x quality (in percent); bytes fall with about its power -0.6.
        step = (200 - 2 * quality) * (sizes[quality] / wanted) ** (1 / 0.6)
        quality = round(min(max((200 - step) / 2, _QUALITIES[0]), _QUALITIES[1]))
        if quality in sizes:
            break
    best = min(sizes, key=lambda tried: abs(sizes[tried] - wanted))
    data = _jpeg(image, best, progressive=progressive)
    # One step of quality can be worth a fifth of the bytes where noise is quantised to nothing.
    while len(data) < _LEAST_BYTES * 0.94 and best < _QUALITIES[1]:
        best += 1
        data = _jpeg(image, best, progressive=progressive)
    return data


def _jpeg(image: Image.Image, quality: int, *, progressive: bool = False) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, progressive=progressive, subsampling="4:2:0")
    return buffer.getvalue()
