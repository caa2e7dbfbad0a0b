"""The quick reader of JPEG headers against Pillow, on sound headers and on damaged ones."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from wellfed.pipeline.decode.extension import native
from wellfed.pipeline.decode.header import read_header
from wellfed.pipeline.decode.jpegheader import plain_jpeg, plain_jpeg_in_python
from wellfed.pipeline.errors import SampleRejectedError

Reader = Callable[[bytes], "tuple[int, int, str] | None"]
SIZE = (40, 24)
READERS = [plain_jpeg_in_python, *([native.plain_header] if native is not None else [])]
"""In Python, and in C where the extension is built."""


def resources(*blocks: bytes) -> bytes:
    """A segment of Photoshop's."""
    data = b"Photoshop 3.0\0" + b"".join(blocks)
    return b"\xff\xed" + (2 + len(data)).to_bytes(2, "big") + data


WHOLE = b"8BIM\x04\x04\0\0\0\0\0\x05abcde\0"
NAMED = b"8BIM\x04\x0d\3abc\0\0\0\2xy"


def encoded(mode: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, SIZE, 0).save(buffer, "JPEG", **options)
    return buffer.getvalue()


PLAIN = {
    "RGB": encoded("RGB"),
    "L": encoded("L"),
    "progressive": encoded("RGB", progressive=True),
    "ICC": encoded("RGB", icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()),
    "comment": encoded("RGB", comment=b"a comment"),
}
PLAIN["Photoshop"] = PLAIN["RGB"].replace(b"\xff\xdb", resources(WHOLE, NAMED) + b"\xff\xdb", 1)
PLAIN["Photoshop without resources"] = PLAIN["RGB"].replace(b"\xff\xdb", resources() + b"\xff\xdb", 1)


def by_pillow(data: bytes) -> tuple[int, int, str] | None:
    try:
        with Image.open(io.BytesIO(data)) as image:
            return (*image.size, image.mode) if image.format == "JPEG" and not image.getexif() else None
    except Exception:  # whatever Pillow raises on damage
        return None


@pytest.mark.parametrize(("kind", "mode"), [*((kind, "L" if kind == "L" else "RGB") for kind in PLAIN)])
def test_an_ordinary_header_needs_no_pillow(kind: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a JPEG of 40 x 24, and a Pillow that may not be asked
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("asked Pillow"))
    # when its header is read
    header = read_header(PLAIN[kind])
    # then all of it is there
    assert (header.format, header.ext, header.width, header.height) == ("JPEG", "jpg", 40, 24)
    assert (header.mode, header.orientation, header.frames) == (mode, 1, 1)
    assert header.notes == (("grayscale",) if mode == "L" else ())


def with_exif() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded("RGB", exif=exif)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n" + bytes(50),
        with_exif(),
        encoded("RGB", xmp=b"<x:xmpmeta/>"),
        encoded("CMYK"),
        PLAIN["RGB"][:200],
        PLAIN["RGB"].replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),
        PLAIN["RGB"].replace(b"\xff\xc0\x00\x11\x08\x00\x18", b"\xff\xc0\x00\x11\x08\x00\x00"),
        PLAIN["RGB"].replace(b"\xff\xdb", b"\xff\xff\xdb"),
        PLAIN["RGB"].replace(b"\xff\xdb", resources(WHOLE[:6]) + b"\xff\xdb", 1),
        PLAIN["RGB"].replace(b"\xff\xdb", resources(WHOLE, WHOLE[:14]) + b"\xff\xdb", 1),
    ],
    ids=[
        *("empty", "start only", "PNG", "EXIF", "XMP", "CMYK", "cut", "12 bits", "no rows", "padding"),
        *("resource without a name", "resource cut short"),
    ],
)
@pytest.mark.parametrize("reader", READERS)
def test_whatever_is_unusual_is_left_to_pillow(reader: Reader, data: bytes) -> None:
    assert reader(data) is None


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", PLAIN)
def test_both_readers_answer_for_ordinary_headers(reader: Reader, kind: str) -> None:
    assert reader(PLAIN[kind]) == (40, 24, "L" if kind == "L" else "RGB")
    assert reader(PLAIN[kind]) == by_pillow(PLAIN[kind])


def test_an_orientation_is_still_seen() -> None:
    assert read_header(with_exif()).orientation == 6


def test_a_damaged_header_is_still_rejected() -> None:
    with pytest.raises(SampleRejectedError):
        read_header(PLAIN["RGB"][:200])


@settings(max_examples=400, deadline=None)
@given(
    kind=st.sampled_from(sorted(PLAIN)),
    edits=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=3),
    cut=st.one_of(st.none(), st.integers(3, 700)),
)
def test_it_never_says_what_pillow_does_not(kind: str, edits: list[tuple[int, int]], cut: int | None) -> None:
    # given a header with bytes overwritten, perhaps cut short
    data = bytearray(PLAIN[kind])
    for place, value in edits:
        data[place % len(data)] = value
    damaged = bytes(data[:cut])
    # when the quick reader answers, then Pillow gives the same
    answers = {reader(damaged) for reader in READERS}
    # and both readers say it
    assert len(answers) == 1
    (answer,) = answers
    assert answer is None or answer == by_pillow(damaged)


def test_real_photos_read_as_pillow_reads_them(shared_data: Path) -> None:
    photos = [path for path in sorted((shared_data / "imagenet-sample").rglob("*")) if path.is_file()]
    answers = {path: plain_jpeg(path.read_bytes()) for path in photos}
    assert sum(answer is not None for answer in answers.values()) > len(photos) // 2
    for path, answer in answers.items():
        if answer is not None:
            with Image.open(path) as image:
                assert answer == (*image.size, image.mode)
                assert image.format == "JPEG"
                assert not image.getexif()
