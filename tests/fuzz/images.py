"""The header reader, and decoding: Pillow's path and the C extension's."""

from __future__ import annotations

import hashlib
import io
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageCms

from wellfed.pipeline.decode.check import check_image
from wellfed.pipeline.decode.chunk import decode_chunk
from wellfed.pipeline.decode.cpu import image_frame
from wellfed.pipeline.decode.header import EXTENSIONS, MAX_PIXELS, read_header
from wellfed.pipeline.decode.jpegheader import plain_jpeg, plain_jpeg_in_python
from wellfed.pipeline.decode.reference import decode_rgb
from wellfed.pipeline.errors import SampleRejectedError

from .mutate import sum_png
from .target import MEBIBYTE, Case, Target

SIDE = 16
PHOTOSHOP = b"\xff\xed\0\x22Photoshop 3.0\0" + b"8BIM\x04\x04\0\0\0\0\0\x05abcde\0"
"""A segment with one of its resources."""
_MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("P",),
    "BMP": ("1", "L", "P", "RGB"),
    "TIFF": ("1", "L", "RGB", "CMYK", "I;16", "F"),
    "PPM": ("1", "L", "RGB"),
    "JPEG2000": ("L", "RGB"),
    "AVIF": ("RGB",),
    "ICO": ("RGBA",),
}


def encoded(name: str, mode: str = "RGB", **options: object) -> bytes:
    """A small picture."""
    values = np.random.default_rng(1).integers(0, 255, (12, 14, 3), np.uint8)
    picture = Image.fromarray(values)
    if mode == "I;16":
        picture = Image.fromarray(values[:, :, 0].astype(np.uint16) * 200)
    elif mode == "LA":
        picture = picture.convert("RGBA").convert("LA")
    else:
        picture = picture.convert(mode)
    buffer = io.BytesIO()
    picture.save(buffer, name, **options)
    return buffer.getvalue()


def seeds() -> list[Case]:
    """One small file of each format and mode that this Pillow writes, and of what is special."""
    exif = Image.Exif()
    exif[0x0112] = 6
    cases = []
    Image.init()
    for name, modes in _MODES.items():
        if name in Image.SAVE:
            cases += [(EXTENSIONS[name], encoded(name, mode)) for mode in modes]
    cases += [
        ("jpg", encoded("JPEG", exif=exif.tobytes())),
        ("jpg", encoded("JPEG", progressive=True)),
        ("jpg", encoded("JPEG", icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())),
        ("jpg", encoded("JPEG").replace(b"\xff\xdb", PHOTOSHOP + b"\xff\xdb", 1)),
        ("jpg", encoded("JPEG", "RGB", subsampling="4:2:0", restart_marker_blocks=1)),
        ("png", encoded("PNG", exif=exif.tobytes())),
        ("png", encoded("PNG", "P", transparency=0)),
        ("png", encoded("PNG", "L", transparency=7)),
        ("tif", encoded("TIFF", exif=exif.tobytes())),
        ("tif", encoded("TIFF", "I;16", compression="tiff_lzw")),
        ("gif", encoded("GIF", "P", save_all=True, append_images=[Image.new("P", (14, 12), 3)])),
        ("tif", encoded("TIFF", save_all=True, append_images=[Image.new("RGB", (14, 12), 3)])),
        (
            "qoi",
            b"qoif" + (3).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"\3\0" + b"\xfe\1\2\3" + b"\xc4" + bytes(8),
        ),
        ("png", b""),
    ]
    return cases


def repair(rng: random.Random, slot: str, data: bytes) -> bytes:
    """Most PNGs get right sums: otherwise damage is never looked at."""
    return sum_png(data) if slot == "png" and rng.random() < 0.8 else data


def read(slot: str, data: bytes, folder: Path) -> None:
    """The header, and what it promises."""
    # The reader in Python has the lines that are counted; where the extension is built, the one in C is asked instead.
    assert plain_jpeg_in_python(data) == plain_jpeg(data)
    header = read_header(data)
    assert header.width >= 1
    assert header.height >= 1
    assert header.width * header.height <= MAX_PIXELS
    assert 1 <= header.orientation <= 8
    assert header.ext == EXTENSIONS[header.format]
    assert header.frames >= 1
    assert header.mode not in ("F", "LAB")


def decode(slot: str, data: bytes, folder: Path) -> None:
    """All of the decoders, each with the whole picture as its box, then with a box that the bytes choose."""
    torch.set_num_threads(1)
    chosen = np.frombuffer(hashlib.sha256(data).digest(), np.int32)
    boxes = np.array([chosen[:4], chosen[4:8], [0, 0, 1, 1]], np.int32)
    try:
        header = check_image(data, "decode")
    except SampleRejectedError:
        header = None
    if header is not None:
        pixels = decode_rgb(data)
        turned = header.orientation >= 5
        assert pixels.shape[:2] == ((header.width, header.height) if turned else (header.height, header.width))
        assert pixels.dtype == np.uint8
        boxes[0] = 0, 0, pixels.shape[1], pixels.shape[0]
    try:
        frame = image_frame(data)
    except SampleRejectedError:
        frame = None
    orientation = frame.orientation if frame is not None else 1
    out = torch.zeros((3, SIDE, SIDE, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    orientations = np.array([orientation, orientation, 1 + int(chosen[5]) % 8], np.uint8)
    failures = decode_chunk([data] * 3, boxes, orientations, np.array([False, True, False]), out)
    assert header is None or 0 not in failures, failures


TARGETS = (
    Target(
        name="header",
        run=read,
        seeds=seeds,
        modules=("wellfed.pipeline.decode.header", "wellfed.pipeline.decode.jpegheader"),
        words=(b"\xff\xc0", b"\xff\xc2", b"\xff\xe1", b"Exif\0\0", b"IHDR", b"eXIf", b"acTL", b"II*\0", b"MM\0*"),
        repair=repair,
        # A PNG is decoded to look for EXIF behind its pixels, and MAX_PIXELS of them may be there.
        memory=1024 * MEBIBYTE,
    ),
    Target(
        name="decode",
        run=decode,
        seeds=seeds,
        modules=(
            "wellfed.pipeline.decode.check",
            "wellfed.pipeline.decode.chunk",
            "wellfed.pipeline.decode.cpu",
            "wellfed.pipeline.decode.reference",
        ),
        functions=("check_image", "decode_chunk", "decode_into", "image_frame", "_", "decode_rgb"),
        words=(b"\xff\xc0", b"\xff\xc4", b"\xff\xda", b"\xff\xdd", b"\xff\xd9", b"\xff\xe1", b"Exif\0\0", b"tRNS"),
        repair=repair,
        # MAX_PIXELS as RGB, and the decoder's copies of them; decoded half a dozen times, at 1 to 3 s each.
        memory=2560 * MEBIBYTE,
        cpu=30,
    ),
)
