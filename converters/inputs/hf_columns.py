"""Which columns of a Hugging Face dataset hold the image, the label and the further fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wellfed.pipeline.errors import UsageError

from .base import USUAL_FIELDS, InputOptions

if TYPE_CHECKING:
    import pyarrow as pa

_IMAGE_NAMES = ("image", "img")
_LABEL_NAMES = ("label", "labels", "class", "target")


@dataclass(frozen=True)
class Columns:
    """What to read.

    Attributes:
        image: column with the pictures.
        image_kind: "struct" of bytes and path, "bytes", or "path".
        label: column with the labels.
        class_names: of a ClassLabel; None for other labels.
        texts: names of the values of further ClassLabel columns that are taken as text.
    """

    image: str
    image_kind: str
    label: str
    class_names: tuple[str, ...] | None
    texts: Mapping[str, tuple[str, ...]]


def choose_columns(schema: pa.Schema, features: Mapping[str, Any], options: InputOptions) -> Columns:
    """By the options, else by type, else by name.

    Raises:
        UsageError: a column is missing, unclear, or of a type that cannot be what it is to be.
    """
    image = _one_column("image", options.image_column, schema, _IMAGE_NAMES, _of_type(features, "Image", schema))
    label = _one_column("label", options.label_column, schema, _LABEL_NAMES, _of_type(features, "ClassLabel", schema))
    for name, _ in options.columns:
        _require(name, "further field", schema)
        if name in [field.name for field in USUAL_FIELDS]:
            raise UsageError("a further field must not be called image or class", got=name)
    texts = {}
    for name, kind_of_field in options.columns:
        names = _class_names(features.get(name))
        if kind_of_field == "text" and names is not None:
            texts[name] = names
    if _nested(schema.field(label).type):
        raise UsageError(
            f"the label column {label!r} must hold one text or whole number a row", got=str(schema.field(label).type)
        )
    kind = _image_kind(image, schema)
    return Columns(image, kind, label, _class_names(features.get(label)), texts)


def _one_column(what: str, asked: str | None, schema: pa.Schema, usual: tuple[str, ...], typed: list[str]) -> str:
    if asked is not None:
        return _require(asked, what, schema)
    for candidates in (typed, [name for name in usual if name in schema.names]):
        if len(candidates) == 1:
            return candidates[0]
        preferred = [name for name in usual if name in candidates]
        if preferred:
            return preferred[0]
        if candidates:
            break
    raise UsageError(
        f"it must be clear which column holds the {what}",
        got=f"the columns {', '.join(schema.names)}",
        remedy=f"Name it (--{what}-column).",
    )


def _require(name: str, what: str, schema: pa.Schema) -> str:
    if name not in schema.names:
        raise UsageError(
            f"the {what} column must be one of the source's",
            got=name,
            remedy=f"It has {', '.join(schema.names)}.",
        )
    return name


def _of_type(features: Mapping[str, Any], kind: str, schema: pa.Schema) -> list[str]:
    return [
        name
        for name, feature in features.items()
        if isinstance(feature, dict) and feature.get("_type") == kind and name in schema.names
    ]


def _class_names(feature: Any) -> tuple[str, ...] | None:
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return tuple(map(str, names)) if isinstance(names, list) and names else None


def _nested(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(kind))


def _image_kind(name: str, schema: pa.Schema) -> str:
    import pyarrow as pa

    kind = schema.field(name).type
    if pa.types.is_struct(kind) and {kind.field(i).name for i in range(kind.num_fields)} & {"bytes", "path"}:
        return "struct"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "bytes"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "path"
    raise UsageError(
        f"the image column {name!r} must hold bytes, paths, or structs of both", got=str(kind), remedy="Name another."
    )
