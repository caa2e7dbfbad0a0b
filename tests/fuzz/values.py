"""What the loader reads of a sample beside its image: values of stored fields."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from wellfed.pipeline.formats import fields
from wellfed.pipeline.formats.fields import BadValue, StoredField

from .mutate import mutate_json
from .target import Case, Target


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def seeds() -> list[Case]:
    """A value of each type, and numbers and texts inside a json member."""
    document = json.dumps({"class": "a", "path": "a.jpg", "fields": {"It": 1.5, "other": "text"}}).encode()
    arrays = [np.arange(6).reshape(2, 3), np.asfortranarray(np.zeros((2, 3), ">f4")), np.array(True), np.zeros((0, 2))]
    return [
        *(("array", npy(array)) for array in arrays),
        ("text", "größer".encode()),
        ("number", b"-1.5"),
        ("json", b'[{"a": null}]'),
        ("bytes", b"\0\xff"),
        ("class", b"12"),
        *((f"inside:{kind}", document) for kind in ("number", "text", "json")),
    ]


def read_value(slot: str, data: bytes, folder: Path) -> None:
    """A value of its type or a reason comes out, the same of a view, and arrays are those that numpy reads."""
    where, _, kind = slot.rpartition(":")
    field = StoredField("it", kind, "json" if where else "it")  # type: ignore[arg-type]
    if where:
        value = fields._inside(field, fields._document(data))
    else:
        value = fields._value(field, data)
        assert type(fields._value(field, memoryview(data))) is type(value)
    if isinstance(value, BadValue):
        assert value.reason
    elif kind == "array":
        wanted = np.load(io.BytesIO(data), allow_pickle=False)
        assert (value.dtype, value.shape) == (wanted.dtype, wanted.shape)
        assert value.tobytes() == wanted.tobytes()
    elif kind != "json":
        types: dict[str, Any] = {"text": str, "number": (int, float), "bytes": bytes, "class": int}
        assert isinstance(value, types[kind])


def repair(rng: random.Random, slot: str, data: bytes) -> bytes:
    """JSON keeps its form in every second input."""
    return mutate_json(rng, data) if slot.startswith(("inside", "json")) and rng.random() < 0.5 else data


TARGETS = (
    Target(
        name="fields",
        run=read_value,
        seeds=seeds,
        modules=("wellfed.pipeline.formats.fields",),
        functions=("_value", "_inside", "_document", "_stored_name", "_array", "_npy_header", "_number"),
        words=(
            b"\x93NUMPY\1\0",
            b"\x93NUMPY\2\0",
            b"'shape': (4,)",
            b"'<u8'",
            b"'|O'",
            b"'<M8[s]'",
            b"{",
            b"[",
            b"1e400",
        ),
        repair=repair,
    ),
)
