"""decode_chunk: the C extension gives Pillow's pixels, and hands over what it does not decode."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from wellfed.pipeline.config import DecodeMode
from wellfed.pipeline.decode import chunk
from wellfed.pipeline.decode.chunk import decode_chunk, native_state
from wellfed.pipeline.decode.cpu import image_frame
from wellfed.pipeline.decode.reference import decode_rgb

Box = tuple[int, int, int, int]

native = pytest.importorskip("wellfed.pipeline.decode._jpeg", reason="the C extension is not built here")


def decode(
    images: list[bytes], boxes: list[Box], flips: list[bool], size: int, mode: DecodeMode = "exact"
) -> tuple[np.ndarray, dict[int, str]]:
    out = torch.zeros((len(images), size, size, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    orientations = []
    for data in images:
        try:
            orientations.append(image_frame(data).orientation)
        except Exception:
            orientations.append(1)
    turns = np.array(orientations, np.uint8)
    failures = decode_chunk(images, np.array(boxes, np.int32), turns, np.array(flips), out, mode)
    return out.permute(0, 2, 3, 1).numpy(), failures


def pillow(data: bytes, box: Box, flip: bool, size: int) -> np.ndarray:
    x, y, w, h = box
    image = Image.fromarray(decode_rgb(data)).crop((x, y, x + w, y + h)).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image)[:, ::-1] if flip else np.asarray(image)


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("the fallback was taken")

    monkeypatch.setattr(chunk, "decode_into", refuse)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": "4:4:4"}, {"subsampling": "4:2:2"}])
def test_no_pixel_is_further_than_two_from_pillows(
    encode: Callable[..., bytes], orientation: int, flip: bool, options: dict
) -> None:
    data = encode("JPEG", orientation=orientation, quality=90, **options)
    width, height = (48, 64) if orientation >= 5 else (64, 48)
    for box in (
        (0, 0, width, height),
        (7, 9, 21, 17),
        (width - 1, height - 1, 1, 1),
        (0, 11, width, 3),
        (13, 0, 5, 30),
    ):
        pixels, failures = decode([data], [box], [flip], 24)

        # Two 8-bit passes in another order where the picture is transposed: one step each.
        assert not failures
        assert np.abs(pixels[0].astype(int) - pillow(data, box, flip, 24)).max() <= 2, box


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("flip", [False, True])
def test_a_reduced_decode_shows_the_same_crop(encode: Callable[..., bytes], orientation: int, flip: bool) -> None:
    data = encode("JPEG", orientation=orientation, quality=90)
    width, height = (48, 64) if orientation >= 5 else (64, 48)
    # Halved, quartered, eighthed; boxes that begin and end within a reduced pixel. One pixel further off is 5 to 20.
    for box, size in (((0, 0, width, height), 24), ((7, 9, 37, 33), 16), ((5, 3, 41, 43), 9), ((1, 3, 45, 43), 5)):
        pixels, failures = decode([data], [box], [flip], size, "fast")

        assert not failures
        assert np.abs(pixels[0].astype(int) - pillow(data, box, flip, size)).mean() <= 3, (box, size)


def test_only_undamaged_crops_of_twice_the_size_are_reduced(encode: Callable[..., bytes]) -> None:
    data, box = encode("JPEG", quality=90), (0, 0, 64, 48)

    def reduced(image: bytes, size: int) -> bool:
        return not np.array_equal(
            decode([image], [box], [False], size, "fast")[0], decode([image], [box], [False], size)[0]
        )

    # 48 high: twice 24, not twice 25.
    assert [reduced(data, 24), reduced(data, 25)] == [True, False]
    assert not reduced(damaged_middle(data), 24)


def damaged_middle(data: bytes) -> bytes:
    """With a wrong byte in the scan that libjpeg warns of and decodes around."""
    for place in range(len(data) // 2, len(data) - 2):
        changed = data[:place] + b"\xff\xd5" + data[place + 2 :]
        status, warnings, _ = native.check(changed)
        if status == 0 and warnings:
            return changed
    raise AssertionError("no such byte")


def test_what_is_no_ordinary_jpeg_takes_the_reference_path(encode: Callable[..., bytes]) -> None:
    images = [encode("JPEG", "CMYK"), encode("PNG", "RGBA"), encode("WEBP", "RGB"), encode("JPEG", "L")]
    box = (5, 6, 40, 30)

    pixels, failures = decode(images, [box] * 4, [True] * 4, 16)

    assert not failures
    for got, data in zip(pixels, images, strict=True):
        assert np.abs(got.astype(int) - pillow(data, box, True, 16)).max() <= 1


def test_a_corrupt_image_is_said_and_its_neighbours_are_whole(encode: Callable[..., bytes]) -> None:
    good = encode("JPEG")

    pixels, failures = decode([good, good[: len(good) // 2], b"no image", good], [(0, 0, 64, 48)] * 4, [False] * 4, 8)

    assert sorted(failures) == [1, 2]
    assert all(len(reason) > 20 for reason in failures.values())
    assert np.array_equal(pixels[0], pixels[3])
    assert np.abs(pixels[0].astype(int) - pillow(good, (0, 0, 64, 48), False, 8)).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_numbers_of_a_box_do_not_overflow_where_the_picture_is_turned(
    encode: Callable[..., bytes], orientation: int
) -> None:
    # `make sanitize` found 1 - (-2**31) in an int here.
    data, lowest, highest = encode("JPEG", orientation=orientation), -(2**31), 2**31 - 1
    for box in ((lowest, 0, 1, 1), (0, lowest, 1, 1), (0, 0, lowest, 1), (0, 0, 1, lowest), (0, highest, 1, highest)):
        _, failures = decode([data], [box], [False], 8)
        assert "crop box must lie within the picture" in failures[0], box


def test_a_box_outside_the_picture_is_a_failure_not_a_crash(encode: Callable[..., bytes]) -> None:
    data = encode("JPEG")
    for box in ((60, 0, 10, 10), (0, 0, 65, 48), (-1, 0, 10, 10), (0, 0, 0, 10), (2**31 - 1, 0, 2**31 - 1, 1)):
        _, failures = decode([data], [box], [False], 8)
        assert "crop box must lie within the picture" in failures[0], box


@pytest.mark.parametrize("flip", [0, 1])
@pytest.mark.parametrize("size", [1, 2, 3, 17, 64, 100, 224])
def test_the_kernels_of_every_processor_agree(size: int, flip: int) -> None:
    # given noise, boxes that are enlarged and reduced, by up to 301 taps an output, and the picture's last columns
    noise = np.random.default_rng(0).integers(0, 256, (203, 301, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "JPEG", quality=95)
    boxes = np.array([[3, 2, 50, 40], [0, 0, 301, 203], [300, 202, 1, 1], [298, 0, 3, 203], [150, 7, 151, 3]], np.int32)
    count = len(boxes)
    results = []
    for portable in (False, True):
        out, status = np.zeros((count, size, size, 3), np.uint8), np.zeros(count, np.int32)
        flips = np.full(count, flip, np.uint8)
        native.decode(
            [file.getvalue()] * count, boxes, np.ones(count, np.uint8), flips, out, size, False, portable, status
        )
        assert not status.any()
        results.append(out)

    assert np.array_equal(results[0], results[1])


def test_dct_scaling_stays_within_the_published_difference(shared_data: Path) -> None:
    files = sorted((shared_data / "imagenet-sample").rglob("*.JPEG"))[::10]
    for path in files:
        data = path.read_bytes()
        width, height, orientation = image_frame(data)
        box = (0, 0, *((height, width) if orientation >= 5 else (width, height)))
        out, status = np.zeros((1, 96, 96, 3), np.uint8), np.zeros(1, np.int32)
        native.decode(
            [data], np.array([box], np.int32), np.array([orientation], np.uint8), np.zeros(1, np.uint8), out, 96, True,
            False, status,
        )  # fmt: skip
        assert status[0] == 0
        assert np.abs(out[0].astype(int) - pillow(data, box, False, 96)).mean() <= 6


def test_buffers_that_are_too_small_are_refused(encode: Callable[..., bytes]) -> None:
    data = encode("JPEG")
    right: dict[str, np.ndarray] = {
        "boxes": np.array([[0, 0, 8, 8]] * 2, np.int32),
        "orientations": np.ones(2, np.uint8),
        "flips": np.zeros(2, np.uint8),
        "out": np.zeros((2, 8, 8, 3), np.uint8),
        "status": np.zeros(2, np.int32),
    }
    for name, buffer in right.items():
        call = {**right, name: buffer[:1]}
        with pytest.raises(ValueError, match=f"{name} must hold at least"):
            native.decode(
                [data, data], call["boxes"], call["orientations"], call["flips"], call["out"], 8, False, False,
                call["status"],
            )  # fmt: skip


def test_without_the_extension_the_pixels_stay_within_the_tolerance(
    encode: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, box = encode("JPEG", quality=90), (4, 5, 50, 40)
    fast, _ = decode([data], [box], [True], 16)
    monkeypatch.setattr(chunk, "_native", None)
    monkeypatch.setattr(chunk, "_native_error", "no module")

    for mode in get_args(DecodeMode):
        slow, failures = decode([data], [box], [True], 16, mode)

        # It never reduces.
        assert not failures
        assert np.abs(fast.astype(int) - slow).mean() <= 0.5
    assert native_state().startswith("not built (no module)")


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.integers(0, 10_000))
def test_mutated_files_end_in_pixels_or_a_reason(position: int, value: int, cut: int) -> None:
    data = bytearray(_SEED)
    data[position % len(data)] = value
    changed = bytes(data[: len(data) - cut % (len(data) // 2)])

    _, failures = decode([changed], [(3, 3, 20, 20)], [False], 8)

    assert failures == {} or len(failures[0]) > 10


def _make_seed() -> bytes:
    import io

    buffer = io.BytesIO()
    ramp = np.arange(64 * 48 * 3, dtype=np.uint32).reshape(48, 64, 3)
    Image.fromarray((ramp * 7919 % 251).astype(np.uint8)).save(buffer, "JPEG", quality=70, progressive=True)
    return buffer.getvalue()


_SEED = _make_seed()
