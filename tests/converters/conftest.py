"""Small image folders, odd images of many kinds, and the bytes of what was published."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


def jpeg(seed: int, width: int = 40, height: int = 30) -> bytes:
    noise = random.Random(seed).randbytes(width * height * 3)
    buffer = io.BytesIO()
    Image.frombytes("RGB", (width, height), noise).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to themselves, conversion and verification start one worker: a test that wants more says so."""
    from wellfed.converters import checks, request
    from wellfed.pipeline.hardware import Fact

    for module in (request, checks):
        monkeypatch.setattr(module, "usable_cores", lambda: Fact("usable cores", 1, "cores", "test"))


@pytest.fixture
def make_jpeg() -> Callable[..., bytes]:
    """(seed, width, height) to the bytes of a JPEG of noise."""
    return jpeg


def write_photos(root: Path) -> Path:
    for label, name in enumerate("abc"):
        (root / name).mkdir(parents=True)
        for number in range(4):
            (root / name / f"{number}.jpg").write_bytes(jpeg(10 * label + number))
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes ("a", "b", "c") of four JPEGs each."""
    return write_photos(tmp_path / "photos")


@pytest.fixture(scope="module")
def module_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same photos for tests that only read them."""
    return write_photos(tmp_path_factory.mktemp("input") / "photos")


@pytest.fixture
def digests() -> Callable[[Path], dict[str, str]]:
    """A folder to the SHA-256 of each file in it, whatever the depth."""

    def of(folder: Path) -> dict[str, str]:
        found = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    return of


@pytest.fixture
def environment(repository: Path) -> dict[str, str]:
    """The environment of a child process that runs the checkout."""
    paths = [str(repository / ".typing"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


INTERRUPT = '''
"""Sends a signal to the conversion when it, or its worker, has done so many renames and removals of its files."""
import os, signal, sys

role, left, number = os.environ["TEST_INTERRUPT"].split(":")
left = int(left)
in_parent = sys.orig_argv[1:2] == ["-m"]

def hook(event, args):
    global left
    if event in ("os.rename", "os.remove") and b".wellfed-work" in os.fsencode(args[0]):
        left -= 1
        if left == 0:
            os.kill(os.getppid() if role == "parent-from-worker" else os.getpid(), int(number))
        if "TEST_COUNT" in os.environ:
            with open(os.environ["TEST_COUNT"], "a") as file:
                file.write("x")

if in_parent == (role == "parent"):
    mark = os.environ.get("TEST_ONCE")
    if mark is None or not os.path.exists(mark):
        if mark is not None:
            open(mark, "w").close()
        sys.addaudithook(hook)
'''


@pytest.fixture
def interrupt(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH: TEST_INTERRUPT="ROLE:N:SIGNAL" sends the signal at the N-th rename or removal.

    ROLE "parent" signals itself, "parent-from-worker" is signalled by its worker, "worker" signals itself. With
    TEST_ONCE=FILE only the first process does it, with TEST_COUNT=FILE each event adds a byte.
    """
    folder = tmp_path / "interrupt"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(INTERRUPT)
    return folder


_YCCK_JPEG = """
/9j/7gAOQWRvYmUAZAAAAAAC/9sAQwADAgIDAgIDAwMDBAMDBAUIBQUEBAUKBwcGCAwKDAwLCgsLDQ4SEA0OEQ4LCxAWEBETFBUVFQwPFxgWFBgS
FBUU/9sAQwEDBAQFBAUJBQUJFA0LDRQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU/8AAFAgAEAAYBAEi
AAIRAQMRAQQiAP/EAB8AAAEFAQEBAQEBAAAAAAAAAAABAgMEBQYHCAkKC//EALUQAAIBAwMCBAMFBQQEAAABfQECAwAEEQUSITFBBhNRYQcicRQy
gZGhCCNCscEVUtHwJDNicoIJChYXGBkaJSYnKCkqNDU2Nzg5OkNERUZHSElKU1RVVldYWVpjZGVmZ2hpanN0dXZ3eHl6g4SFhoeIiYqSk5SVlpeY
mZqio6Slpqeoqaqys7S1tre4ubrCw8TFxsfIycrS09TV1tfY2drh4uPk5ebn6Onq8fLz9PX29/j5+v/EAB8BAAMBAQEBAQEBAQEAAAAAAAABAgME
BQYHCAkKC//EALURAAIBAgQEAwQHBQQEAAECdwABAgMRBAUhMQYSQVEHYXETIjKBCBRCkaGxwQkjM1LwFWJy0QoWJDThJfEXGBkaJicoKSo1Njc4
OTpDREVGR0hJSlNUVVZXWFlaY2RlZmdoaWpzdHV2d3h5eoKDhIWGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW
19jZ2uLj5OXm5+jp6vLz9PX29/j5+v/aAA4EAQACEQMRBAAAPwD4o0T4X/d/c/pXoGifC/7v7n9K980T4X/d/dfpXoGifC/7v7r9K+Dx/Fu/vHzP
CPHPw++fpXRRRXgeifC/7v7n9KK+vNE+F/3f3X6UV8DX4t9/4j+uMq45/wBmXvhRRRX/2Q==
"""
_ARITHMETIC_JPEG = """
/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQERMUFRUVDA8XGBYU
GBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBT/yQARCAAQABgD
ASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AOgCyD+B1seuD3jkyPvV5Bq0P0SRThZOvM2Z+kVuXVMUyIVEOx7tLUysA4+Nv5A2
qDosEr5jE+eAtoXx14PTdlHHjf/Z
"""
"""Written by libjpeg-turbo (24 x 16; R, G, B or inverted C, M, Y, K in gradients): Pillow writes neither kind."""


def _png(width: int, height: int, depth: int, colour: int, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG chunk by chunk, for what Pillow does not write."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def _saved(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def _odd_files() -> dict[str, tuple[bytes, str]]:
    """Path to bytes and outcome, which is formats.md's."""
    y, x = np.mgrid[0:48, 0:64]
    photo = Image.fromarray(np.stack([4 * x, 5 * y, 255 - 2 * x - 2 * y], axis=2).astype(np.uint8))
    see_through = photo.copy()
    see_through.putalpha(Image.fromarray((4 * x).astype(np.uint8)))
    gray = photo.convert("L")
    deep = Image.fromarray((1000 * x + 20 * y).astype(np.uint16))
    frames = [photo.convert("P"), photo.rotate(180).convert("P")]
    baseline, plain_png = _saved(photo, "JPEG"), _saved(photo, "PNG")
    holes = [bytes([0]) + bytes([0, 1, 2, 3])] * 4
    palette = (b"PLTE", bytes([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9]))
    rgb16 = b"".join(b"\0" + struct.pack(">6H", 0, 65535, 257 * row, 514, 65535 - 257 * row, 0) for row in range(9))
    gray16 = b"".join(b"\0" + struct.pack(">3H", 0, 1000 * row, 65535) for row in range(9))
    made = {
        "jpeg/plain.jpg": (baseline, "stored jpg"),
        "jpeg/progressive.jpg": (_saved(photo, "JPEG", progressive=True), "stored jpg"),
        "jpeg/gray.jpg": (_saved(gray, "JPEG"), "stored jpg, grayscale"),
        "jpeg/cmyk.jpg": (_saved(photo.convert("CMYK"), "JPEG"), "stored jpg, cmyk"),
        "jpeg/ycck.jpg": (base64.b64decode(_YCCK_JPEG), "stored jpg, cmyk"),
        "jpeg/arithmetic.jpg": (base64.b64decode(_ARITHMETIC_JPEG), "stored jpg"),
        "jpeg/junk after the end.jpg": (baseline + b"\0" * 100, "stored jpg"),
        "jpeg/broken exif.jpg": (_saved(photo, "JPEG", exif=b"Exif\0\0II*\0garbage"), "stored jpg, broken_exif"),
        "jpeg/broken profile.jpg": (_saved(photo, "JPEG", icc_profile=b"no profile"), "stored jpg, broken_icc"),
        "jpeg/broken xmp.jpg": (_saved(photo, "JPEG", xmp=b"<x:xmpmeta><rdf>"), "stored jpg, broken_xmp"),
        "jpeg/truncated.jpg": (baseline[: len(baseline) // 2], "rejected: must decode"),
        "jpeg/header only.jpg": (baseline[: baseline.index(b"\xff\xda")], "rejected: must decode"),
        "jpeg/a\nline.JPEG": (baseline, "stored jpg"),
        "png/plain.png": (plain_png, "stored png"),
        "png/jpeg inside.png": (baseline, "stored jpg, extension_differs"),
        "png/palette.png": (_saved(frames[0], "PNG"), "stored png, palette"),
        "png/palette with alpha.png": (
            _png(4, 4, 8, 3, b"".join(holes), palette, (b"tRNS", bytes([255, 128, 0]))),
            "stored png, alpha palette",
        ),
        "png/gray with alpha.png": (_saved(see_through.convert("LA"), "PNG"), "stored png, grayscale alpha"),
        "png/rgba.png": (_saved(see_through, "PNG"), "stored png, alpha"),
        "png/gray16.png": (_saved(deep, "PNG"), "stored png, grayscale sixteen_bit"),
        "png/gray16 with a hole.png": (
            _png(3, 9, 16, 0, gray16, (b"tRNS", struct.pack(">H", 3000))),
            "stored png, grayscale sixteen_bit alpha",
        ),
        "png/rgb16.png": (_png(2, 9, 16, 2, rgb16), "stored png, sixteen_bit"),
        "png/one bit.png": (_saved(photo.convert("1"), "PNG"), "stored png, grayscale"),
        "png/animated.png": (
            _saved(see_through, "PNG", save_all=True, append_images=[see_through.rotate(180)]),
            "stored png, alpha animated",
        ),
        "png/truncated.png": (plain_png[: len(plain_png) // 2], "rejected: must decode"),
        "png/no width.png": (_png(0, 9, 8, 2, b""), "rejected: a width and a height"),
        "png/bomb.png": (_png(60_000, 60_000, 8, 0, b""), "rejected: at most 178956970 pixels"),
        "gif/plain.gif": (_saved(frames[0], "GIF"), "stored gif, palette"),
        "gif/animated.gif": (
            _saved(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=50),
            "stored gif, palette animated",
        ),
        "gif/with a hole.gif": (_saved(photo.quantize(8), "GIF", transparency=3), "stored gif, alpha palette"),
        "other/plain.bmp": (_saved(photo, "BMP"), "stored bmp"),
        "other/palette.bmp": (_saved(frames[0], "BMP"), "stored bmp, palette"),
        "other/pages.tif": (
            _saved(photo, "TIFF", save_all=True, append_images=[photo.rotate(180)]),
            "stored tif, multi_page",
        ),
        "other/cmyk.tiff": (_saved(photo.convert("CMYK"), "TIFF"), "stored tif, cmyk"),
        "other/gray16.tif": (_saved(deep, "TIFF"), "stored tif, grayscale sixteen_bit"),
        "other/float.tif": (_saved(gray.convert("F"), "TIFF"), "rejected: range that 8-bit RGB can hold"),
        "other/plain.webp": (_saved(photo, "WEBP", lossless=True), "stored webp"),
        "other/alpha.webp": (_saved(see_through, "WEBP", lossless=True), "stored webp, alpha"),
        "other/plain.ppm": (_saved(photo, "PPM"), "stored ppm"),
        "text/readme.jpg": (b"this is no image\n" * 20, "rejected: image of a supported format"),
        "text/nothing.jpg": (b"", "rejected: zero bytes"),
        "text/zeros.png": (bytes(5000), "rejected: image of a supported format"),
    }
    for orientation in range(10):
        exif = Image.Exif()
        exif[0x0112] = orientation
        note = "" if orientation == 1 else ", exif_orientation" if 2 <= orientation <= 8 else ", broken_exif"
        made[f"exif/{orientation}.jpg"] = (_saved(photo, "JPEG", exif=exif), f"stored jpg{note}")
    return made


@pytest.fixture(scope="session")
def made_odd_images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder of odd files of many kinds, and what must become of each; see `_odd_files`."""
    root, files = tmp_path_factory.mktemp("odd") / "images", _odd_files()
    for path, (data, _) in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root, {path: outcome for path, (_, outcome) in files.items()}
