"""Values of further fields, brought to the type that was declared for them."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import numpy as np

from wellfed.pipeline.errors import SampleRejectedError

from .base import Field


def row_name(row: int) -> bytes:
    """The name of a sample that has none of its own."""
    return b"row-%09d" % row


def typed_value(value: Any, field: Field) -> Any:
    """A sample's value for `field`: int or float, str, JSON value, array, or bytes.

    Raises:
        SampleRejectedError: it is missing, or not of the field's type; a number must be finite.
    """
    if value is None:
        raise SampleRejectedError(f"the sample must have a value for {field.name!r}")
    try:
        return _CONVERSIONS[field.type](value)
    except (TypeError, ValueError) as error:
        raise SampleRejectedError(f"the value for {field.name!r} must be {field.type}", got=str(error)) from error


def _number(value: Any) -> int | float:
    if isinstance(value, np.ndarray | np.generic):
        value = value.item()
    if isinstance(value, int):
        return int(value)
    if not isinstance(value, float | Decimal):
        raise TypeError(f"a value of type {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"the number {value}")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a value of type {type(value).__name__}")
    return value


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def _array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"an array of {array.dtype}")
    return array


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"a value of type {type(value).__name__}")
    return bytes(value)


_CONVERSIONS = {"number": _number, "text": _text, "json": _json, "array": _array, "bytes": _bytes}
