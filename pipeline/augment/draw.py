"""The parameters of augmentations: pure functions of (seed, epoch, key)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..augmentations import Augmentation, ColorJitter, RandAugment, RandomErasing, RandomGrayscale, TrivialAugmentWide
from ..sampling import sample_words, uniform
from .operations import VALUES, Operation, Step
from .policy import Policy, rand_augment_policy, trivial_augment_policy

__all__ = ["draw_rectangles", "draw_steps"]

STREAM_SHIFT = 16
STREAMS: dict[type, int] = {
    ColorJitter: 1,
    RandomGrayscale: 2,
    RandAugment: 3,
    TrivialAugmentWide: 4,
    RandomErasing: 5,
}
"""Draws 0 .. 2**16 - 1 are the crop's. Each augmentation has the 2**16 from its number on, 256 for each time that it is
listed, so that adding one changes neither crops nor the others."""

ATTEMPTS = 10
"""torchvision's tries for a rectangle that fits, before nothing is erased."""

JITTER_OPERATIONS = (Operation.BRIGHTNESS, Operation.CONTRAST, Operation.SATURATION, Operation.HUE)
NO_JITTER = ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))


class _Draws:
    """Uniform numbers of one augmentation, for all samples of a batch at once."""

    def __init__(self, seed: int, epoch: int, keys: np.ndarray, first: int) -> None:
        self._seed, self._epoch, self._keys, self._first = seed, epoch, keys, first

    def __call__(self, number: int, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """float64 in [0, 1), shape (n, 4)."""
        return uniform(sample_words(self._seed, self._epoch, self._keys[rows], self._first + number))


def _streams(augmentations: Sequence[Augmentation]) -> list[int]:
    """The first draw of each augmentation."""
    seen: dict[type, int] = {}
    firsts = []
    for each in augmentations:
        time = seen[type(each)] = seen.get(type(each), -1) + 1
        firsts.append((STREAMS[type(each)] << STREAM_SHIFT) + time * 256)
    return firsts


def draw_steps(
    augmentations: Sequence[Augmentation], *, seed: int, epoch: int, keys: np.ndarray, image_size: int
) -> list[Step]:
    """What is done to the pixels of each sample, one step after the other; RandomErasing aside.

    Args:
        keys: sample keys, with repeats as `with_repeats` gives them; uint64, shape (n,).
        image_size: height and width, pixels.
    """
    steps: list[Step] = []
    for each, first in zip(augmentations, _streams(augmentations), strict=True):
        draws = _Draws(seed, epoch, keys, first)
        if isinstance(each, ColorJitter):
            steps += _jitter(each, draws, len(keys))
        elif isinstance(each, RandomGrayscale):
            gray = draws(0)[:, 0] < each.p
            operations = np.where(gray, Operation.GRAY, Operation.NONE).astype(np.int8)
            steps.append(Step(operations=operations, values=np.zeros((len(keys), VALUES), dtype=np.float32)))
        elif isinstance(each, RandAugment):
            policy = rand_augment_policy(each.num_magnitude_bins, image_size)
            bins = np.full(len(keys), each.magnitude)
            steps += [_drawn_from(policy, each, draws(number), bins) for number in range(each.num_ops)]
        elif isinstance(each, TrivialAugmentWide):
            policy = trivial_augment_policy(each.num_magnitude_bins, image_size)
            drawn = draws(0)
            steps.append(_drawn_from(policy, each, drawn, (drawn[:, 1] * each.num_magnitude_bins).astype(np.int64)))
    return steps


def _jitter(jitter: ColorJitter, draws: _Draws, count: int) -> list[Step]:
    ranges = np.array([jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue], dtype=np.float64)
    used = [number for number in range(4) if tuple(ranges[number]) != NO_JITTER[number]]
    if not used:
        return []
    factors = (ranges[:, 0] + draws(0) * (ranges[:, 1] - ranges[:, 0])).astype(np.float32)
    # Sorting four numbers at random is a random order; of those that are used, too.
    order = np.array(used)[np.argsort(draws(1)[:, used], axis=1, kind="stable")]
    changed = draws(2)[:, 0] < jitter.p
    operations = np.where(changed[:, None], np.array(JITTER_OPERATIONS)[order], Operation.NONE).astype(np.int8)
    steps = []
    for number in range(len(used)):
        values = np.zeros((count, VALUES), dtype=np.float32)
        values[:, 0] = factors[np.arange(count), order[:, number]]
        steps.append(Step(operations=np.ascontiguousarray(operations[:, number]), values=values))
    return steps


def _drawn_from(
    policy: Policy, augmentation: RandAugment | TrivialAugmentWide, drawn: np.ndarray, bins: np.ndarray
) -> Step:
    """Word 0 chooses the operation, 2 the sign."""
    chosen = (drawn[:, 0] * len(policy.operations)).astype(np.int64)
    fill = augmentation.fill if isinstance(augmentation.fill, tuple) else (augmentation.fill,) * 3
    return Step(
        operations=policy.operations[chosen],
        values=policy.values[chosen, bins, (drawn[:, 2] < 0.5).astype(np.int64)],
        interpolation=augmentation.interpolation,
        fill=(fill[0], fill[1], fill[2]),
    )


def draw_rectangles(
    augmentations: Sequence[Augmentation], *, seed: int, epoch: int, keys: np.ndarray, image_size: int
) -> list[tuple[RandomErasing, np.ndarray]]:
    """What each RandomErasing overwrites: x, y, width, height in the batch's pictures; int64, shape (n, 4).

    A width of 0 is nothing.
    """
    return [
        (each, _rectangles(each, _Draws(seed, epoch, keys, first), len(keys), image_size))
        for each, first in zip(augmentations, _streams(augmentations), strict=True)
        if isinstance(each, RandomErasing)
    ]


def _rectangles(erasing: RandomErasing, draws: _Draws, count: int, size: int) -> np.ndarray:
    boxes = np.zeros((count, 4), dtype=np.int64)
    open_rows = np.flatnonzero(draws(0)[:, 0] < erasing.p)
    low, high = (math.log(ratio) for ratio in erasing.ratio)
    for attempt in range(ATTEMPTS):
        if not len(open_rows):
            break
        u = draws(1 + attempt, open_rows)
        area = size * size * (erasing.scale[0] + u[:, 0] * (erasing.scale[1] - erasing.scale[0]))
        ratio = np.exp(low + u[:, 1] * (high - low))
        height = np.rint(np.sqrt(area * ratio)).astype(np.int64)
        width = np.rint(np.sqrt(area / ratio)).astype(np.int64)
        y = np.floor(u[:, 2] * (size - height + 1)).astype(np.int64)
        x = np.floor(u[:, 3] * (size - width + 1)).astype(np.int64)
        fits = (height < size) & (width < size)
        boxes[open_rows[fits]] = np.stack([x, y, width, height], axis=1)[fits]
        open_rows = open_rows[~fits]
    return boxes
