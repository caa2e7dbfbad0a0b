"""A converted dataset as input: LMDB and WebDataset into each other, the image bytes untouched."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from wellfed.pipeline.errors import (
    DamagedDatasetError,
    SampleRejectedError,
    SourceChangedError,
    UsageError,
)
from wellfed.pipeline.formats import INDEX_NAME, Manifest, open_index, open_source
from wellfed.pipeline.formats.manifest import MANIFEST_NAME
from wellfed.pipeline.formats.names import open_names
from wellfed.pipeline.formats.npy import parse_npy
from wellfed.pipeline.formats.stored import StoredSource

from ..rejects import REJECTS_NAME, iterate_rejects
from .base import Field, FieldType, InputOptions, Record
from .listing import ListedInput, Listing, ListingBuilder


def matches(location: str) -> bool:
    """A folder with a manifest of wellfed's."""
    return os.path.lexists(os.path.join(location, MANIFEST_NAME))


class StoredInput(ListedInput):
    """The samples of a converted dataset; see `Input` for the contract.

    Planned numbers stay what they were: a sample that the first conversion rejected is found again, with its name and
    reason, and leaves its gap. So order, crops and rejects.jsonl are those of the dataset that is read.
    """

    kind = "stored"
    rereads = True

    def __init__(self, location: str, listing: Listing) -> None:
        super().__init__(location, listing)
        source = _opened(location)
        if source.fingerprint != listing.facts["dataset"]:
            raise SourceChangedError(
                "the dataset must not change while it is converted",
                got=f"{location}, which is not as it was planned",
                remedy="Restore it, or use --overwrite to begin again.",
            )
        self._source = source

    @classmethod
    def list(cls, location: str, options: InputOptions) -> Self:
        """Read manifest, index and names; no shard.

        Raises:
            UsageError: no dataset is there, or its tars were indexed in place.
            DamagedDatasetError: a damaged manifest or index, or a shard that is missing or has another size.
        """
        if not matches(location):
            raise _no_dataset(location)
        directory = Path(location)
        manifest = Manifest.load(directory)
        if manifest.options.get("indexed_in_place") is True:
            raise UsageError(
                "tars of another tool that were indexed in place are read as tars",
                got=location,
                remedy="Give --input tar.",
            )
        members = tuple(manifest.members)
        index = open_index(directory / INDEX_NAME, fields=members, samples=manifest.samples)
        _check_shards(directory, manifest)
        # Of samples without an image, what there is of them.
        measured = ("image",) if "image" in members else members
        sizes = np.sum([index[f"size_{field}"] for field in measured], axis=0)
        names, class_names = open_names(directory, manifest.samples), manifest.class_names
        builder = ListingBuilder()
        for key, reject in _planned(directory, manifest, index):
            if reject is not None:
                # Its size is not known any more; 0 would be planned as that of a usual image.
                builder.add(reject[0], label=None, size=1, reason=reject[1], stored=-1)
                continue
            label = int(index["label"][key])
            builder.add(
                names.bytes_at(key),
                label=label if options.classes is None or not 0 <= label < len(class_names) else class_names[label],
                size=int(sizes[key]),
                stored=key,
            )
        content = hashlib.sha256(repr(sorted(manifest.field_types.items())).encode())
        for member in members:
            content.update(np.ascontiguousarray(index[f"xxh3_{member}"]).tobytes())
        source = _opened(location)
        listing = builder.finish(
            class_names if options.classes is None else options.classes,
            fields=_fields(source),
            skipped=manifest.source.get("skipped", {}),
            facts={"dataset": manifest.fingerprint},
            content=content.hexdigest(),
        )
        return cls(location, listing)

    def read(self, row: int) -> Record:
        """Image and further fields.

        Raises:
            SampleRejectedError: bytes that are not those that were stored.
        """
        stored = int(self.listing.columns["stored"][row])
        values: dict[str, Any] = {}
        raw = {field: self._member(stored, field) for field in self._members()}
        document = _document(raw["json"]) if "json" in raw else {}
        inside = _entry(document, "fields")
        for field in self.fields:
            if field.name in raw and field.type not in ("image", "class"):
                values[field.name] = _decoded(field, raw[field.name])
            elif field.name in inside:
                values[field.name] = inside[field.name]
        return Record(raw.get("image"), values, _entry(document, "image") or None)

    def _members(self) -> Iterator[str]:
        manifest = self._source.manifest
        members = manifest.members
        # Class and name come from the index and the names. What else the json member may hold are further fields, and
        # what was done to the image, here or in the dataset that this one was made of.
        original = manifest.options.get("image") == "keep" and manifest.source.get("kind") != self.kind
        needs_json = len(manifest.fields) > len(members) or not original
        return (field for field in members if field != "class" and (field != "json" or needs_json))

    def _member(self, stored: int, field: str) -> bytes:
        try:
            data = self._source.read_field(stored, field)
        except DamagedDatasetError as error:
            raise SampleRejectedError(f"its {field} must be readable in the dataset", got="it is not") from error
        if xxhash.xxh3_64_intdigest(data) != int(self._source.index[f"xxh3_{field}"][stored]):
            raise SampleRejectedError(f"the bytes of its {field} must be those that were stored in the dataset")
        return data


def _opened(location: str) -> StoredSource:
    source = open_source(location)
    if not isinstance(source, StoredSource):
        raise _no_dataset(location)
    return source


def _no_dataset(location: str) -> UsageError:
    return UsageError(f"a converted dataset is a folder with {MANIFEST_NAME}", got=location, remedy="Check the path.")


def _check_shards(directory: Path, manifest: Manifest) -> None:
    for shard in manifest.shards:
        try:
            size = (directory / shard.name).stat().st_size
        except OSError as error:
            size, what = -1, os.strerror(error.errno or 0)
        else:
            what = f"{size:,} bytes"
        if size != shard.size:
            raise DamagedDatasetError(
                f"shard {shard.name!r} of {str(directory)!r} must be there with its {shard.size:,} bytes",
                got=what,
                remedy="Run wellfed verify on the dataset; --repair makes shards again.",
            )


def _planned(directory: Path, manifest: Manifest, index: np.ndarray) -> Iterator[tuple[int, tuple[bytes, str] | None]]:
    """(row of the index, None) and (planned number, (name, reason)) in the order of planned numbers.

    A dataset whose keys and rejects do not fill all planned numbers gives its rows only, numbered anew.
    """
    rejected = manifest.source.get("rejected")
    whole = isinstance(rejected, int) and manifest.source.get("found") == manifest.samples + rejected
    keys, number = index["key"], 0
    if not whole or not rejected or int(keys[-1] if len(keys) else 0) >= manifest.samples + rejected:
        yield from ((row, None) for row in range(manifest.samples))
        return
    row = 0
    for reject in iterate_rejects(directory / REJECTS_NAME):
        while row < len(keys) and int(keys[row]) < reject.key:
            yield row, None
            row, number = row + 1, number + 1
        if reject.key != number or (row < len(keys) and int(keys[row]) == reject.key):
            raise DamagedDatasetError(
                f"keys and rejects of {str(directory)!r} must together be the planned numbers",
                got=f"{reject.key} where {number} comes next",
                remedy="Run wellfed verify on the dataset.",
            )
        yield reject.key, (reject.name, reject.reason)
        number += 1
    if number - row != rejected:
        raise DamagedDatasetError(
            f"{REJECTS_NAME} of {str(directory)!r} must list the {rejected} rejected samples",
            got=f"{number - row} lines",
            remedy="Run wellfed verify on the dataset.",
        )
    yield from ((rest, None) for rest in range(row, len(keys)))


def _fields(source: StoredSource) -> tuple[Field, ...]:
    """The dataset's fields by the names the first source gave them, which its json members hold."""
    manifest = source.manifest
    types: Mapping[str, Mapping[str, str | None]] = manifest.field_types
    inside = [name for name in manifest.fields if name not in manifest.members]
    originals: dict[str, str] = {}
    if inside and len(source):
        found = _entry(_document(source.read_field(0, "json")), "fields")
        originals = {re.sub(r"[^a-z0-9_]", "_", name.lower()): name for name in found}
    fields = []
    for name in manifest.fields:
        if name != "json":
            kind: Any = types[name]["type"]
            given: FieldType = kind
            fields.append(Field(originals.get(name, name) if name in inside else name, given))
    return tuple(fields)


def _document(data: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SampleRejectedError("its json must be an object", got=str(error)) from error
    if not isinstance(document, dict):
        raise SampleRejectedError("its json must be an object", got=type(document).__name__)
    return document


def _entry(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object in the json member; empty where there is none."""
    entry = document.get(name, {})
    if not isinstance(entry, dict):
        raise SampleRejectedError(f"{name!r} in its json must be an object", got=type(entry).__name__)
    return entry


def _decoded(field: Field, data: bytes) -> Any:
    try:
        if field.type == "text":
            return data.decode("utf-8")
        if field.type == "array":
            return parse_npy(data)
    except ValueError as error:
        raise SampleRejectedError(f"its {field.name} must be {field.type}", got=str(error)) from error
    return data
