"""Descriptions of augmentations and outputs: what is refused, and how, and what survives JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from wellfed.pipeline import (
    ColorJitter,
    LoaderConfig,
    LoaderSettings,
    RandAugment,
    RandomErasing,
    RandomGrayscale,
    TrivialAugmentWide,
)
from wellfed.pipeline.errors import ConfigError

SETTINGS = LoaderSettings()


def test_ranges_are_torchvisions() -> None:
    jitter = ColorJitter(0.4, 1.5, (0.2, 0.8), 0.1)

    assert jitter.brightness == pytest.approx((0.6, 1.4))
    assert jitter.contrast == (0.0, 2.5)
    assert jitter.saturation == (0.2, 0.8)
    assert jitter.hue == (-0.1, 0.1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ColorJitter(-0.1), "brightness of ColorJitter must be at least 0"),
        (lambda: ColorJitter(contrast=(1.2, 0.8)), "first of contrast of ColorJitter must not exceed"),
        (lambda: ColorJitter(saturation="0.4"), "saturation of ColorJitter must be a finite number"),  # type: ignore[arg-type]
        (lambda: ColorJitter(hue=0.6), "hue of ColorJitter must be between 0 and 0.5"),
        (lambda: ColorJitter(hue=(-0.6, 0.1)), "each of hue of ColorJitter must be between -0.5 and 0.5"),
        (lambda: ColorJitter(0.4, p=1.5), "p of ColorJitter must be between 0 and 1"),
        (lambda: ColorJitter(True), "must be a finite number"),
        (lambda: RandomGrayscale(-1), "p of RandomGrayscale"),
        (lambda: RandAugment(0), "num_ops of RandAugment must be a whole number from 1"),
        (lambda: RandAugment(magnitude=31), "magnitude of RandAugment must be a whole number from 0 to 30; got 31"),
        (lambda: RandAugment(interpolation="bicubic"), "'nearest' or 'bilinear'; got 'bicubic'"),  # type: ignore[arg-type]
        (lambda: RandAugment(fill=(1, 2)), "fill of RandAugment must be a number or 3"),
        (lambda: TrivialAugmentWide(fill=256), "fill of TrivialAugmentWide must be between 0 and 255"),
        (lambda: TrivialAugmentWide(1), "num_magnitude_bins of TrivialAugmentWide"),
        (lambda: RandomErasing(scale=(0.1, 1.1)), "each of scale of RandomErasing"),
        (lambda: RandomErasing(ratio=(0, 1)), "ratio of RandomErasing must be above 0"),
        (lambda: RandomErasing(value="random"), "value of RandomErasing must be a finite number"),  # type: ignore[arg-type]
    ],
)
def test_values_out_of_range_are_refused_with_the_rule(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"normalize": "imagenet"}, r"normalized batches are floating point.*Give dtype='float32'"),
        ({"normalize": "imagenet", "dtype": "uint8"}, "normalized batches are floating point"),
        ({"dtype": "int8"}, "dtype must be one of 'uint8', 'float32', 'float16', 'bfloat16'; got 'int8'"),
        ({"dtype": torch.float64}, "dtype must be one of"),
        ({"dtype": "float32", "normalize": "cifar"}, "normalize is 'imagenet' or a pair"),
        ({"dtype": "float32", "normalize": (0.5, 0.5, 0.5)}, "normalize is 'imagenet' or a pair"),
        ({"dtype": "float32", "normalize": ((0.5, 0.5), (1, 1, 1))}, "mean of normalize must hold 3 numbers"),
        ({"dtype": "float32", "normalize": ((0, 0, 0), (0.2, 0.2, 0))}, "std of normalize must be above 0"),
        ({"dtype": "float32", "normalize": ((0, 0, 0), (0.2, 0.2, -1))}, "each of std of normalize must be between 0"),
        ({"dtype": "float32", "normalize": ((float("nan"), 0, 0), (1, 1, 1))}, "must be a finite number"),
        ({"device_augment": ColorJitter()}, "device_augment is a list of augmentations"),
        ({"device_augment": ["ColorJitter"]}, "each of device_augment must be one of ColorJitter"),
        ({"device_augment": [{"kind": "RandAugment", "ops": 2}]}, "RandAugment has no such values; got 'ops'"),
        ({"device_augment": [RandomErasing(), RandAugment()]}, "Put RandomErasing last"),
        ({"device_augment": [RandomErasing(value=0.5)]}, "whole number from 0 to 255 where the output is uint8"),
        ({"device_augment": [RandomErasing(value=300)]}, "whole number from 0 to 255 where the output is uint8"),
    ],
)
def test_outputs_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LoaderConfig(settings=SETTINGS, **options)


def test_dtypes_may_be_torchs_and_deviations_one_for_all_channels() -> None:
    config = LoaderConfig(settings=SETTINGS, dtype=torch.bfloat16, normalize=(0.5, [0.25]))  # type: ignore[arg-type]

    assert config.dtype == "bfloat16"
    assert config.normalize == ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    arrays = LoaderConfig(settings=SETTINGS, dtype="float32", normalize=(np.array([0.5, 0.25, 0.125]), torch.ones(3)))  # type: ignore[arg-type]
    assert arrays.normalize == ((0.5, 0.25, 0.125), (1.0, 1.0, 1.0))
    imagenet = LoaderConfig(settings=SETTINGS, dtype="float16", normalize="imagenet")  # type: ignore[arg-type]
    assert imagenet.normalize == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_a_configuration_with_everything_survives_json() -> None:
    config = LoaderConfig(
        settings=SETTINGS,
        dtype="float32",
        normalize=((0.1, 0.2, 0.3), (1.0, 2.0, 3.0)),
        device_augment=(
            ColorJitter(0.4, (0.5, 1.5), 0, 0.1, p=0.8),
            RandomGrayscale(0.2),
            RandAugment(3, 5, fill=(1, 2, 3)),
            TrivialAugmentWide(interpolation="bilinear"),
            RandomErasing(0.25, value=(0.1, 0.2, 0.3)),
        ),
    )

    assert LoaderConfig.from_json(config.to_json()) == config
