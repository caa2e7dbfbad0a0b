"""Crop boxes and flips: torchvision's rule, from (seed, epoch, key) alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wellfed.pipeline.decode.augment import crop_parameters, oriented_size
from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.sampling import sample_words


def train(keys: np.ndarray, width: int, height: int, *, seed: int = 0, epoch: int = 0) -> tuple[np.ndarray, np.ndarray]:
    n = len(keys)
    return crop_parameters(
        "train", seed=seed, epoch=epoch, keys=keys, widths=np.full(n, width), heights=np.full(n, height)
    )


def by_torchvisions_loop(key: int, width: int, height: int, seed: int, epoch: int) -> tuple[tuple[int, ...], bool]:
    """RandomResizedCrop.get_params as torchvision writes it, one sample at a time, on our random words."""

    def word(draw: int, number: int) -> float:
        return int(sample_words(seed, epoch, np.array([key], np.uint64), draw)[0, number]) / 2**32

    flip = word(10, 0) < 0.5
    for attempt in range(10):
        area = height * width * (0.08 + word(attempt, 0) * (1.0 - 0.08))
        low, high = math.log(3 / 4), math.log(4 / 3)
        ratio = math.exp(low + word(attempt, 1) * (high - low))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return (int(word(attempt, 2) * (width - w + 1)), int(word(attempt, 3) * (height - h + 1)), w, h), flip
    w, h = width, height
    if width / height < 3 / 4:
        h = round(w / (3 / 4))
    elif width / height > 4 / 3:
        w = round(h * (4 / 3))
    return ((width - w) // 2, (height - h) // 2, w, h), flip


@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (1, 1), (3, 2), (900, 40), (17, 800)])
def test_boxes_equal_torchvisions_rule_sample_by_sample(width: int, height: int) -> None:
    keys = np.array([0, 1, 2, 3, 250, 2**33 + 5], dtype=np.uint64)

    boxes, flips = train(keys, width, height, seed=11, epoch=3)

    assert boxes.dtype == np.int32
    assert boxes.shape == (6, 4)
    assert flips.dtype == bool
    for row, key in enumerate(keys.tolist()):
        assert (tuple(boxes[row].tolist()), bool(flips[row])) == by_torchvisions_loop(key, width, height, 11, 3)


def test_a_very_wide_picture_falls_back_to_the_central_box_of_ratio_4_to_3() -> None:
    # In 3000 x 3, eight percent of the area in a ratio of at most 4/3 is 23 pixels high: no attempt fits.
    boxes, _ = train(np.arange(20, dtype=np.uint64), 3000, 3)

    assert boxes.tolist() == [[1498, 0, 4, 3]] * 20


def test_a_very_tall_picture_falls_back_to_the_central_box_of_ratio_3_to_4() -> None:
    boxes, _ = train(np.arange(20, dtype=np.uint64), 3, 3000)

    assert boxes.tolist() == [[0, 1498, 3, 4]] * 20


def test_boxes_lie_within_the_picture_and_keep_scale_and_ratio() -> None:
    boxes, flips = train(np.arange(5000, dtype=np.uint64), 500, 375)
    x, y, w, h = boxes.astype(np.float64).T

    assert x.min() >= 0
    assert y.min() >= 0
    assert (x + w).max() <= 500
    assert (y + h).max() <= 375
    # Rounding to whole pixels moves the smallest boxes by less than 2 %.
    assert (w * h / (500 * 375)).min() > 0.08 * 0.98
    assert (w / h).min() > 3 / 4 * 0.98
    assert (w / h).max() < 4 / 3 * 1.02
    # 5,000 fair coins: 2,500 +- 35; five standard deviations.
    assert abs(int(flips.sum()) - 2500) < 177


def test_parameters_are_those_of_the_key_wherever_it_stands() -> None:
    keys = np.arange(64, dtype=np.uint64)
    widths, heights = np.arange(64) * 7 + 20, np.arange(64) * 3 + 30
    boxes, flips = crop_parameters("train", seed=1, epoch=2, keys=keys, widths=widths, heights=heights)
    some = np.array([63, 5, 17])

    again, flips_again = crop_parameters(
        "train", seed=1, epoch=2, keys=keys[some], widths=widths[some], heights=heights[some]
    )

    assert np.array_equal(again, boxes[some])
    assert np.array_equal(flips_again, flips[some])


def test_another_seed_or_epoch_gives_other_boxes() -> None:
    keys = np.arange(8, dtype=np.uint64)
    first = train(keys, 500, 375)[0]

    assert not np.array_equal(first, train(keys, 500, 375, seed=1)[0])
    assert not np.array_equal(first, train(keys, 500, 375, epoch=1)[0])


def test_eval_is_the_central_square_of_seven_eighths_and_no_flip() -> None:
    # 375 * 7/8 = 328.125 -> 328; (500-328)//2 = 86, (375-328)//2 = 23; 256 -> 224; 1 -> 0.875 -> 1.
    boxes, flips = crop_parameters(
        "eval",
        seed=0,
        epoch=0,
        keys=np.arange(4, dtype=np.uint64),
        widths=np.array([500, 375, 256, 1]),
        heights=np.array([375, 500, 256, 9]),
    )

    assert boxes.tolist() == [[86, 23, 328, 328], [23, 86, 328, 328], [16, 16, 224, 224], [0, 4, 1, 1]]
    assert boxes.dtype == np.int32
    assert flips.tolist() == [False] * 4


@pytest.mark.parametrize("augment", ["train", "eval"])
def test_a_size_that_is_not_known_is_refused(augment: str) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        crop_parameters(
            augment,  # type: ignore[arg-type]
            seed=0,
            epoch=0,
            keys=np.arange(2, dtype=np.uint64),
            widths=np.array([4, 0]),
            heights=np.array([4, 0]),
        )


@pytest.mark.parametrize("augment", ["train", "eval"])
def test_no_samples_give_no_boxes(augment: str) -> None:
    none = np.empty(0, dtype=np.uint64)

    boxes, flips = crop_parameters(augment, seed=0, epoch=0, keys=none, widths=none, heights=none)  # type: ignore[arg-type]

    assert boxes.shape == (0, 4)
    assert flips.shape == (0,)


def test_orientations_5_to_8_swap_width_and_height() -> None:
    widths, heights = oriented_size(
        np.full(8, 40, np.uint32), np.full(8, 30, np.uint32), np.arange(1, 9, dtype=np.uint8)
    )

    assert widths.tolist() == [40, 40, 40, 40, 30, 30, 30, 30]
    assert heights.tolist() == [30, 30, 30, 30, 40, 40, 40, 40]
