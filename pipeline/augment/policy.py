"""The operations of RandAugment and TrivialAugmentWide, and how strong each is at a magnitude, as in torchvision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from .geometry import Matrix, rotation, shear_x, shear_y, translation
from .operations import VALUES, Operation

__all__ = ["Policy", "rand_augment_policy", "trivial_augment_policy"]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One operation of a policy.

    Attributes:
        name: torchvision's.
        operation: what it is here.
        steps: its value at each magnitude; empty where it takes none.
        signed: the value's sign is drawn.
        as_values: from the value to what the operation takes.
    """

    name: str
    operation: Operation
    steps: tuple[float, ...] = ()
    signed: bool = False
    as_values: Callable[[float], tuple[float, ...]] = lambda value: (value,)


@dataclass(frozen=True)
class Policy:
    """The operations that a policy draws from, tabulated.

    Attributes:
        names: torchvision's, of k operations.
        operations: `Operation` of each; int8, shape (k,).
        values: what each takes at each magnitude, with the sign kept (0) and turned (1) where its sign is drawn;
            float32, shape (k, bins, 2, VALUES).
    """

    names: tuple[str, ...]
    operations: np.ndarray
    values: np.ndarray


def _tabulated(entries: Sequence[_Entry], bins: int) -> Policy:
    values = np.zeros((len(entries), bins, 2, VALUES), dtype=np.float32)
    for number, entry in enumerate(entries):
        for magnitude, value in enumerate(entry.steps):
            for turned in range(2):
                taken = entry.as_values(-value if turned and entry.signed else value)
                values[number, magnitude, turned, : len(taken)] = taken
    operations = np.array([entry.operation for entry in entries], dtype=np.int8)
    return Policy(tuple(entry.name for entry in entries), operations, values)


def _factor(value: float) -> tuple[float, ...]:
    return (1.0 + value,)


def _multiples(bits: float) -> tuple[float, ...]:
    return (2.0 ** (8 - int(bits)),)


def _threshold(value: float) -> tuple[float, ...]:
    return (255.0 * value,)


def _even(last: float, bins: int) -> tuple[float, ...]:
    """`bins` values from 0 on; by torch, whose rounding settles by how many whole pixels torchvision shifts."""
    return tuple(torch.linspace(0.0, last, bins).tolist())


def _policy(bins: int, size: int, *, shear: float, shift: float, degrees: float, strength: float, bits: int) -> Policy:
    def across(value: float) -> Matrix:
        return shear_x(value, size)

    def along(value: float) -> Matrix:
        return shear_y(value, size)

    def right(value: float) -> Matrix:
        return translation(int(value), 0)

    def down(value: float) -> Matrix:
        return translation(0, int(value))

    kept = (8 - (torch.arange(bins) / ((bins - 1) / bits))).round().tolist()
    moves = Operation.MOVE
    entries = (
        _Entry(name="Identity", operation=Operation.NONE),
        _Entry(name="ShearX", operation=moves, steps=_even(shear, bins), signed=True, as_values=across),
        _Entry(name="ShearY", operation=moves, steps=_even(shear, bins), signed=True, as_values=along),
        _Entry(name="TranslateX", operation=moves, steps=_even(shift, bins), signed=True, as_values=right),
        _Entry(name="TranslateY", operation=moves, steps=_even(shift, bins), signed=True, as_values=down),
        _Entry(name="Rotate", operation=moves, steps=_even(degrees, bins), signed=True, as_values=rotation),
        *(
            _Entry(name=name, operation=operation, steps=_even(strength, bins), signed=True, as_values=_factor)
            for name, operation in (
                ("Brightness", Operation.BRIGHTNESS),
                ("Color", Operation.SATURATION),
                ("Contrast", Operation.CONTRAST),
                ("Sharpness", Operation.SHARPNESS),
            )
        ),
        _Entry(name="Posterize", operation=Operation.POSTERIZE, steps=tuple(kept), as_values=_multiples),
        _Entry(
            name="Solarize",
            operation=Operation.SOLARIZE,
            steps=tuple(torch.linspace(1.0, 0.0, bins).tolist()),
            as_values=_threshold,
        ),
        _Entry(name="AutoContrast", operation=Operation.AUTOCONTRAST),
        _Entry(name="Equalize", operation=Operation.EQUALIZE),
    )
    return _tabulated(entries, bins)


@cache
def rand_augment_policy(bins: int, size: int) -> Policy:
    """torchvision's RandAugment, for pictures of this height and width."""
    return _policy(bins, size, shear=0.3, shift=150.0 / 331.0 * size, degrees=30.0, strength=0.9, bits=4)


@cache
def trivial_augment_policy(bins: int, size: int) -> Policy:
    """torchvision's TrivialAugmentWide, for pictures of this height and width."""
    return _policy(bins, size, shear=0.99, shift=32.0, degrees=135.0, strength=0.99, bits=6)
