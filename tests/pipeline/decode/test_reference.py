"""The normative picture: literal pixels, and Pillow's own functions as the second opinion."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from wellfed.pipeline.decode.check import check_image
from wellfed.pipeline.decode.cpu import decode_into, image_frame
from wellfed.pipeline.decode.reference import decode_rgb
from wellfed.pipeline.errors import SampleRejectedError


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def test_rgb_comes_out_as_it_went_in(encode: Callable[..., bytes], picture: np.ndarray) -> None:
    pixels = decode_rgb(encode("PNG"))

    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, picture)


def test_grayscale_is_repeated() -> None:
    data = saved(Image.fromarray(np.array([[0, 7, 255]], dtype=np.uint8)), "PNG")

    assert decode_rgb(data).tolist() == [[[0, 0, 0], [7, 7, 7], [255, 255, 255]]]


def test_sixteen_bit_gray_is_divided_by_257_and_not_clipped() -> None:
    # 257 * 100 = 25700; 25828 is nearest to 100 (100.498), 25829 to 101 (100.502).
    values = np.array([[0, 257, 25700, 25828, 25829, 65535]], dtype=np.uint16)

    assert decode_rgb(saved(Image.fromarray(values), "PNG"))[0, :, 1].tolist() == [0, 1, 100, 100, 101, 255]


def test_integers_beyond_sixteen_bit_are_rejected() -> None:
    data = saved(Image.fromarray(np.array([[0, 70_000]], dtype=np.int32)), "TIFF")

    with pytest.raises(SampleRejectedError, match="between 0 and 65535; got 0 to 70000"):
        decode_rgb(data)


def test_alpha_is_composed_on_white() -> None:
    # 128/255 of black on white: 255 * 127/255 = 127.
    image = Image.fromarray(np.array([[[9, 8, 7, 255], [9, 8, 7, 0], [0, 0, 0, 128]]], dtype=np.uint8), "RGBA")

    assert decode_rgb(saved(image, "PNG")).tolist() == [[[9, 8, 7], [255, 255, 255], [127, 127, 127]]]


def test_a_transparent_palette_entry_is_white() -> None:
    image = Image.fromarray(np.array([[0, 1]], dtype=np.uint8), "P")
    image.putpalette([10, 20, 30, 40, 50, 60])

    assert decode_rgb(saved(image, "PNG", transparency=1)).tolist() == [[[10, 20, 30], [255, 255, 255]]]


@pytest.mark.parametrize(("mode", "dtype"), [("L", np.uint8), ("I;16", np.uint16)])
def test_a_transparent_gray_is_white(mode: str, dtype: type) -> None:
    image = Image.fromarray(np.array([[0, 200]], dtype=dtype))

    assert decode_rgb(saved(image, "PNG", transparency=0))[0, 0].tolist() == [255, 255, 255]


def test_cmyk_follows_pillow(encode: Callable[..., bytes]) -> None:
    data = encode("JPEG", "CMYK", quality=95)

    assert np.array_equal(decode_rgb(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 255, 0))]

    pixels = decode_rgb(saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True))

    assert np.array_equal(pixels, np.full((4, 4, 3), (255, 0, 0), dtype=np.uint8))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once(encode: Callable[..., bytes], picture: np.ndarray, orientation: int) -> None:
    upright = {
        1: picture,
        2: picture[:, ::-1],
        3: picture[::-1, ::-1],
        4: picture[::-1],
        5: picture.transpose(1, 0, 2),
        6: np.rot90(picture, -1),
        7: picture[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(picture),
    }[orientation]

    for form in ("PNG", "TIFF"):
        assert np.array_equal(decode_rgb(encode(form, orientation=orientation)), upright)


def second_opinion(data: bytes) -> np.ndarray:
    """formats.md's rules by Pillow's own functions, written independently of the code under test."""
    opened = Image.open(io.BytesIO(data))
    opened.load()
    image = ImageOps.exif_transpose(opened)
    if image.mode.startswith("I"):
        gray = np.rint(np.asarray(image).astype(np.float64) / 257).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image.getchannel("A"))
        return np.asarray(white)
    return np.asarray(image.convert("RGB"))


def shown_size(data: bytes) -> tuple[int, int]:
    width, height, orientation = image_frame(data)
    return (height, width) if orientation >= 5 else (width, height)


def test_every_odd_image_equals_pillow_or_is_rejected_with_a_reason(shared_data: Path) -> None:
    files = sorted(path for path in (shared_data / "odd-images").rglob("*") if path.is_file())
    assert len(files) >= 165
    accepted, rejected = [], {}
    for path in files:
        data = path.read_bytes()
        name = path.relative_to(shared_data / "odd-images").as_posix()
        out = torch.zeros((3, 32, 32), dtype=torch.uint8)
        try:
            header = check_image(data, "decode")
        except SampleRejectedError as error:
            rejected[name] = str(error)
            # What conversion rejects, the loader refuses too, by the same error.
            with pytest.raises(SampleRejectedError):
                decode_into(data, (0, 0, 1, 1), False, out)
            continue
        accepted.append(name)
        pixels = decode_rgb(data)
        assert np.array_equal(pixels, second_opinion(data)), name
        swapped = header.orientation >= 5
        assert pixels.shape == ((header.width, header.height, 3) if swapped else (header.height, header.width, 3)), name
        assert shown_size(data) == (pixels.shape[1], pixels.shape[0]), name
        decode_into(data, (0, 0, pixels.shape[1], pixels.shape[0]), False, out)
        small = Image.fromarray(pixels).resize((32, 32), Image.Resampling.BILINEAR)
        assert np.abs(out.permute(1, 2, 0).numpy().astype(int) - np.asarray(small)).mean() <= 0.5, name

    assert {"torchcodec/corrupt.jpg", "image-rs/bad/README.md", "torchcodec/sigsegv.png"} <= set(rejected)
    assert "image-rs/bad/bmp/Bad_reallybig.bmp" in rejected
    assert {"torchcodec/cmyk.jpg", "torchcodec/gradient_16bit.png", "exif-orientation/Landscape_6.jpg"} <= set(accepted)
    assert all(len(reason) > 20 for reason in rejected.values())
