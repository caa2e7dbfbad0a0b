"""Drawn parameters: functions of (seed, epoch, key) with torchvision's distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wellfed.pipeline.augment.draw import draw_rectangles, draw_steps
from wellfed.pipeline.augment.operations import Operation, Step
from wellfed.pipeline.augmentations import (
    Augmentation,
    ColorJitter,
    RandAugment,
    RandomErasing,
    RandomGrayscale,
    TrivialAugmentWide,
)

KEYS = np.arange(4000, dtype=np.uint64)
EVERY: list[Augmentation] = [
    ColorJitter(0.4, 0.3, (0.5, 2.0), 0.1),
    RandomGrayscale(0.2),
    RandAugment(),
    TrivialAugmentWide(),
]


def steps_of(augmentations: list[Augmentation], keys: np.ndarray = KEYS, seed: int = 1, epoch: int = 0) -> list[Step]:
    return draw_steps(augmentations, seed=seed, epoch=epoch, keys=keys, image_size=224)


def rectangles_of(erasing: RandomErasing, keys: np.ndarray = KEYS, size: int = 224, **options: Any) -> np.ndarray:
    ((_, boxes),) = draw_rectangles([erasing], **{"seed": 1, "epoch": 0, **options}, keys=keys, image_size=size)
    return boxes


def same(some: list[Step], others: list[Step], rows: Any = slice(None)) -> bool:
    return all(
        np.array_equal(a.operations, b.operations[rows]) and np.array_equal(a.values, b.values[rows])
        for a, b in zip(some, others, strict=True)
    )


def test_a_sample_draws_the_same_whatever_it_is_drawn_with() -> None:
    whole = steps_of(EVERY)
    rows = [3999, 5, 6, 1000]

    assert same(steps_of(EVERY, KEYS[rows]), whole, rows)
    assert not same(steps_of(EVERY, seed=2), whole)
    assert not same(steps_of(EVERY, epoch=1), whole)
    erased = rectangles_of(RandomErasing())
    assert np.array_equal(rectangles_of(RandomErasing(), KEYS[rows]), erased[rows])
    assert not np.array_equal(rectangles_of(RandomErasing(), epoch=1), erased)


def test_another_augmentation_in_the_list_changes_none_of_the_others() -> None:
    jitter = steps_of([ColorJitter(0.4, 0.4, 0.4, 0.1)])

    assert same(steps_of([RandomGrayscale(), ColorJitter(0.4, 0.4, 0.4, 0.1), RandAugment()])[1:5], jitter)
    # And one that is listed twice is drawn twice.
    twice = steps_of([RandAugment(1), RandAugment(1)])
    assert not np.array_equal(twice[0].operations, twice[1].operations)


def test_jitter_uses_each_operation_once_in_a_random_order_with_factors_in_range() -> None:
    steps = steps_of([ColorJitter(0.4, 0.3, (0.5, 2.0), 0.1)])

    operations = np.stack([step.operations for step in steps], axis=1)
    assert np.array_equal(np.sort(operations, axis=1), np.tile([1, 2, 3, 4], (4000, 1)))
    orders, counts = np.unique(operations, axis=0, return_counts=True)
    # 24 orders of 167 on average, whose standard deviation is 12.6.
    assert len(orders) == 24
    assert 110 < counts.min() < counts.max() < 225
    for operation, low, high in [
        (Operation.BRIGHTNESS, 0.6, 1.4),
        (Operation.CONTRAST, 0.7, 1.3),
        (Operation.SATURATION, 0.5, 2.0),
        (Operation.HUE, -0.1, 0.1),
    ]:
        values = np.concatenate([step.values[step.operations == operation, 0] for step in steps])
        assert len(values) == 4000
        assert low <= values.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < values.max() <= high
        assert abs(values.mean() - (low + high) / 2) < 0.03 * (high - low)


def test_jitter_leaves_out_what_it_is_not_asked_for_and_samples_beyond_p() -> None:
    assert steps_of([ColorJitter()]) == []
    steps = steps_of([ColorJitter(brightness=0.2, saturation=0.2, p=0.3)])

    assert len(steps) == 2
    assert set(np.unique(steps[0].operations)) == {0, Operation.BRIGHTNESS, Operation.SATURATION}
    changed = steps[0].operations != 0
    assert np.array_equal(changed, steps[1].operations != 0)
    assert 0.27 < changed.mean() < 0.33


def test_policies_draw_all_operations_evenly_and_both_signs() -> None:
    steps = steps_of([RandAugment(num_ops=2, magnitude=9), TrivialAugmentWide()])

    assert len(steps) == 3
    for step in steps:
        # 5 of 14 move, 1 does nothing, each other is one.
        assert abs((step.operations == Operation.MOVE).mean() - 5 / 14) < 0.03
        for operation in (Operation.NONE, Operation.BRIGHTNESS, Operation.EQUALIZE, Operation.SOLARIZE):
            assert abs((step.operations == operation).mean() - 1 / 14) < 0.02
    assert not np.array_equal(steps[0].operations, steps[1].operations)
    brightness = steps[0].values[steps[0].operations == Operation.BRIGHTNESS, 0]
    # Magnitude 9 of 31 is 0.9 * 9 / 30.
    assert {round(float(value), 6) for value in brightness} == {0.73, 1.27}
    assert 0.35 < (brightness > 1).mean() < 0.65
    wide = steps[2].values[steps[2].operations == Operation.BRIGHTNESS, 0]
    assert len(set(wide.tolist())) > 50


def test_gray_takes_its_share() -> None:
    (step,) = steps_of([RandomGrayscale(0.2)])

    assert set(np.unique(step.operations)) == {0, Operation.GRAY}
    assert 0.17 < (step.operations == Operation.GRAY).mean() < 0.23


def test_rectangles_are_inside_with_the_area_and_ratio_asked_for() -> None:
    boxes = rectangles_of(RandomErasing(p=0.25, scale=(0.02, 0.33), ratio=(0.3, 3.3)))
    x, y, width, height = boxes[boxes[:, 2] > 0].T

    assert 0.22 < (boxes[:, 2] > 0).mean() < 0.28
    assert x.min() >= 0
    assert y.min() >= 0
    assert (x + width).max() <= 224
    assert (y + height).max() <= 224
    area, ratio = width * height / 224**2, height / width
    assert 0.018 < area.min() < 0.03
    assert 0.3 < area.max() < 0.34
    assert 0.28 < ratio.min() < 0.35
    assert 2.8 < ratio.max() < 3.5
    assert abs(np.median(np.log(ratio))) < 0.1


@pytest.mark.parametrize("size", [1, 2])
def test_pictures_too_small_for_a_rectangle_are_left_alone(size: int) -> None:
    boxes = rectangles_of(RandomErasing(p=1.0, scale=(0.9, 1.0)), size=size)

    assert (boxes[:, 2:] < size).all()
