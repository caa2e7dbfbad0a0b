"""`wellfed.json`: what a converted dataset holds, written last, so that its presence means the dataset is whole."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from ..errors import DamagedDatasetError, SchemaVersionError

MANIFEST_NAME = "wellfed.json"
SCHEMA = "wellfed-dataset"
SCHEMA_VERSION = 1

STREAMS = 16
"""Shards that order="sharded" reads at the same time, where the manifest does not say: more mix better, fewer read
longer stretches. Ranks share them without overlap where their number divides it."""

_AGAIN = "Convert the dataset again, or copy the file again from where it is whole."
_LARGEST = (1 << 63) - 1
_FIELD = re.compile(r"[a-z][a-z0-9_]*\Z")
_EXTENSION = re.compile(r"[a-z0-9_-]+\Z")
_USUAL_TYPES: Mapping[str, Mapping[str, str | None]] = {
    "image": {"type": "image", "ext": None},
    "class": {"type": "class", "ext": "cls"},
    "json": {"type": "json", "ext": "json"},
}
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One data file of a dataset.

    Attributes:
        name: file name inside the dataset's folder.
        samples: samples stored in it.
        size: bytes.
        sha256: hex digest of the whole file.
    """

    name: str
    samples: int
    size: int
    sha256: str

    def __post_init__(self) -> None:
        _check_file_name("a shard's name", self.name)
        _check_count(f"the samples of shard {self.name!r}", self.samples)
        _check_count(f"the size of shard {self.name!r}", self.size)
        _check_sha256(f"the sha256 of shard {self.name!r}", self.sha256)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of a converted dataset; nothing in it depends on clock, host, workers or absolute paths.

    Attributes:
        kind: how samples are stored.
        samples: stored samples, the sum over the shards.
        class_names: a label is a position in it. Names that are not UTF-8 hold surrogate escapes.
        fields: stored fields of a sample: "image", "class", "json", and what else the source had.
        field_types: {"type", "ext"} of each field. A field is a member of its own with that extension (None: the
            image's, in the index); one whose ext is "json" is a value in `fields` of the json member.
        shards: data files, in the order that the index's `shard` column counts.
        files: SHA-256 of every other published file, by name.
        options: the conversion's options that shaped the output.
        source: {"kind", "name", "fingerprint", "found", "rejected", "skipped"} of the input.
        notes: counted remarks on converted samples, such as "grayscale".
        tool_version: the wellfed that wrote it.
        streams: shards that order="sharded" reads at the same time, 1 to 65536; part of that order.

    Raises:
        DamagedDatasetError: a value of another type, out of range, or contradicting another.
    """

    kind: Literal["webdataset", "lmdb"]
    samples: int
    class_names: tuple[str, ...]
    fields: tuple[str, ...]
    shards: tuple[Shard, ...]
    files: Mapping[str, str]
    options: Mapping[str, Any]
    source: Mapping[str, Any]
    notes: Mapping[str, int]
    tool_version: str
    field_types: Mapping[str, Mapping[str, str | None]] = dataclasses.field(default_factory=dict)
    streams: int = STREAMS

    def __post_init__(self) -> None:
        if self.kind not in ("webdataset", "lmdb"):
            raise _damaged("the manifest's kind must be 'webdataset' or 'lmdb'", self.kind)
        _check_count("the manifest's samples", self.samples)
        _check_names("class_names", self.class_names)
        _check_names("fields", self.fields)
        for field in self.fields:
            if not _FIELD.match(field):
                raise _damaged("each field must be a lower-case word", field)
        if not self.field_types:
            usual = {field: _USUAL_TYPES[field] for field in self.fields if field in _USUAL_TYPES}
            object.__setattr__(self, "field_types", usual)
        _check_field_types(self.fields, self.field_types)
        if not isinstance(self.shards, tuple) or not all(isinstance(shard, Shard) for shard in self.shards):
            raise _damaged("the manifest's shards must be a list of shards", self.shards)
        _check_names("shard names", tuple(shard.name for shard in self.shards))
        total = sum(shard.samples for shard in self.shards)
        if total != self.samples:
            raise _damaged(f"the shards' samples must add up to the manifest's {self.samples}", total)
        for name in ("files", "options", "source", "notes"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise _damaged(f"the manifest's {name} must be a JSON object", value)
        for name, digest in self.files.items():
            _check_file_name("a name in the manifest's files", name)
            _check_sha256(f"the sha256 of {name!r}", digest)
        for note, count in self.notes.items():
            _check_count(f"the count of note {note!r}", count)
        if not isinstance(self.tool_version, str):
            raise _damaged("the manifest's tool_version must be text", self.tool_version)
        _check_count("the manifest's streams", self.streams)
        if not 1 <= self.streams <= 1 << 16:
            raise _damaged("the manifest's streams must be between 1 and 65536", self.streams)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read a dataset folder's manifest.

        Raises:
            DamagedDatasetError: missing, unreadable, not JSON, unknown or missing fields, or values out of range.
            SchemaVersionError: written by a newer wellfed.
        """
        path = Path(directory) / MANIFEST_NAME
        try:
            data = json.loads(path.read_bytes().decode("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise _damaged(f"the manifest {str(path)!r} must be readable JSON in UTF-8", str(error)) from error
        try:
            return cls.from_dict(data)
        except DamagedDatasetError as error:
            raise DamagedDatasetError(
                f"the manifest {str(path)!r} is damaged: {error.rule}", got=error.got, remedy=error.remedy
            ) from error
        except SchemaVersionError as error:
            raise SchemaVersionError(f"{str(path)!r}: {error.rule}", got=error.got, remedy=error.remedy) from error

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Build from parsed JSON; raises as `load` does."""
        values = _object("the manifest", data)
        schema = values.pop("schema", None)
        if schema != SCHEMA:
            raise _damaged(f"the manifest's schema must be {SCHEMA!r}", schema)
        version = values.pop("schema_version", None)
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise _damaged("the manifest's schema_version must be a whole number of at least 1", version)
        if version > SCHEMA_VERSION:
            raise SchemaVersionError(
                f"the dataset was written with a schema newer than this wellfed's {SCHEMA_VERSION}",
                got=version,
                remedy="Upgrade wellfed, or convert the dataset again with this version.",
            )
        _check_fields("the manifest", values, cls)
        for name in ("class_names", "fields", "shards"):
            if not isinstance(values[name], list):
                raise _damaged(f"the manifest's {name} must be a list", values[name])
        shards = []
        for position, item in enumerate(values["shards"]):
            shard = _object(f"shard {position} of the manifest", item)
            _check_fields(f"shard {position} of the manifest", shard, Shard)
            shards.append(Shard(**shard))
        values.update(shards=tuple(shards), class_names=tuple(values["class_names"]), fields=tuple(values["fields"]))
        return cls(**values)

    def dump(self) -> str:
        """The manifest's text: sorted keys, ASCII, one line a value; equal manifests give equal bytes."""
        data = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
        }
        for name in ("files", "options", "source", "notes"):
            data[name] = dict(data[name])
        data["field_types"] = {name: dict(each) for name, each in self.field_types.items()}
        return json.dumps(data, sort_keys=True, indent=1) + "\n"

    @cached_property
    def members(self) -> Mapping[str, str | None]:
        """The fields that are members of their own, in the order they are stored, with their extensions."""
        types = self.field_types
        return {field: types[field]["ext"] for field in self.fields if field == "json" or types[field]["ext"] != "json"}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 hex digest over the shards' digests and the class names: the identity of the stored samples."""
        digest = hashlib.sha256()
        for shard in self.shards:
            digest.update(shard.sha256.encode() + b"\n")
        digest.update(class_names_digest(self.class_names))
        return digest.hexdigest()


def class_names_digest(class_names: tuple[str, ...]) -> bytes:
    """SHA-256 of the names in their order; surrogate escapes (bytes that are not UTF-8) are hashed as they are."""
    digest = hashlib.sha256()
    for name in class_names:
        encoded = name.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(encoded) + encoded)
    return digest.digest()


def _damaged(rule: str, got: Any) -> DamagedDatasetError:
    text = repr(got) if not isinstance(got, str) else got
    return DamagedDatasetError(rule, got=text if len(text) <= 200 else text[:200] + "...", remedy=_AGAIN)


def _object(what: str, data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise _damaged(f"{what} must be a JSON object", type(data).__name__)
    return dict(data)


def _check_fields(what: str, values: dict[str, Any], kind: type[Manifest] | type[Shard]) -> None:
    known = {field.name for field in dataclasses.fields(kind)}
    if unknown := sorted(set(values) - known):
        raise _damaged(f"{what} must have no fields but {', '.join(sorted(known))}", ", ".join(unknown))
    # Manifests were written without these before there was need of them; their defaults hold then.
    if missing := sorted(known - set(values) - {"field_types", "streams"}):
        raise _damaged(f"{what} must have every field", f"no {', '.join(missing)}")


def _check_count(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise _damaged(f"{what} must be a whole number from 0 on", value)


def _check_names(what: str, names: Any) -> None:
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
        raise _damaged(f"the manifest's {what} must be a list of non-empty texts", names)
    if len(set(names)) != len(names):
        raise _damaged(f"the manifest's {what} must all differ", names)


def _check_field_types(fields: tuple[str, ...], types: Any) -> None:
    if not isinstance(types, Mapping) or set(types) != set(fields):
        raise _damaged("the manifest's field_types must be those of its fields", types)
    for field, each in types.items():
        if not isinstance(each, Mapping) or set(each) != {"type", "ext"} or not isinstance(each["type"], str):
            raise _damaged(f"the type of field {field!r} must have type and ext", each)
        ext = each["ext"]
        if (ext is None) != (field == "image") or (ext is not None and not _is_extension(ext)):
            raise _damaged(f"the ext of field {field!r} must be a lower-case extension, the image's null", ext)
    members = [each["ext"] for field, each in types.items() if field == "json" or each["ext"] != "json"]
    if len(set(members)) != len(members):
        raise _damaged("members must have different extensions", members)


def _is_extension(value: Any) -> bool:
    return isinstance(value, str) and bool(_EXTENSION.match(value))


def _check_file_name(what: str, name: Any) -> None:
    # A manifest from elsewhere must not make us open a file outside the dataset's folder.
    if not isinstance(name, str) or name in ("", ".", "..") or any(c in name for c in "/\\\0"):
        raise _damaged(f"{what} must be a plain file name without folders", name)


def _check_sha256(what: str, value: Any) -> None:
    if not isinstance(value, str) or not _SHA256.match(value):
        raise _damaged(f"{what} must be 64 lower-case hexadecimal digits", value)
