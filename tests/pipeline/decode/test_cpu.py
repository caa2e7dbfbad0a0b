"""decode_into: Pillow's crop and bilinear resize, within the stated tolerance, for whatever comes in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from wellfed.pipeline.decode import cpu
from wellfed.pipeline.decode.cpu import decode_into, image_frame
from wellfed.pipeline.decode.reference import decode_rgb
from wellfed.pipeline.errors import SampleRejectedError


def shown_size(data: bytes) -> tuple[int, int]:
    width, height, orientation = image_frame(data)
    return (height, width) if orientation >= 5 else (width, height)


def expected(data: bytes, box: tuple[int, int, int, int], flip: bool, size: int) -> np.ndarray:
    x, y, w, h = box
    image = Image.fromarray(decode_rgb(data)).crop((x, y, x + w, y + h)).resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[:, ::-1] if flip else pixels


def decoded(data: bytes, box: tuple[int, int, int, int], flip: bool, size: int) -> np.ndarray:
    batch = torch.empty((2, 3, size, size), dtype=torch.uint8, memory_format=torch.channels_last)
    decode_into(data, box, flip, batch[1])
    return batch[1].permute(1, 2, 0).numpy()


def difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(np.int64) - b).mean())


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("box", [(0, 0, 64, 48), (10, 5, 31, 23), (63, 47, 1, 1), (0, 20, 64, 3)])
@pytest.mark.parametrize(
    ("form", "mode", "options"),
    [
        ("JPEG", "RGB", {"quality": 90}),
        ("JPEG", "RGB", {"quality": 90, "progressive": True, "subsampling": "4:4:4"}),
        ("JPEG", "L", {}),
        ("JPEG", "CMYK", {}),
        ("PNG", "RGBA", {}),
        ("WEBP", "RGB", {}),
    ],
)
def test_pixels_equal_pillows_within_the_tolerance(
    encode: Callable[..., bytes], form: str, mode: str, options: dict, box: tuple[int, int, int, int], flip: bool
) -> None:
    data = encode(form, mode, **options)

    # facts: 0.03 on average and 0.25 at worst over photographs; a box of few pixels has few to average over.
    assert difference(decoded(data, box, flip, 32), expected(data, box, flip, 32)) <= 0.5


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_box_lies_in_the_oriented_frame(encode: Callable[..., bytes], orientation: int) -> None:
    data = encode("JPEG", orientation=orientation, quality=95)
    box = (3, 7, 30, 40) if orientation >= 5 else (7, 3, 40, 30)

    assert shown_size(data) == ((48, 64) if orientation >= 5 else (64, 48))
    assert difference(decoded(data, box, True, 24), expected(data, box, True, 24)) <= 0.5


def test_an_orientation_that_only_xmp_states_is_applied(encode: Callable[..., bytes]) -> None:
    data = encode("JPEG", xmp=b'<rdf:Description tiff:Orientation="6"/>')

    assert shown_size(data) == (48, 64)
    assert difference(decoded(data, (0, 0, 48, 64), False, 16), expected(data, (0, 0, 48, 64), False, 16)) <= 0.5


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_any_strides_of_the_output_and_nothing_beside_it_is_written(
    encode: Callable[..., bytes], layout: torch.memory_format
) -> None:
    batch = torch.full((3, 3, 20, 30), 77, dtype=torch.uint8).contiguous(memory_format=layout)

    decode_into(encode("JPEG"), np.array([0, 0, 64, 48], dtype=np.int32), False, batch[1])

    assert bool((batch[0] == 77).all())
    assert bool((batch[2] == 77).all())
    reference = Image.fromarray(decode_rgb(encode("JPEG"))).resize((30, 20), Image.Resampling.BILINEAR)
    assert difference(batch[1].permute(1, 2, 0).numpy(), np.asarray(reference)) <= 0.5


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, 0, 0, 5), (60, 0, 5, 5), (0, 44, 5, 5)])
def test_a_box_outside_the_picture_is_refused(
    encode: Callable[..., bytes], form: str, box: tuple[int, int, int, int]
) -> None:
    with pytest.raises(SampleRejectedError, match="within the picture"):
        decoded(encode(form), box, False, 8)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_a_truncated_file_is_rejected(encode: Callable[..., bytes], form: str) -> None:
    data = encode(form)

    with pytest.raises(SampleRejectedError):
        decoded(data[: len(data) // 2], (0, 0, 64, 48), False, 8)


def test_every_cut_of_a_jpeg_ends_in_pixels_or_a_rejection(encode: Callable[..., bytes]) -> None:
    data = encode("JPEG", orientation=6)

    outcomes: set[object] = set()
    for length in range(0, len(data), 13):
        for attempt in (lambda cut: decoded(cut, (0, 0, 48, 64), False, 8).shape, shown_size):
            try:
                outcomes.add(attempt(data[:length]))
            except SampleRejectedError:
                outcomes.add("rejected")

    assert outcomes == {(48, 64), "rejected"} or outcomes == {(48, 64), (8, 8, 3), "rejected"}


def test_without_torchvisions_decoder_the_reference_path_takes_over(
    encode: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode("JPEG")
    monkeypatch.setattr(cpu, "_torchvision_decoder", lambda: None)

    assert np.array_equal(decoded(data, (4, 4, 40, 40), True, 16), expected(data, (4, 4, 40, 40), True, 16))


def test_ordinary_jpegs_do_not_take_the_slow_path(
    encode: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(data: bytes) -> np.ndarray:
        raise AssertionError("the reference path was taken")

    monkeypatch.setattr(cpu, "decode_rgb", never)

    for options in ({}, {"progressive": True}, {"orientation": 6}):
        decoded(encode("JPEG", **options), (0, 0, 40, 40), False, 8)
    decoded(encode("JPEG", "L"), (0, 0, 40, 40), False, 8)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP", "GIF"])
def test_the_size_comes_from_the_header(encode: Callable[..., bytes], form: str) -> None:
    assert shown_size(encode(form, "P" if form == "GIF" else "RGB")) == (64, 48)


def test_padding_before_a_marker_and_a_comment_are_stepped_over(encode: Callable[..., bytes]) -> None:
    data = encode("JPEG")
    odd = data[:2] + b"\xff\xff\xff\xfe\x00\x06\xff\xc0ab" + data[2:]

    assert shown_size(odd) == (64, 48)
    assert np.array_equal(decoded(odd, (0, 0, 64, 48), False, 16), decoded(data, (0, 0, 64, 48), False, 16))


def test_real_photographs_stay_within_the_published_tolerance(shared_data: Path) -> None:
    files = sorted((shared_data / "imagenet-sample").rglob("*.JPEG"))[::10]
    differences = []
    for path in files:
        data = path.read_bytes()
        width, height = shown_size(data)
        box = (width // 5, height // 6, width // 2, height // 2)
        differences.append(difference(decoded(data, box, True, 224), expected(data, box, True, 224)))

    assert len(differences) == 25
    assert np.mean(differences) <= 0.1
    assert max(differences) <= 0.5
