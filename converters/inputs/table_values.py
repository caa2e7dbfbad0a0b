"""What the cells of a table mean: images inside them, labels, and further fields."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from wellfed.pipeline.errors import SampleRejectedError

from .base import Field
from .table_base import Held

_INDEX = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
_DIGITS = re.compile(r"[0-9]+")


def text_label(text: str, classes: frozenset[str]) -> object:
    """The label that a cell of a table without types holds: a class index where it is one, else a name.

    A number that is no index is returned as a float, for which the listing refuses the row.

    Args:
        classes: the given class names; a cell that is one of them is that name, whatever it looks like.
    """
    if text in classes:
        return text
    if _INDEX.fullmatch(text):
        # Where given names are numbers themselves, a number that is none of them is no index either.
        if any(_DIGITS.fullmatch(name) for name in classes):
            return text
        return int(text[:19])
    if _NUMBER.fullmatch(text.strip()) and not _DIGITS.fullmatch(text):
        return float(text)
    return text


def held_image(value: Any, is_base64: bool) -> bytes | str | None:
    """The image that a cell holds itself as bytes, or where it lies as text; None for none.

    Args:
        is_base64: whether text in this column is the image itself.

    Raises:
        SampleRejectedError: it is neither.
    """
    if isinstance(value, Mapping):
        inner = value.get("bytes")
        if inner is None:
            return held_image(value.get("path"), False)
        return held_image(inner, True)
    if value is None or isinstance(value, bytes):
        return value or None
    if isinstance(value, bytearray | memoryview):
        return bytes(value) or None
    if not isinstance(value, str):
        raise SampleRejectedError(f"the image must be a path, a URL or bytes, not {type(value).__name__}")
    if value.startswith("data:"):
        head, _, value = value.partition(",")
        if not head.endswith(";base64"):
            raise SampleRejectedError("a data URL of an image must be in Base64")
        is_base64 = True
    return (_base64(value) if is_base64 else value) or None


def is_inside(value: Any, is_base64: bool) -> bool:
    """Whether a cell holds the image itself, without decoding it."""
    if isinstance(value, Mapping):
        return value.get("bytes") is not None
    if value is None:
        return False
    return not isinstance(value, str) or is_base64 or value.startswith("data:")


def size_inside(value: Any) -> int:
    """About the bytes of an image that a cell holds itself."""
    if isinstance(value, Mapping):
        return size_inside(value.get("bytes"))
    if isinstance(value, Held):
        return value.size
    if isinstance(value, str):
        start = value.find(",") + 1 if value.startswith("data:") else 0
        return (len(value) - start) * 3 // 4 - value[-2:].count("=")
    return len(value) if isinstance(value, bytes) else 0


def field_value(value: Any, field: Field, typed: bool) -> Any:
    """A cell as what `typed_value` takes for the field: text of an untyped table is parsed, Base64 decoded.

    Raises:
        SampleRejectedError: it cannot be, or is empty in a table without types.
    """
    if not typed and value == "":
        raise SampleRejectedError(f"the sample must have a value for {field.name!r}")
    if isinstance(value, str) and field.type == "bytes":
        return _base64(value)
    if isinstance(value, np.ndarray) and field.type == "json":
        return value.tolist()
    if typed or not isinstance(value, str) or field.type == "text":
        return value
    try:
        if field.type == "number":
            return int(value) if _INDEX.fullmatch(value.strip()) else float(value)
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        what = "a number" if field.type == "number" else "JSON"
        raise SampleRejectedError(f"the value for {field.name!r} must be {what}") from error


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SampleRejectedError("the text must be Base64") from error
