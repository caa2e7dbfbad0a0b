"""Crops of the stored pixels, turned and mirrored, are those of the upright picture."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageOps

from wellfed.pipeline.decode.orientation import stored_boxes, turns_after


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_stored_crop_turned_is_the_upright_crop_as_pillow_has_it(orientation: int, flip: bool) -> None:
    # given a picture of 5 x 7 different pixels that says it is turned, and a crop of the upright picture
    stored = np.arange(35, dtype=np.uint8).reshape(7, 5)
    image = Image.fromarray(stored)
    image.getexif()[0x0112] = orientation
    upright = ImageOps.exif_transpose(image)
    x, y, width, height = box = (1, 2, 3, 2)
    expected = np.asarray(upright.crop((x, y, x + width, y + height)))
    expected = expected[:, ::-1] if flip else expected

    # when the same crop is taken from the pixels as stored, mirrored and transposed
    sizes = np.array([5]), np.array([7])
    (stored_box,) = stored_boxes(np.array([box]), *sizes, np.array([orientation], dtype=np.uint8))
    mirrored, upended, transposed = turns_after(np.array([orientation], dtype=np.uint8), np.array([flip]))
    x, y, width, height = stored_box.tolist()
    crop = stored[y : y + height, x : x + width]
    crop = crop[:, ::-1] if mirrored[0] else crop
    crop = crop[::-1] if upended[0] else crop
    crop = crop.T if transposed[0] else crop

    assert np.array_equal(crop, expected)


def test_orientation_6_by_hand() -> None:
    # A picture stored 40 wide and 30 high that is shown 30 wide and 40 high, turned by a quarter clockwise: its upper
    # right corner is the stored upper left one.
    boxes = stored_boxes(np.array([[20, 0, 10, 5]]), np.array([40]), np.array([30]), np.array([6], dtype=np.uint8))

    assert boxes.tolist() == [[0, 0, 5, 10]]
    assert boxes.dtype == np.int32
