"""What headers say, for images made here with known answers."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageFile

from wellfed.pipeline.decode.check import check_image
from wellfed.pipeline.decode.header import read_header
from wellfed.pipeline.errors import SampleRejectedError


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims this size and holds hardly any data."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("form", "mode", "ext", "notes"),
    [
        ("JPEG", "RGB", "jpg", ()),
        ("JPEG", "L", "jpg", ("grayscale",)),
        ("JPEG", "CMYK", "jpg", ("cmyk",)),
        ("PNG", "RGB", "png", ()),
        ("PNG", "RGBA", "png", ("alpha",)),
        ("PNG", "LA", "png", ("grayscale", "alpha")),
        ("PNG", "P", "png", ("palette",)),
        ("PNG", "1", "png", ("grayscale",)),
        ("PNG", "I;16", "png", ("grayscale", "sixteen_bit")),
        ("WEBP", "RGB", "webp", ()),
        ("WEBP", "RGBA", "webp", ("alpha",)),
        ("GIF", "P", "gif", ("palette",)),
        ("BMP", "RGB", "bmp", ()),
        ("TIFF", "RGB", "tif", ()),
        ("PPM", "RGB", "ppm", ()),
    ],
)
def test_facts_of_each_format(
    encode: Callable[..., bytes], form: str, mode: str, ext: str, notes: tuple[str, ...]
) -> None:
    header = read_header(encode(form, mode))

    assert (header.format, header.ext, header.width, header.height) == (form, ext, 64, 48)
    assert (header.orientation, header.frames, header.notes) == (1, 1, notes)
    # Pillow before 11 calls 16-bit gray "I".
    assert header.mode in ((mode, "I") if mode == "I;16" else (mode,))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(2, 9))
def test_orientation_is_read_and_the_size_stays_as_encoded(
    encode: Callable[..., bytes], form: str, orientation: int
) -> None:
    header = read_header(encode(form, orientation=orientation))

    assert (header.width, header.height, header.orientation) == (64, 48, orientation)
    assert header.notes == ("exif_orientation",)


def test_an_orientation_outside_1_to_8_counts_as_broken_exif(encode: Callable[..., bytes]) -> None:
    for value in (0, 9):
        header = read_header(encode("JPEG", orientation=value))

        assert (header.orientation, header.notes) == (1, ("broken_exif",))


def test_broken_exif_keeps_the_pixels(encode: Callable[..., bytes]) -> None:
    data = encode("JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff" + b"\xff" * 20)

    header = check_image(data, "decode")

    assert header.orientation == 1


def test_an_animation_is_counted_and_noted() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])

    header = read_header(buffer.getvalue())

    assert header.frames == 3
    assert "animated" in header.notes


def test_pages_of_a_tiff_are_noted() -> None:
    buffer = io.BytesIO()
    page = Image.new("RGB", (8, 8))
    page.save(buffer, "TIFF", save_all=True, append_images=[page])

    header = read_header(buffer.getvalue())

    assert (header.frames, header.notes) == (2, ("multi_page",))


def test_the_extension_follows_the_content_whatever_the_name_was(encode: Callable[..., bytes]) -> None:
    assert read_header(encode("PNG")).ext == "png"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "must not be empty"),
        (b"just some text, named .jpg", "supported format"),
        (b"\0" * 5000, "supported format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "supported format"),
        (b"\xff\xd8\xff", "header that its decoder reads.*begin as JPEG"),
        (png_header(0, 10), "a width and a height.*begin as PNG"),
        (png_header(60_000, 60_000), "at most 178956970 pixels"),
        (b"P6 0 5 255\n", "a width and a height.*begin as PPM"),
    ],
    ids=["empty", "text", "zeros", "eps", "stub", "0xN", "bomb", "ppm-0xN"],
)
def test_what_is_no_image_is_rejected_with_the_reason(data: bytes, reason: str) -> None:
    for level in ("header", "decode"):
        with pytest.raises(SampleRejectedError, match=reason):
            check_image(data, level)  # type: ignore[arg-type]


def test_our_own_limit_holds_where_pillows_was_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)

    with pytest.raises(SampleRejectedError, match="at most 178956970 pixels; got 60000 x 60000"):
        read_header(png_header(60_000, 60_000))


def test_float_pixels_are_rejected() -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(buffer, "TIFF")

    with pytest.raises(SampleRejectedError, match="no float"):
        read_header(buffer.getvalue())


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_file_cut_in_half_passes_the_header_at_most_and_never_the_decode(
    encode: Callable[..., bytes], form: str
) -> None:
    data = encode(form)

    with pytest.raises(SampleRejectedError):
        check_image(data[: len(data) // 2], "decode")
    assert check_image(data, "decode") == read_header(data)


def test_anything_a_decoder_raises_becomes_a_rejection_naming_it(
    encode: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: ImageFile.ImageFile) -> None:
        raise ZeroDivisionError("a decoder's bug")

    data = encode("PNG")
    monkeypatch.setattr(ImageFile.ImageFile, "load", broken)

    with pytest.raises(SampleRejectedError, match="ZeroDivisionError: a decoder's bug"):
        check_image(data, "decode")
