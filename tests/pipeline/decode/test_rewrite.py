"""Images rewritten on their way into a dataset: the same picture, in another file."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from wellfed.pipeline.decode import check, rewrite
from wellfed.pipeline.decode.check import check_image
from wellfed.pipeline.decode.header import read_header
from wellfed.pipeline.decode.reference import decode_rgb
from wellfed.pipeline.decode.rewrite import resized_size, to_baseline, to_resized
from wellfed.pipeline.errors import SampleRejectedError

Encode = Callable[..., bytes]

needs_extension = pytest.mark.skipif(rewrite._native is None, reason="the C extension is not built")


@pytest.fixture(params=("extension", "pillow"))
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of resizing, one after the other."""
    if request.param == "pillow":
        monkeypatch.setattr(rewrite, "_native", None)
        monkeypatch.setattr(check, "_native", None)
    elif rewrite._native is None:
        pytest.skip("the C extension is not built")
    return str(request.param)


def pixels(data: bytes) -> np.ndarray:
    """As Pillow decodes them, without conversion."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def frames(data: bytes) -> list[int]:
    """The start-of-frame markers, found by walking the segments up to the first scan."""
    found, place = [], 2
    while data[place + 1] != 0xDA:
        found.append(data[place + 1])
        place += 2 + int.from_bytes(data[place + 2 : place + 4])
    return [marker for marker in found if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)]


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def as_411(data: bytes) -> bytes:
    """4:2:0 to 4:1:1: both have four blocks of luma and two of chroma in an MCU, so that only the frame must say it."""
    frame = data.index(b"\xff\xc2\x00\x11") + 11
    assert data[frame] == 0x22
    return data[:frame] + b"\x41" + data[frame + 1 :]


@needs_extension
@pytest.mark.parametrize(
    ("options", "subsampling"),
    [
        ({}, "2x2"),
        ({"subsampling": "4:4:4"}, "1x1"),
        ({"subsampling": "4:2:2"}, "2x1"),
        ({"subsampling": "4:1:1 in the frame"}, "4x1"),
        ({"mode": "L"}, "1x1"),
        ({"mode": "CMYK"}, "1x1"),
        ({"restart_marker_blocks": 2}, "2x2"),
        ({"keep_rgb": True}, "1x1"),
        ({"quality": 100}, "2x2"),
    ],
)
def test_baseline_has_the_same_pixels(encode: Encode, options: dict[str, Any], subsampling: str) -> None:
    # given a progressive JPEG, when it is rewritten
    if options.get("subsampling", "").endswith("frame"):
        data = as_411(encode("JPEG", progressive=True))
    else:
        data = encode("JPEG", progressive=True, **options)
    made = to_baseline(data, "decode")
    # then it is baseline, with each pixel, its mode and its subsampling as they were
    assert (frames(data), frames(made.data)) == ([0xC2], [0xC0])
    assert made.data.count(b"\xff\xda") == 1
    assert np.array_equal(pixels(made.data), pixels(data))
    with Image.open(io.BytesIO(data)) as before, Image.open(io.BytesIO(made.data)) as after:
        assert (after.mode, vars(after)["layer"]) == (before.mode, vars(before)["layer"])
        assert {"progressive", "progression"} <= set(before.info)
        assert not {"progressive", "progression"} & set(after.info)
    sampling = made.data[made.data.index(b"\xff\xc0") + 11]
    assert f"{sampling >> 4}x{sampling & 15}" == subsampling
    assert made.header.notes == (*read_header(data).notes, "made_baseline")
    assert check_image(made.data, "decode").notes == read_header(data).notes


RARE = {
    "arithmetic": (
        0xC9,
        1,
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxO"
        "UlNSMj5aYVpQYEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09P"
        "T09PT09PT0//yQARCAAYACgDASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AJMcLki7npD7vIwiKfBc53FMv76Q"
        "qxVfrn2ypaQQqdi4WjiIfqJCnbfzdUkZDm/Z0ztTsp3rSos5ripVPfvfxCp0LQoWsuXnt59Apv2XioXVedrflL4flKvzX9MM8kLw"
        "C8gJkw1ZGb+UD4xoqQaKZkkBZVEwn4DkTHkRrfSj+HVZEPE3Of3RWbqL8ApWLYaDwP/Z",
    ),
    "arithmetic and progressive": (
        0xCA,
        10,
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxO"
        "UlNSMj5aYVpQYEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09P"
        "T09PT09PT0//ygARCAAYACgDASIAAhEBAxEB/8wABgAQARD/2gAMAwEAAhADEAAAAf8AIpBylfg2FPksrJqiGX+fFAKQAWqj+ta+"
        "FGd+WkD/zAAEEAX/2gAIAQEAAQUCEzKao3jAG5GsCLLdO//MAAQRBf/aAAgBAwEBPwEXvvKO5U0cNVrg/8wABBEF/9oACAECAQE/"
        "ARriEdZFzvPVIEkjnjEP5XYl/8wABBAF/9oACAEBAAY/ArD/zAAEEAX/2gAIAQEAAT8hEmbQUPZyt555S//aAAwDAQACAAMAAAAQ"
        "9jsra8D/zAAEEQX/2gAIAQMBAT8QYiRWbUmwJoD/zAAEEQX/2gAIAQIBAT8Q5VMHkqUxrBicTw4D6Ar/zAAEEAX/2gAIAQEAAT8Q"
        "TGhhj5cx3S/jTE7pyqSTXMz0NfIdjzMtOvjiQP/Z",
    ),
    "baseline in three scans": (
        0xC0,
        3,
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxO"
        "UlNSMj5aYVpQYEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09P"
        "T09PT09PT0//wAARCAAYACgDASIAAhEBAxEB/8QAGQABAAIDAAAAAAAAAAAAAAAABAMFAQIG/8QAIBAAAQQCAgMBAAAAAAAAAAAA"
        "AQADBGECMREhElKR0f/aAAgBAQAAPwDgm4tJTcPL0PxIbi0ktxaSW4tKGLDGWfY0OVZNxaWXIYBBA3tSNxaSW4tI7DBwy5AVg23h"
        "1+Lcs+Z10NKZuLSS3Fpf/8QAFgEBAQEAAAAAAAAAAAAAAAAABAUD/8QAHxEAAgICAQUAAAAAAAAAAAAAAQIAAwQhEQUSEzFh/9oA"
        "CAECEQA/AGY1HnTvZuBJOSxpsKE+oI5G5rV1C6gFV2PsnXXvYxZjswhc8z//xAAWAQEBAQAAAAAAAAAAAAAAAAAFBAf/xAAaEQAC"
        "AwEBAAAAAAAAAAAAAAAAAQMEEQIh/9oACAEDEQA/AJ4bmDta3q0ZjteGWwdNjtftoYjk6w//2Q==",
    ),
}
"""Kinds that Pillow does not write, of one 40 x 24 picture by libjpeg-turbo: the frame's marker, scans, Base64."""


@needs_extension
@pytest.mark.parametrize("kind", RARE)
def test_rare_kinds_become_baseline(kind: str) -> None:
    marker, scans, text = RARE[kind]
    data = base64.b64decode(text)
    assert (frames(data), data.count(b"\xff\xda")) == ([marker], scans)
    made = to_baseline(data, "decode")
    assert (frames(made.data), made.data.count(b"\xff\xda")) == ([0xC0], 1)
    assert np.array_equal(pixels(made.data), pixels(data))
    assert pixels(made.data).shape == (24, 40, 3)


@needs_extension
def test_baseline_keeps_metadata(encode: Encode) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = encode(
        "JPEG", orientation=6, progressive=True, icc_profile=profile, comment=b"said", xmp=b"<x:xmpmeta/>", dpi=(72, 72)
    )
    made = to_baseline(data, "header")
    with Image.open(io.BytesIO(data)) as before, Image.open(io.BytesIO(made.data)) as after:
        kept = {"exif", "icc_profile", "comment", "xmp", "dpi", "jfif"}
        assert {name: after.info[name] for name in kept} == {name: before.info[name] for name in kept}
    assert (made.header.orientation, made.header.width, made.header.height) == (6, 64, 48)


@needs_extension
def test_an_adobe_segment_is_kept_and_none_is_invented(encode: Encode) -> None:
    data = encode("JPEG", mode="CMYK", progressive=True)
    place = data.index(b"\xff\xee\x00\x0eAdobe")
    with_it, without = data, data[:place] + data[place + 16 :]
    assert to_baseline(with_it, "decode").data.count(b"Adobe") == 1
    made = to_baseline(without, "decode")
    assert b"Adobe" not in made.data
    assert np.array_equal(pixels(made.data), pixels(without))


@needs_extension
@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF"])
def test_what_is_baseline_or_no_jpeg_keeps_its_bytes(encode: Encode, form: str) -> None:
    data = encode(form)
    made = to_baseline(data, "decode")
    assert made.data is data
    assert made.header == made.source == check_image(data, "decode")


@needs_extension
def test_what_cannot_be_baseline_is_kept_and_noted(encode: Encode) -> None:
    coarse = encode("JPEG", progressive=True, qtables=[[300] * 64, [400] * 64])
    several = io.BytesIO()
    first = Image.open(io.BytesIO(encode("PNG")))
    first.save(several, "MPO", save_all=True, append_images=[first], progressive=True)
    for data in (coarse, several.getvalue()):
        made = to_baseline(data, "header")
        assert made.data is data
        assert made.header.notes[-1] == "not_baseline"


@needs_extension
def test_a_cut_progressive_jpeg_is_rejected_whatever_the_level(encode: Encode) -> None:
    data = encode("JPEG", progressive=True)
    for length in (len(data) - 2, len(data) // 2):
        with pytest.raises(SampleRejectedError, match=r"(?i)truncated"):
            to_baseline(data[:length], "header")


@needs_extension
def test_damage_is_noted_of_what_is_made_baseline_too(encode: Encode) -> None:
    data = encode("JPEG", progressive=True)
    damaged = data[:-2] + b"\xff\xd0\x00" + data[-2:]
    assert check_image(damaged, "decode").notes == ("decoder_warnings",)
    assert to_baseline(damaged, "decode").header.notes == ("decoder_warnings", "made_baseline")
    assert to_baseline(data, "decode").header.notes == ("made_baseline",)


@needs_extension
def test_damage_within_scans_is_noted_as_the_full_check_notes_it(encode: Encode) -> None:
    data = encode("JPEG", progressive=True)
    noted = 0
    for place in range(data.index(b"\xff\xda") + 12, len(data) - 2, 7):
        damaged = data[:place] + bytes([data[place] ^ 0x15]) + data[place + 1 :]
        try:
            expected = check_image(damaged, "decode").notes
        except SampleRejectedError:
            continue
        stored = to_baseline(damaged, "decode").header.notes
        assert set(stored) - {"made_baseline", "not_baseline"} == set(expected), place
        noted += "decoder_warnings" in expected
    assert noted >= 10


@needs_extension
def test_every_odd_jpeg_decodes_to_the_same_pixels_as_baseline(shared_data: Path) -> None:
    files = sorted(path for path in (shared_data / "odd-images").rglob("*.jp*g"))
    assert files
    for path in files:
        data = path.read_bytes()
        try:
            made = to_baseline(data, "decode")
        except SampleRejectedError:
            with pytest.raises(SampleRejectedError):
                check_image(data, "decode")
            continue
        assert np.array_equal(decode_rgb(made.data), decode_rgb(data)), path
        assert frames(made.data) == [0xC0] or made.header.notes[-1] == "not_baseline", path


@pytest.mark.parametrize(
    ("width", "height", "side", "expected"),
    [
        (500, 375, 256, (341, 256)),  # 341.33
        (375, 500, 256, (256, 341)),
        (300, 200, 99, (149, 99)),  # 148.5: halves up
        (200, 200, 64, (64, 64)),
        (10_000, 20, 16, (8_000, 16)),
    ],
)
def test_the_shorter_side_decides(width: int, height: int, side: int, expected: tuple[int, int]) -> None:
    assert resized_size(width, height, side) == expected


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once(decoder: str, encode: Encode, orientation: int) -> None:
    data = encode("JPEG", orientation=orientation, quality=95)
    made = to_resized(data, side=24, quality=95, level="decode")
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    expected = upright.resize((32, 24) if orientation < 5 else (24, 32), Image.Resampling.BILINEAR)
    with Image.open(io.BytesIO(made.data)) as image:
        assert (image.format, image.mode, image.size, len(image.getexif())) == ("JPEG", "RGB", expected.size, 0)
        difference = np.abs(np.asarray(image).astype(int) - np.asarray(expected).astype(int))
    assert difference.mean() < 5  # another orientation is above 20 away
    assert (made.header.width, made.header.height, made.header.orientation) == (*expected.size, 1)
    assert read_header(made.data) == replace(made.header, notes=())


def test_both_ways_give_nearly_the_same_picture(picture: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    if rewrite._native is None:
        pytest.skip("the C extension is not built")
    buffer = io.BytesIO()
    Image.fromarray(picture).resize((512, 384), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=95)
    data = buffer.getvalue()
    for side, most in ((128, 1.0), (32, 1.5)):  # by the filter alone, and with libjpeg's reduction by 2 before it
        with monkeypatch.context() as patched:
            native = pixels(to_resized(data, side=side, quality=95, level="decode").data).astype(int)
            patched.setattr(rewrite, "_native", None)
            pillow = pixels(to_resized(data, side=side, quality=95, level="decode").data).astype(int)
        assert np.abs(native - pillow).mean() < most


@pytest.mark.parametrize(
    ("form", "mode", "expected"),
    [
        ("JPEG", "L", "L"),
        ("PNG", "L", "L"),
        ("PNG", "LA", "L"),
        ("PNG", "1", "L"),
        ("PNG", "I;16", "L"),
        ("PNG", "P", "RGB"),
        ("PNG", "RGBA", "RGB"),
        ("JPEG", "CMYK", "RGB"),
        ("GIF", "P", "RGB"),
    ],
)
def test_every_kind_of_pixel_becomes_the_normative_picture(
    decoder: str, encode: Encode, picture: np.ndarray, form: str, mode: str, expected: str
) -> None:
    if mode == "I;16":
        buffer = io.BytesIO()
        Image.fromarray(picture[:, :, 0].astype(np.uint16) * 257).save(buffer, "PNG")
        data = buffer.getvalue()
    else:
        data = encode(form, mode=mode)
    made = to_resized(data, side=24, quality=100, level="decode")
    wanted = Image.fromarray(decode_rgb(data)).resize((32, 24), Image.Resampling.BILINEAR)
    with Image.open(io.BytesIO(made.data)) as image:
        assert (image.mode, image.size) == (expected, (32, 24))
        difference = np.asarray(image.convert("RGB")).astype(int) - np.asarray(wanted).astype(int)
    assert np.abs(difference).mean() < 4
    assert made.header.mode == expected
    assert made.header.notes == (*read_header(data).notes, "resized")


@needs_extension
def test_a_damaged_jpeg_is_resized_as_a_viewer_shows_it() -> None:
    random = np.random.default_rng(0)
    buffer = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (512, 512), np.uint8)).save(buffer, "JPEG", quality=90)
    data = bytearray(buffer.getvalue())
    start = data.index(b"\xff\xda") + 200
    # Out of step, the coefficients are far out of range: clipped pixels of a full decode hide it, averages do not.
    for place in range(start, len(data) - 200, 499):
        data[place : place + 8] = b"\0" + random.integers(0, 255, 7, np.uint8).tobytes()  # no marker
    assert "decoder_warnings" in check_image(bytes(data), "decode").notes
    resized = to_resized(bytes(data), side=32, quality=95, level="decode")
    assert "decoder_warnings" in resized.header.notes
    with Image.open(io.BytesIO(data)) as image:
        expected = image.resize((32, 32), Image.Resampling.BILINEAR)
    assert np.abs(pixels(resized.data).astype(int) - np.asarray(expected, int)).mean() < 3


@pytest.mark.parametrize("side", [48, 49, 1000])
def test_nothing_is_enlarged(decoder: str, encode: Encode, side: int) -> None:
    for data in (encode("JPEG"), encode("JPEG", orientation=6), encode("PNG")):
        made = to_resized(data, side=side, quality=90, level="decode")
        assert made.data is data
        assert made.header.notes == (*read_header(data).notes, "not_resized")


def test_what_is_too_long_for_a_jpeg_is_kept() -> None:
    buffer = io.BytesIO()
    Image.new("L", (90_000, 20)).save(buffer, "PNG")
    assert to_resized(buffer.getvalue(), side=16, quality=90, level="decode").header.notes[-1] == "not_resized"


def test_what_is_resized_is_checked_to_its_end(decoder: str, encode: Encode) -> None:
    for options in ({}, {"progressive": True}):
        data = encode("JPEG", **options)
        for length in (len(data) - 2, len(data) * 9 // 10):
            with pytest.raises(SampleRejectedError, match=r"(?i)truncated"):
                to_resized(data[:length], side=16, quality=90, level="header")


@needs_extension
def test_a_reduction_too_strong_for_the_fixed_point_is_left_to_pillow() -> None:
    assert rewrite._native is not None
    buffer = io.BytesIO()
    Image.new("L", (1100, 1100), 200).save(buffer, "JPEG")
    data = buffer.getvalue()
    assert rewrite._native.resize(data, 1, 16, 16, 0, 90, True)[0] == 1
    status, _, _, made = rewrite._native.resize(data, 1, 16, 16, 3, 90, True)
    assert (status, set(pixels(made or b"").ravel().tolist())) == (0, {200})


@needs_extension
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say how much memory is in use")
def test_nothing_leaks_whatever_the_bytes(encode: Encode) -> None:
    native = rewrite._native
    assert native is not None
    whole = encode("JPEG", progressive=True)
    images = [whole, whole[:200], whole[: len(whole) // 2], b"", b"no image", encode("JPEG", mode="CMYK")]

    def everything() -> None:
        for data in images:
            native.check(data)
            native.baseline(data)
            native.resize(data, 5, 16, 12, 3, 90, False)

    # One picture's decoder alone has more than 20 KB.
    for _ in range(50):
        everything()
    before = resident_bytes()
    for _ in range(500):
        everything()
    assert resident_bytes() - before < 6_000_000
    with pytest.raises(ValueError, match="16384"):
        native.resize(whole, 1, 0, 16, 3, 90, False)
    with pytest.raises(TypeError):
        native.baseline("text")
