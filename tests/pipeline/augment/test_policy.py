"""The spaces of RandAugment and TrivialAugmentWide against torchvision's own tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from wellfed.pipeline.augment.operations import Operation
from wellfed.pipeline.augment.policy import Policy, rand_augment_policy, trivial_augment_policy


@pytest.mark.parametrize("size", [32, 224])
@pytest.mark.parametrize(
    ("policy_of", "theirs"),
    [(rand_augment_policy, v2.RandAugment), (trivial_augment_policy, v2.TrivialAugmentWide)],
)
def test_operations_and_magnitudes_are_torchvisions(policy_of: Any, theirs: Any, size: int) -> None:
    policy: Policy = policy_of(31, size)
    space = theirs._AUGMENTATION_SPACE

    assert list(policy.names) == list(space)
    for number, (name, (magnitudes, signed)) in enumerate(space.items()):
        steps = magnitudes(31, size, size)
        for turned in range(2):
            for magnitude in (0, 1, 9, 15, 30):
                step = 0.0 if steps is None else float(steps[magnitude]) * (-1 if turned and signed else 1)
                got = policy.values[number, magnitude, turned]
                np.testing.assert_allclose(got, expected_values(name, step, size), atol=1e-5, err_msg=name)


def expected_values(name: str, step: float, size: int) -> list[float]:
    """By hand: the factor, the place that a pixel is taken from, the multiples kept, the threshold."""
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        return [1 + step, 0, 0, 0, 0, 0]
    if name == "Posterize":
        return [{8: 1, 7: 2, 6: 4, 5: 8, 4: 16, 3: 32, 2: 64}[int(step)], 0, 0, 0, 0, 0]
    if name == "Solarize":
        return [255 * step, 0, 0, 0, 0, 0]
    cosine, sine = math.cos(math.radians(step)), math.sin(math.radians(step))
    moves: dict[str, list[float]] = {
        "ShearX": [1, step, step * size / 2, 0, 1, 0],
        "ShearY": [1, 0, 0, step, 1, step * size / 2],
        "TranslateX": [1, 0, -int(step), 0, 1, 0],
        "TranslateY": [1, 0, 0, 0, 1, -int(step)],
        "Rotate": [cosine, -sine, 0, sine, cosine, 0],
    }
    return moves.get(name, [0, 0, 0, 0, 0, 0])


def test_a_policy_names_an_operation_for_each_of_torchvisions() -> None:
    policy = rand_augment_policy(31, 224)

    by_name = dict(zip(policy.names, policy.operations.tolist(), strict=True))

    assert by_name["Identity"] == Operation.NONE
    assert by_name["Color"] == Operation.SATURATION
    assert by_name["AutoContrast"] == Operation.AUTOCONTRAST
    assert {by_name[name] for name in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")} == {Operation.MOVE}
    assert set(policy.operations.tolist()) == set(Operation) - {Operation.HUE, Operation.GRAY}
    assert torch.linspace(0, 150 / 331 * 224, 31)[9].item() == pytest.approx(30.45, abs=0.01)
    # So a shift at torchvision's default magnitude is of 30 pixels.
    assert policy.values[policy.names.index("TranslateX"), 9, 0].tolist() == [1, 0, -30, 0, 1, 0]
