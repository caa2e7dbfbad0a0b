"""Each operation against torchvision's functional of the same name and parameter, picture by picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from wellfed.pipeline.augment import colour, geometry
from wellfed.pipeline.augment.operations import Operation, Step, apply_groups, groups_of

FACTORS = [0.0, 0.1, 0.37, 0.6, 0.73, 0.9, 1.0, 1.1, 1.3, 1.63, 1.9, 3.0]
SHIFTS = [-0.5, -0.41, -0.2, -0.1, -0.03, 0.0, 0.01, 0.1, 0.25, 0.333, 0.47, 0.5]


def changed(pictures: torch.Tensor, change: Callable[[torch.Tensor], None]) -> torch.Tensor:
    planes = pictures.float().contiguous()
    change(planes)
    assert torch.equal(planes, planes.floor())
    assert float(planes.min()) >= 0
    assert float(planes.max()) <= 255
    return planes.to(torch.uint8)


def differences(got: torch.Tensor, expected: list[torch.Tensor]) -> np.ndarray:
    """Mean absolute difference of 255, of each picture."""
    return (got.float() - torch.stack(expected).float()).abs().mean(dim=(1, 2, 3)).numpy()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (colour.adjust_brightness, tv.adjust_brightness),
        (colour.adjust_contrast, tv.adjust_contrast),
        (colour.adjust_saturation, tv.adjust_saturation),
        (colour.adjust_sharpness, tv.adjust_sharpness),
        (colour.adjust_hue, tv.adjust_hue),
    ],
    ids=lambda each: each.__name__,
)
def test_a_parameter_for_each_picture_does_what_torchvision_does(
    pictures: torch.Tensor, ours: Any, theirs: Any
) -> None:
    parameters = SHIFTS if ours is colour.adjust_hue else FACTORS

    got = changed(pictures, lambda planes: ours(planes, torch.tensor(parameters)))

    expected = [theirs(picture, parameter) for picture, parameter in zip(pictures, parameters, strict=True)]
    off = differences(got, expected)
    # Rarely a value is cut off one lower or higher, where float32 lands beside a whole number: docs/loading.md.
    assert off.mean() <= 0.02
    assert off.max() <= 0.1
    assert int((got.int() - torch.stack(expected).int()).abs().max()) <= 1
    # And parameters that leave pictures alone do not make this pass.
    assert differences(got, list(pictures)).mean() > 1


@pytest.mark.parametrize(
    ("ours", "theirs", "parameters"),
    [
        (lambda planes: colour.make_gray(planes), lambda picture, _: tv.rgb_to_grayscale(picture, 3), [0] * 12),
        (lambda planes: colour.autocontrast(planes), lambda picture, _: tv.autocontrast(picture), [0] * 12),
        (lambda planes: colour.equalize(planes), lambda picture, _: tv.equalize(picture), [0] * 12),
        (
            lambda planes: colour.posterize(planes, torch.tensor([256.0, 128, 64, 32, 16, 8, 4, 2, 1, 16, 8, 4])),
            tv.posterize,
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 6],
        ),
        (
            lambda planes: colour.solarize(
                planes, torch.tensor([0.0, 255, 128, 1, 254, 77, 100.5, 200, 30, 90, 50, 5])
            ),
            tv.solarize,
            [0.0, 255, 128, 1, 254, 77, 100.5, 200, 30, 90, 50, 5],
        ),
    ],
    ids=["gray", "autocontrast", "equalize", "posterize", "solarize"],
)
def test_operations_on_whole_numbers_are_torchvisions_to_the_last_bit(
    pictures: torch.Tensor, ours: Any, theirs: Any, parameters: list[float]
) -> None:
    got = changed(pictures, ours)

    expected = [theirs(picture, parameter) for picture, parameter in zip(pictures, parameters, strict=True)]
    assert torch.equal(got, torch.stack(expected))
    assert differences(got, list(pictures)).max() > 1


@pytest.mark.parametrize("fill", [None, [10.0, 100.0, 200.0]])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("kind", ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"])
def test_moves_are_torchvisions(
    pictures: torch.Tensor, kind: str, interpolation: str, fill: list[float] | None
) -> None:
    size = pictures.shape[-1]
    slopes = [-0.3, -0.21, -0.13, -0.09, -0.02, 0.0, 0.01, 0.07, 0.11, 0.17, 0.23, 0.3]
    mode = {"interpolation": InterpolationMode(interpolation), "fill": fill}
    unmoved: dict[str, Any] = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    matrices, expected = [], []
    for slope, picture in zip(slopes, pictures, strict=True):
        pixels, degrees = round(slope * 100), slope * 100
        shear = math.degrees(math.atan(slope))
        if kind == "Rotate":
            matrices.append(geometry.rotation(degrees))
            expected.append(tv.rotate(picture, degrees, **mode))
        elif kind.startswith("Shear"):
            along_x = kind == "ShearX"
            matrices.append((geometry.shear_x if along_x else geometry.shear_y)(slope, size))
            angles = {"shear": [shear, 0.0] if along_x else [0.0, shear]}
            expected.append(tv.affine(picture, **{**unmoved, **angles}, center=[0, 0], **mode))
        else:
            by = [pixels, 0] if kind == "TranslateX" else [0, pixels]
            matrices.append(geometry.translation(*by))
            expected.append(tv.affine(picture, **{**unmoved, "translate": by}, **mode))

    colours = torch.tensor(fill or [0.0, 0.0, 0.0])
    got = changed(
        pictures,
        lambda planes: geometry.move(planes, torch.tensor(matrices), interpolation=interpolation, fill=colours),
    )

    off = differences(got, expected)
    # Where a place lies halfway between two pixels, "nearest" may take the other. torchvision weighs the fill at the
    # edges of "bilinear" twice.
    assert off.mean() <= (0.8 if interpolation == "bilinear" and fill else 0.05)
    assert off.max() <= (1.6 if interpolation == "bilinear" and fill else 0.3)
    assert differences(got, list(pictures)).mean() > 5


def test_each_sample_gets_its_own_operation_and_the_others_stay(pictures: torch.Tensor) -> None:
    # given two steps that mix operations, some of which several samples share
    first = [0, Operation.BRIGHTNESS, Operation.HUE, Operation.BRIGHTNESS, Operation.EQUALIZE, 0] * 2
    second = [Operation.GRAY, 0, Operation.CONTRAST, Operation.MOVE, Operation.SHARPNESS, 0] * 2
    values = np.zeros((2, 12, 6), dtype=np.float32)
    values[..., 0] = np.linspace(0.05, 0.45, 12)
    values[1, [3, 9]] = [geometry.translation(3, 0), geometry.translation(0, -4)]
    steps = [
        Step(operations=np.array(each, dtype=np.int8), values=of_step)
        for each, of_step in zip((first, second), values, strict=True)
    ]

    # when the batch is changed at once, and sample by sample
    together = pictures.float().contiguous()
    apply_groups(together, list(groups_of(steps, 0, 12)))
    alone = []
    for place in range(12):
        planes = pictures[place : place + 1].float().contiguous()
        apply_groups(planes, list(groups_of(steps, place, place + 1)))
        alone.append(planes)

    # then they are equal, and those without an operation as they were
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(together[5], pictures[5].float())
    assert torch.equal(together[11], pictures[11].float())
    expected = tv.affine(tv.adjust_brightness(pictures[9], float(values[0, 9, 0])), 0.0, [0, -4], 1.0, [0.0, 0.0])
    assert torch.equal(together[9].to(torch.uint8), expected)


def test_the_number_of_threads_changes_no_pixel() -> None:
    generator = torch.Generator().manual_seed(4)
    planes = torch.randint(0, 256, (4, 3, 331, 331), generator=generator).float()
    steps = [
        Step(operations=np.full(4, operation, dtype=np.int8), values=np.full((4, 6), value, dtype=np.float32))
        for operation, value in [
            (Operation.CONTRAST, 0.7),
            (Operation.HUE, 0.11),
            (Operation.SHARPNESS, 1.7),
            (Operation.SATURATION, 1.3),
            (Operation.BRIGHTNESS, 0.83),
        ]
    ]
    before = torch.get_num_threads()
    got = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            changed_planes = planes.clone()
            apply_groups(changed_planes, list(groups_of(steps, 0, 4)))
            got.append(changed_planes)
    finally:
        torch.set_num_threads(before)

    assert torch.equal(*got)
