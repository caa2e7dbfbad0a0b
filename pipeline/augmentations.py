"""What can be done to a batch on its device: frozen descriptions with torchvision's names and meaning.

`DataLoader(..., device_augment=[...], dtype=..., normalize=...)` takes these; `pipeline.augment` carries them out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from .errors import ConfigError

__all__ = [
    "Augmentation",
    "ColorJitter",
    "DtypeName",
    "Normalization",
    "RandAugment",
    "RandomErasing",
    "RandomGrayscale",
    "TrivialAugmentWide",
    "as_augmentations",
    "as_dtype",
    "as_normalization",
]

DtypeName = Literal["uint8", "float32", "float16", "bfloat16"]
Interpolation = Literal["nearest", "bilinear"]
Normalization = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of the three channels, in units where a pixel is 0 to 1."""

IMAGENET: Normalization = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CHANNELS = 3


def _number(what: str, value: Any, low: float, high: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{what} must be a finite number", got=value, remedy="Give a number.")
    if not low <= value <= high:
        limits = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise ConfigError(f"{what} must be {limits}", got=value, remedy="Choose within the limits.")
    return float(value)


def _whole(what: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{what} must be a whole number from {low} to {high}", got=value, remedy="Choose one.")
    return value


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _pair(what: str, value: Any, low: float, high: float = math.inf) -> tuple[float, float]:
    if not _is_sequence(value) or len(value) != 2:
        raise ConfigError(f"{what} must be a pair (least, most)", got=value, remedy="Give two numbers.")
    least, most = (_number(f"each of {what}", each, low, high) for each in value)
    if least > most:
        raise ConfigError(f"the first of {what} must not exceed the second", got=value, remedy="Swap them.")
    return least, most


def _colour(what: str, value: Any, low: float, high: float) -> float | tuple[float, ...]:
    if not _is_sequence(value):
        return _number(what, value, low, high)
    if len(value) != CHANNELS:
        raise ConfigError(
            f"{what} must be a number or {CHANNELS}, one for each channel", got=value, remedy="Give that."
        )
    return tuple(_number(f"each of {what}", each, low, high) for each in value)


def _interpolation(owner: str, value: Any) -> None:
    if value not in get_args(Interpolation):
        raise ConfigError(
            f"interpolation of {owner} must be 'nearest' or 'bilinear'", got=value, remedy="Choose one of those."
        )


@dataclass(frozen=True)
class ColorJitter:
    """Change brightness, contrast, saturation and hue, in a random order for each sample, as torchvision's does.

    Attributes:
        brightness, contrast, saturation: the factor is uniform in max(0, 1 - value) .. 1 + value, or in the pair given.
        hue: the shift is uniform in -hue .. hue (at most 0.5, half the colour circle), or in the pair given.
        p: share of the samples that are changed at all.

    Raises:
        ConfigError: a value out of range.
    """

    brightness: float | tuple[float, float] = 0.0
    contrast: float | tuple[float, float] = 0.0
    saturation: float | tuple[float, float] = 0.0
    hue: float | tuple[float, float] = 0.0
    p: float = 1.0
    kind: Literal["ColorJitter"] = field(default="ColorJitter", init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            value = getattr(self, name)
            if not _is_sequence(value):
                _number(f"{name} of ColorJitter", value, 0)
                value = (max(0.0, 1.0 - value), 1.0 + value)
            object.__setattr__(self, name, _pair(f"{name} of ColorJitter", value, 0))
        hue = self.hue
        if not isinstance(hue, Sequence):
            _number("hue of ColorJitter", hue, 0, 0.5)
            hue = (-hue, hue)
        object.__setattr__(self, "hue", _pair("hue of ColorJitter", hue, -0.5, 0.5))
        _number("p of ColorJitter", self.p, 0, 1)


@dataclass(frozen=True)
class RandomGrayscale:
    """Make a share p of the samples gray, in three equal channels, as torchvision's does.

    Raises:
        ConfigError: a value out of range.
    """

    p: float = 0.1
    kind: Literal["RandomGrayscale"] = field(default="RandomGrayscale", init=False, repr=False)

    def __post_init__(self) -> None:
        _number("p of RandomGrayscale", self.p, 0, 1)


@dataclass(frozen=True)
class RandAugment:
    """`num_ops` of fourteen operations at one magnitude, drawn for each sample, as torchvision's RandAugment does.

    Attributes:
        num_ops: operations one after the other.
        magnitude: 0 .. num_magnitude_bins - 1.
        num_magnitude_bins: the steps from no to the strongest change.
        interpolation: "nearest" or "bilinear", of shears, shifts and rotations.
        fill: what these leave free, 0 .. 255; a number or one for each channel.

    Raises:
        ConfigError: a value out of range.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: float | tuple[float, ...] = 0.0
    kind: Literal["RandAugment"] = field(default="RandAugment", init=False, repr=False)

    def __post_init__(self) -> None:
        _whole("num_ops of RandAugment", self.num_ops, 1, 16)
        _whole("num_magnitude_bins of RandAugment", self.num_magnitude_bins, 2, 1000)
        _whole("magnitude of RandAugment", self.magnitude, 0, self.num_magnitude_bins - 1)
        _interpolation("RandAugment", self.interpolation)
        object.__setattr__(self, "fill", _colour("fill of RandAugment", self.fill, 0, 255))


@dataclass(frozen=True)
class TrivialAugmentWide:
    """One of fourteen operations at a random magnitude for each sample, as torchvision's TrivialAugmentWide does.

    Attributes:
        num_magnitude_bins: the steps from no to the strongest change.
        interpolation, fill: as in `RandAugment`.

    Raises:
        ConfigError: a value out of range.
    """

    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: float | tuple[float, ...] = 0.0
    kind: Literal["TrivialAugmentWide"] = field(default="TrivialAugmentWide", init=False, repr=False)

    def __post_init__(self) -> None:
        _whole("num_magnitude_bins of TrivialAugmentWide", self.num_magnitude_bins, 2, 1000)
        _interpolation("TrivialAugmentWide", self.interpolation)
        object.__setattr__(self, "fill", _colour("fill of TrivialAugmentWide", self.fill, 0, 255))


@dataclass(frozen=True)
class RandomErasing:
    """Overwrite a random rectangle in a share p of the samples, as torchvision's does; after normalization.

    Attributes:
        p: share of the samples.
        scale: area of the rectangle over that of the image, least and most.
        ratio: its height over its width, least and most.
        value: what is written, in units of the output (0 is the mean of a normalized batch); a number or one for each
            channel.

    Raises:
        ConfigError: a value out of range.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | tuple[float, ...] = 0.0
    kind: Literal["RandomErasing"] = field(default="RandomErasing", init=False, repr=False)

    def __post_init__(self) -> None:
        _number("p of RandomErasing", self.p, 0, 1)
        object.__setattr__(self, "scale", _pair("scale of RandomErasing", self.scale, 0, 1))
        ratio = _pair("ratio of RandomErasing", self.ratio, 0)
        if ratio[0] == 0:
            raise ConfigError("ratio of RandomErasing must be above 0", got=ratio, remedy="Raise its first number.")
        object.__setattr__(self, "ratio", ratio)
        object.__setattr__(self, "value", _colour("value of RandomErasing", self.value, -math.inf, math.inf))


Augmentation = ColorJitter | RandomGrayscale | RandAugment | TrivialAugmentWide | RandomErasing
KINDS: dict[str, type[Augmentation]] = {kind.__name__: kind for kind in get_args(Augmentation)}


def as_augmentations(given: Any, dtype: DtypeName = "uint8") -> tuple[Augmentation, ...]:
    """A list of augmentations, or of the JSON of some, checked together.

    Raises:
        ConfigError: something else; or RandomErasing before an augmentation of pixels, or with a value that the
            output's dtype does not hold.
    """
    if not _is_sequence(given):
        raise ConfigError(
            "device_augment is a list of augmentations",
            got=type(given).__name__,
            remedy="Write for example [ColorJitter(0.4, 0.4, 0.4), RandAugment()].",
        )
    augmentations = tuple(_as_augmentation(each) for each in given)
    erasing = False
    for each in augmentations:
        if isinstance(each, RandomErasing):
            erasing = True
            _check_erasing_value(each, dtype)
        elif erasing:
            raise ConfigError(
                "RandomErasing works on the normalized output, after all other augmentations",
                got=f"{each.kind} behind it",
                remedy="Put RandomErasing last.",
            )
    return augmentations


def _as_augmentation(given: Any) -> Augmentation:
    if isinstance(given, Augmentation):
        return given
    if isinstance(given, Mapping) and given.get("kind") in KINDS:
        kind = KINDS[given["kind"]]
        values = {name: value for name, value in given.items() if name != "kind"}
        unknown = sorted(set(values) - {each.name for each in dataclasses.fields(kind) if each.init})
        if not unknown:
            return kind(**values)
        raise ConfigError(f"{kind.__name__} has no such values", got=", ".join(unknown), remedy="Remove them.")
    raise ConfigError(
        f"each of device_augment must be one of {', '.join(KINDS)}, from wellfed.pipeline",
        got=type(given).__name__,
        remedy="Apply others yourself to the batches.",
    )


def _check_erasing_value(erasing: RandomErasing, dtype: DtypeName) -> None:
    values = erasing.value if isinstance(erasing.value, tuple) else (erasing.value,)
    if dtype == "uint8" and not all(0 <= value <= 255 and value == int(value) for value in values):
        raise ConfigError(
            "value of RandomErasing must be a whole number from 0 to 255 where the output is uint8",
            got=erasing.value,
            remedy="Choose one, or another dtype=.",
        )


def as_dtype(given: Any) -> DtypeName:
    """The name of a dtype, also of torch's own objects.

    Raises:
        ConfigError: none that batches can have.
    """
    name = str(given).removeprefix("torch.")
    if name not in get_args(DtypeName):
        raise ConfigError(
            f"dtype must be one of {', '.join(map(repr, get_args(DtypeName)))}",
            got=given,
            remedy="Choose one of those.",
        )
    return name  # type: ignore[return-value]


def as_normalization(given: Any, dtype: DtypeName) -> Normalization | None:
    """Mean and standard deviation from "imagenet" or a pair, each of three numbers or one for all channels.

    Raises:
        ConfigError: something else, a standard deviation that is not above 0, or an output of uint8.
    """
    if given is None:
        return None
    if dtype == "uint8":
        raise ConfigError(
            "normalized batches are floating point",
            got=f"normalize={given!r} with dtype='uint8'",
            remedy="Give dtype='float32', 'float16' or 'bfloat16', or leave normalize out.",
        )
    if isinstance(given, str) and given == "imagenet":
        return IMAGENET
    if not _is_sequence(given) or len(given) != 2:
        raise ConfigError(
            "normalize is 'imagenet' or a pair (mean, std), each of three numbers in units where a pixel is 0 to 1",
            got=given,
            remedy="Write for example normalize=((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)).",
        )
    mean = _three("mean of normalize", given[0], -1e3)
    std = _three("std of normalize", given[1], 0)
    if min(std) < 1e-6:
        raise ConfigError("std of normalize must be above 0", got=given[1], remedy="Give the data's deviation.")
    return mean, std


def _three(what: str, value: Any, low: float) -> tuple[float, ...]:
    value = value.tolist() if hasattr(value, "tolist") else value
    # As torchvision's Normalize: one number serves all channels.
    values = tuple(value) if _is_sequence(value) else (value,)
    if len(values) not in (1, CHANNELS):
        raise ConfigError(f"{what} must hold {CHANNELS} numbers", got=value, remedy="Give one for each channel.")
    checked = tuple(_number(f"each of {what}", each, low, 1e3) for each in values)
    return checked * (CHANNELS // len(checked))
