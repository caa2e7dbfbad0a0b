"""How an input's fields are stored: which are members of their own, under which extension, and as which bytes."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from wellfed.pipeline.decode.header import EXTENSIONS
from wellfed.pipeline.errors import SampleRejectedError, UsageError

from .inputs import Field
from .inputs.base import EXTENSION_OF_TYPE
from .rejects import name_fields

_TAKEN = {"image", "class", "json", "cls", "txt", "npy", "bin", *EXTENSIONS.values()}
"""Names that no further field may have: of the usual fields, and extensions with a meaning."""

_LONGEST_NAME = 64
"""A member's name is its key and its extension, within the 100 bytes of a plain ustar header."""

_JSON = json.JSONEncoder(allow_nan=False)  # made once: json.dumps makes one at each call


@dataclass(frozen=True)
class Layout:
    """Fields as they are stored.

    Attributes:
        types: stored name to {"type", "ext"}, in order; the manifest's `field_types`.
        names: stored name to the input's name, for the fields beside image, class and json.
    """

    types: Mapping[str, Mapping[str, str | None]]
    names: Mapping[str, str]

    @classmethod
    def of(cls, fields: tuple[Field, ...]) -> Self:
        """Decide it.

        The first text is the member `txt`, one array `npy`, one bytes field `bin`; several arrays or bytes fields
        have their names as extensions. Further texts, numbers and JSON values go into the json member.

        Raises:
            UsageError: not exactly one class, more than one image, none and no further field, or names that cannot be
                told apart or are taken.
        """
        further = [field for field in fields if field.type not in ("image", "class")]
        for kind in ("image", "class"):
            found = [field.name for field in fields if field.type == kind]
            if len(found) != 1 and (kind == "class" or found or not further):
                raise UsageError(
                    f"a source must have one {kind} in each sample",
                    got=", ".join(found) or f"no field of type {kind}",
                    remedy=f"Say which it is (--{'image' if kind == 'image' else 'label'}-column).",
                )
        types: dict[str, Mapping[str, str | None]] = {}
        if any(field.type == "image" for field in fields):
            types["image"] = {"type": "image", "ext": None}
        types["class"] = {"type": "class", "ext": "cls"}
        names: dict[str, str] = {}
        inside: dict[str, Mapping[str, str | None]] = {}
        for field in further:
            name = re.sub(r"[^a-z0-9_]", "_", field.name.lower())
            if not re.match(r"[a-z]", name) or len(name) > _LONGEST_NAME or name in _TAKEN or name in names:
                raise UsageError(
                    f"a further field needs a name of its own, with a letter first, of at most {_LONGEST_NAME}",
                    got=f"{field.name!r}, stored as {name!r}",
                    remedy=f"Name it otherwise; letter case does not count, and these are taken: {_listed(_TAKEN)}.",
                )
            names[name] = field.name
            alike = [other for other in further if other.type == field.type]
            if field.type in ("number", "json") or (field.type == "text" and alike[0] is not field):
                inside[name] = {"type": field.type, "ext": "json"}
            else:
                types[name] = {
                    "type": field.type,
                    "ext": EXTENSION_OF_TYPE[field.type] if field.type == "text" or len(alike) == 1 else name,
                }
        types["json"] = {"type": "json", "ext": "json"}
        return cls({**types, **inside}, names)

    @property
    def members(self) -> Mapping[str, str | None]:
        """Fields that are members of their own, in order, with their extensions; None for the image's."""
        return {name: each["ext"] for name, each in self.types.items() if name == "json" or each["ext"] != "json"}

    def encode(
        self,
        *,
        label: int,
        class_name: str,
        name: bytes,
        image: bytes | None,
        values: Mapping[str, Any],
        made: Mapping[str, Any] | None = None,
    ) -> dict[str, bytes]:
        """The members' bytes by stored name, in order; `made` goes into the json member as `image`.

        Args:
            image: None where there is no such field.

        Raises:
            SampleRejectedError: a declared value is missing or of another type.
        """
        stored = {} if image is None else {"image": image}
        stored["class"] = b"%d" % label
        inside: dict[str, Any] = {}
        for stored_name, original in self.names.items():
            kind, ext = self.types[stored_name]["type"], self.types[stored_name]["ext"]
            value = values.get(original)
            if value is None:
                raise SampleRejectedError(f"the sample must have a value for {original!r}")
            if ext == "json":
                inside[original] = _json_value(original, kind, value)
            else:
                stored[stored_name] = _ENCODERS[str(kind)](original, value)
        document: dict[str, Any] = {"class": class_name, **name_fields(name)}
        document |= {**({"image": made} if made else {}), **({"fields": inside} if inside else {})}
        try:
            stored["json"] = _JSON.encode(document).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            raise SampleRejectedError("the sample's values must be finite JSON values", got=str(error)) from error
        return stored


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _json_value(name: str, kind: str | None, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if (kind == "number" and not number) or (kind == "text" and not isinstance(value, str)):
        raise SampleRejectedError(f"the value for {name!r} must be a {kind}", got=type(value).__name__)
    return value


def _text(name: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise SampleRejectedError(f"the value for {name!r} must be a text", got=type(value).__name__)
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SampleRejectedError(f"the value for {name!r} must be Unicode", got=str(error)) from error


def _bytes(name: str, value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise SampleRejectedError(f"the value for {name!r} must be bytes", got=type(value).__name__)
    return bytes(value)


def _array(name: str, value: Any) -> bytes:
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        raise SampleRejectedError(f"the value for {name!r} must be an array of numbers", got=type(value).__name__)
    buffer = io.BytesIO()
    # Contiguous, so that equal values give equal bytes.
    np.save(buffer, np.ascontiguousarray(value).reshape(value.shape), allow_pickle=False)
    return buffer.getvalue()


_ENCODERS = {"text": _text, "bytes": _bytes, "array": _array}
