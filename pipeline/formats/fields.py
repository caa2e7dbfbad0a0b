"""The stored fields of a dataset beside its image: which there are, and their values for rows."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from .base import Source
from .index import index_rows
from .mix import Mix
from .npy import parse_npy
from .reading import Encoded
from .repeat import RepeatedSource
from .stored import StoredSource

__all__ = ["BadValue", "StoredField", "mean_sizes", "read_values", "stored_fields"]

FieldType = Literal["image", "class", "number", "text", "json", "array", "bytes"]


@dataclass(frozen=True)
class StoredField:
    """A field that every sample of a dataset has.

    Attributes:
        name: as the manifest has it.
        type: "number", "text" and "json" are JSON values, "array" is a NumPy array, "bytes" is any bytes.
        member: the stored member that holds its value; "json" where it is one of the values in that document.
    """

    name: str
    type: FieldType
    member: str


@dataclass(frozen=True)
class BadValue:
    """Stands for a value whose stored bytes are not what their field's type says."""

    reason: str


def stored_fields(source: Source) -> Mapping[str, StoredField]:
    """The fields of a dataset by name; of a `Mix` those that all of its datasets have, of the same type."""
    if isinstance(source, RepeatedSource):
        return stored_fields(source.source)
    if isinstance(source, Mix):
        each = [stored_fields(part) for part, _ in source.parts]
        return {
            name: field
            for name, field in each[0].items()
            if all(name in other and other[name].type == field.type for other in each[1:])
        }
    if not isinstance(source, StoredSource):
        return {"image": StoredField("image", "image", "image"), "class": StoredField("class", "class", "class")}
    manifest = source.manifest
    fields = {}
    for name in manifest.fields:
        kind: Any = manifest.field_types[name]["type"]
        fields[name] = StoredField(name, kind, name if name in manifest.members else "json")
    return fields


def read_values(source: Source, rows: np.ndarray, names: Sequence[str]) -> dict[str, list[Any]]:
    """The values of these fields for rows, shape (n,), in their order: a list of n for each name.

    Numbers are int or float, texts str, JSON values what they are in Python, bytes `bytes`; arrays are NumPy arrays
    over the bytes that were read. A value that its bytes do not give is a `BadValue`.

    Raises:
        DamagedDatasetError: a sample's bytes are missing.
        KeyError: the dataset has no such field.
    """
    if isinstance(source, RepeatedSource):
        return read_values(source.source, rows % len(source.source), names)
    if isinstance(source, Mix):
        return _of_mix(source, rows, names)
    fields = [stored_fields(source)[name] for name in names]
    values: dict[str, list[Any]] = {name: [] for name in names}
    if not isinstance(source, StoredSource):
        raise KeyError(names)
    members = {member: source.read_members(rows, member) for member in sorted({field.member for field in fields})}
    documents = [_document(data) for data in members.get("json", ())]
    for field in fields:
        if field.member == "json":
            values[field.name] = [_inside(field, document) for document in documents]
        else:
            values[field.name] = [_value(field, data) for data in members[field.member]]
    return values


def _of_mix(mix: Mix, rows: np.ndarray, names: Sequence[str]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {name: [None] * len(rows) for name in names}
    located = [mix.locate(row) for row in rows.tolist()]
    for part in {id(source): source for source, _ in located}.values():
        places = [place for place, (source, _) in enumerate(located) if source is part]
        own = np.array([located[place][1] for place in places], dtype=np.int64)
        for name, column in read_values(part, own, names).items():
            for place, value in zip(places, column, strict=True):
                values[name][place] = value
    return values


def mean_sizes(source: Source, names: Sequence[str]) -> float:
    """Mean bytes that these fields take in a sample as stored, from at most 4,096 rows; the json member once."""
    if isinstance(source, RepeatedSource):
        return mean_sizes(source.source, names)
    if isinstance(source, Mix):
        return max(mean_sizes(part, names) for part, _ in source.parts)
    if not isinstance(source, StoredSource) or not len(source):
        return 0.0
    fields = stored_fields(source)
    rows = np.linspace(0, len(source) - 1, min(len(source), 4096)).astype(np.int64)
    entries = index_rows(source.index, rows)
    return float(sum(entries[f"size_{member}"].mean() for member in {fields[name].member for name in names}))


def _value(field: StoredField, data: Encoded) -> Any:
    try:
        return _DECODERS[field.type](data)
    except (ValueError, RecursionError) as error:
        return BadValue(f"its {field.name} is no {field.type}: {error}")


def _inside(field: StoredField, document: Any) -> Any:
    """A value in the json member, or all of it."""
    if isinstance(document, BadValue) or field.name == "json":
        return document
    inside = document.get("fields") if isinstance(document, dict) else None
    for name, value in inside.items() if isinstance(inside, dict) else ():
        if _stored_name(name) == field.name and _FITS[field.type](value):
            return value
    return BadValue(f"its json member has no {field.type} for {field.name!r}")


def _document(data: Encoded) -> Any:
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        return BadValue(f"its json member is no JSON: {error}")


@lru_cache(maxsize=4096)
def _stored_name(name: str) -> str:
    """The name that the manifest has for a value in the json member, which keeps the source's own."""
    return re.sub(r"[^a-z0-9_]", "_", name.lower())


def _array(data: Encoded) -> np.ndarray:
    # Arrays of one shape and type have one header; parsing it takes longer than all the rest.
    start = 10 + int.from_bytes(data[8:10], "little")
    if data[:8] == b"\x93NUMPY\x01\x00" and len(data) >= start:
        shape, fortran, dtype = _npy_header(bytes(data[:start]))
        count = math.prod(shape)
        if not dtype.hasobject and len(data) - start == count * dtype.itemsize:
            values = np.frombuffer(data, dtype, count, start)
            return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)
    return parse_npy(bytes(data))


@lru_cache(maxsize=1024)
def _npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        return np.lib.format.read_array_header_1_0(io.BytesIO(header[8:]))
    except ValueError:
        raise
    except Exception as error:
        # It is a Python literal: a damaged one raises what the tokenizer, the compiler or dtypes do.
        raise ValueError(f"its header is damaged ({type(error).__name__})") from error


def _number(data: Encoded) -> int | float:
    value = json.loads(bytes(data))
    if not _FITS["number"](value):
        raise ValueError("it holds something else")
    return value


_DECODERS: Mapping[str, Callable[[Encoded], Any]] = {
    "array": _array,
    "bytes": bytes,
    "class": lambda data: int(bytes(data)),
    "image": bytes,
    "json": lambda data: json.loads(bytes(data)),
    "number": _number,
    "text": lambda data: str(data, "utf-8"),
}

_FITS: Mapping[str, Callable[[Any], bool]] = {
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "text": lambda value: isinstance(value, str),
    "json": lambda value: True,
}
