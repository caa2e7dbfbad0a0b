"""Which JPEGs may go to any decoder."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wellfed.pipeline.decode.extension import native
from wellfed.pipeline.decode.ordinary import is_ordinary_in_python, ordinary_jpegs


def jpeg(mode: str = "RGB", **options: Any) -> bytes:
    noise = np.random.default_rng(1).integers(0, 256, (24, 40, 4), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def is_ordinary_jpeg(data: bytes, width: int, height: int) -> bool:
    """What both implementations say; they must agree."""
    answer = is_ordinary_in_python(data, width, height)
    assert ordinary_jpegs([memoryview(data)], np.array([width]), np.array([height])).tolist() == [answer]
    return answer


def exif_with_thumbnail() -> bytes:
    """An EXIF block that holds a whole JPEG, end marker and all."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif.tobytes() + jpeg(quality=10)


@pytest.mark.parametrize(
    "data",
    [
        jpeg(),
        jpeg("L"),
        jpeg(progressive=True),
        jpeg(subsampling=0),
        jpeg(exif=exif_with_thumbnail()),
        jpeg(comment=b"a comment"),
        jpeg() + b"trailing bytes",
        b"\xff\xd8\xff\xff\xff" + jpeg()[3:],
    ],
    ids=[
        "color",
        "gray",
        "progressive",
        "full chroma",
        "EXIF with thumbnail",
        "comment",
        "trailing bytes",
        "fill bytes",
    ],
)
def test_whole_jpegs_of_gray_and_of_ycbcr_are_ordinary(data: bytes) -> None:
    assert is_ordinary_jpeg(data, 40, 24)


def frame_changed(data: bytes, offset: int, value: int) -> bytes:
    place = data.index(b"\xff\xc0")
    return data[: place + offset] + bytes([value]) + data[place + offset + 1 :]


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 24)).save(file, "PNG")
    return file.getvalue()


def adobe(transform: int) -> bytes:
    segment = b"Adobe\0\x64\0\0\0\0" + bytes([transform])
    return b"\xff\xd8\xff\xee" + (len(segment) + 2).to_bytes(2, "big") + segment + jpeg()[2:]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8",
        b"no picture",
        png(),
        jpeg("CMYK"),
        jpeg(quality=50, exif=exif_with_thumbnail())[:-200],
        jpeg()[:-2],
        jpeg()[:60],
        frame_changed(jpeg(), 1, 0xC9),
        frame_changed(jpeg(), 1, 0xC3),
        frame_changed(jpeg(), 4, 12),
        adobe(0),
    ],
    ids=[
        "empty",
        "start only",
        "text",
        "PNG",
        "CMYK",
        "cut, with a whole thumbnail",
        "no end",
        "cut in its header",
        "arithmetic",
        "lossless",
        "12 bit",
        "stored as RGB",
    ],
)
def test_everything_else_is_not(data: bytes) -> None:
    assert not is_ordinary_jpeg(data, 40, 24)


def test_a_lone_layer_with_subsampling_factors_is_for_the_cpu_path() -> None:
    # nvJPEG on an H200 makes a scrambled picture of a gray JPEG whose one layer says 2x2.
    gray = jpeg("L")
    place = gray.index(b"\xff\xc0") + 11
    assert gray[place] == 0x11
    assert is_ordinary_jpeg(gray, 40, 24)
    assert not is_ordinary_jpeg(gray[:place] + b"\x22" + gray[place + 1 :], 40, 24)


def test_an_adobe_marker_that_says_ycbcr_changes_nothing() -> None:
    assert is_ordinary_jpeg(adobe(1), 40, 24)


def test_a_size_other_than_the_indexs_is_for_the_cpu_path_to_refuse() -> None:
    assert not is_ordinary_jpeg(jpeg(), 24, 40)
    assert not is_ordinary_jpeg(jpeg(), 41, 24)


@pytest.mark.parametrize("cut", range(0, 700, 7))
def test_no_cut_is_ordinary_or_raises(cut: int) -> None:
    assert not is_ordinary_jpeg(jpeg(exif=exif_with_thumbnail())[:cut], 40, 24)


@pytest.mark.skipif(native is None, reason="needs the C extension")
def test_both_implementations_agree_on_changed_headers() -> None:
    # given each file with one or two bytes of its header changed, or cut anywhere
    random = np.random.default_rng(5)
    files = [jpeg(), jpeg("L"), jpeg(progressive=True), adobe(0), adobe(1), jpeg(exif=exif_with_thumbnail())]
    changed = []
    for _ in range(3000):
        data = bytearray(files[random.integers(len(files))])
        for _ in range(random.integers(1, 3)):
            data[random.integers(min(len(data), 700))] = random.choice([0, 1, 0xC0, 0xC9, 0xD9, 0xEE, 0xFF, 3, 255])
        changed.append(bytes(data[: random.integers(len(data) // 2, 2 * len(data))]))

    # then the answers are equal, and both answers come up
    sizes = np.full(len(changed), 40), np.full(len(changed), 24)
    answers = ordinary_jpegs(changed, *sizes).tolist()
    assert answers == [is_ordinary_in_python(data, 40, 24) for data in changed]
    assert 0.1 < np.mean(answers) < 0.9
