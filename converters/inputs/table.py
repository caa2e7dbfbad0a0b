"""Tables as input: CSV, TSV, JSON Lines and Parquet, with images as paths, URLs or bytes."""

from __future__ import annotations

import codecs
import json
import os
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

from wellfed.pipeline.errors import SampleRejectedError, UsageError

from .base import USUAL_FIELDS, Field, InputOptions, Record
from .flat import label_of, label_rule
from .folder import read_listed
from .listing import ListedInput, Listing, ListingBuilder
from .stores import Facts, Stores, in_parts, protocol_of
from .table_base import BASE64_ENDINGS, IMAGE_NAMES, LABEL_NAMES, Held, Row, Table, choose, missing
from .table_csv import CsvTable
from .table_json import JsonTable
from .table_parquet import ParquetTable
from .table_paths import Paths, Place, Where, local_facts
from .table_text import TextFile
from .table_values import field_value, held_image, is_inside, size_inside, text_label
from .values import typed_value

_FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
ONE_CLASS = "all"
"""The class of all samples of a table that has neither images nor labels."""

_AT_ONCE = 1000
"""Rows whose objects a store is asked about together; also all of the table that listing holds."""


def matches(location: str) -> bool:
    """A name that ends as tables do, of a local file or a URL."""
    return _ending(location) in _FORMATS and (protocol_of(location) is not None or os.path.isfile(location))


class TableInput(ListedInput):
    """The rows of a table, in its order; see `Input` for the contract.

    A sample is called by its path or URL, or `row-000000012` where the table holds the bytes. Two rows for one file
    are two samples.
    """

    kind = "table"

    def __init__(self, location: str, listing: Listing) -> None:
        super().__init__(location, listing)
        facts = listing.facts
        self._stores = Stores()
        self._paths = Paths(facts["root"])
        self._table: Table | None = None
        self._columns = tuple(field.name for field in self.fields if field.type not in ("image", "class"))

    @classmethod
    def list(cls, location: str, options: InputOptions) -> Self:
        """Read the table once; asks for each file's size.

        Raises:
            UsageError: it cannot be read, has no rows, lacks a column, or mixes types of labels.
            MissingDependencyError: a library for it, or for the URLs in it, is not installed.
        """
        stores = Stores()
        format_ = _FORMATS.get(_ending(location)) or _format_of(location, stores)
        table = _open_table(format_, location, stores)
        lister = _Lister(table, location, options, stores)
        builder = ListingBuilder()
        for row in lister.rows():
            builder.add(
                row.name,
                label=row.label,
                size=row.facts.size,
                stamp=row.facts.stamp,
                reason=row.facts.reason,
                line=row.line,
                place=row.place,
                length=row.length,
                where=int(row.where),
            )
        if not len(builder):
            raise UsageError("the table must have rows", got=f"{location}, without any", remedy="Check the file.")
        facts = {
            "format": format_,
            "table": table.facts,
            "root": lister.paths.root,
            "image_column": lister.image_column,
            "base64": lister.is_base64,
        }
        chosen = [lister.image_column, lister.label_column, options.label_regex, options.columns]
        listing = builder.finish(
            options.classes,
            fields=lister.fields,
            skipped=table.skipped,
            notes=table.notes,
            facts=facts,
            content=table.content() + json.dumps(chosen),
        )
        return cls(location, listing)

    def read(self, row: int) -> Record:
        """The image of a row, and the values of further columns.

        Raises:
            SampleRejectedError: a part of it is missing, cannot be read, or is not what was listed.
            SourceChangedError: the table is not the one that was listed.
        """
        columns = self.listing.columns
        where = Where(int(columns["where"][row]))
        image_column = self.listing.facts["image_column"]
        wanted = self._columns
        if where in (Where.INSIDE, Where.AT_ROWS_URL) and image_column is not None:
            wanted = tuple(dict.fromkeys((*wanted, image_column)))
        if not wanted:
            return Record(self._image(row, where, None), {})
        table = self._opened()
        try:
            values = table.values_at(int(columns["place"][row]), int(columns["length"][row]), wanted)
            image = self._image(row, where, values.get(image_column)) if image_column is not None else None
            further = {
                field.name: typed_value(field_value(values[field.name], field, table.typed), field)
                for field in self.fields
                if field.name in self._columns
            }
        except SampleRejectedError as error:
            where_in_table = f"{table.unit} {int(columns['line'][row])}"
            raise SampleRejectedError(f"{where_in_table}: {error.rule}", got=error.got) from error
        return Record(image, further)

    def _image(self, row: int, where: Where, value: Any) -> bytes:
        columns = self.listing.columns
        size, stamp = int(columns["size"][row]), int(columns["stamp"][row])
        if where in (Where.BELOW_ROOT, Where.AT_URL):
            return self._fetch(self._paths.again(where, self.name(row)), Facts(size, stamp, None))
        held = held_image(value, self.listing.facts["base64"])
        if held is None:
            raise SampleRejectedError("the image is missing")
        if isinstance(held, bytes):
            return held
        place = self._paths.resolve(held)
        if where is Where.AT_ROWS_URL:
            return self._fetch(place, Facts(size, stamp, None))
        # A Parquet row without bytes, which listing could not see, that names a file instead.
        return self._fetch(place, _facts(place, self._stores))

    def _fetch(self, place: Place, facts: Facts) -> bytes:
        if facts.reason is not None:
            raise SampleRejectedError(facts.reason)
        if place.path is not None:
            return read_listed(place.path, size=facts.size, mtime_ns=facts.stamp)
        return self._stores.fetch(place.url or "", size=facts.size, stamp=facts.stamp)

    def _opened(self) -> Table:
        if self._table is None:
            facts = self.listing.facts
            self._table = _open_table(facts["format"], self.location, self._stores, facts["table"])
        return self._table


class _Listed(NamedTuple):
    name: bytes
    label: object
    facts: Facts
    where: Where
    line: int
    place: int
    length: int


class _Pending(NamedTuple):
    row: Row
    name: bytes
    label: object
    place: Place | None
    size: int
    reason: str | None


class _Lister:
    """Chooses the columns of a table and turns its rows into what is listed of them."""

    def __init__(self, table: Table, location: str, options: InputOptions, stores: Stores) -> None:
        self._table, self._stores = table, stores
        there = table.column_names
        self.image_column = choose("image", options.image_column, IMAGE_NAMES, there)
        self.label_column = choose("label", options.label_column, LABEL_NAMES, there)
        if self.image_column is None and not options.columns:
            raise missing("image", None, there)
        self._rule = None
        if options.label_regex is not None and options.label_column is None:
            self._rule, self.label_column = label_rule(options.label_regex), None
        elif self.label_column is None and self.image_column is not None:
            raise missing("label", None, there)
        for name, _ in options.columns:
            if name not in there:
                raise missing("field", name, there)
        self.fields = _fields(options, self.image_column is not None)
        self.is_base64 = (self.image_column or "").lower().endswith(BASE64_ENDINGS)
        self.paths = Paths(options.root if options.root is not None else _folder_of(location))
        self._classes = frozenset(options.classes or ())
        self._count = 0

    def rows(self) -> Iterator[_Listed]:
        """Every row, in order."""
        columns = tuple(dict.fromkeys(name for name in (self.image_column, self.label_column) if name is not None))
        for part in in_parts(self._table.rows(columns), _AT_ONCE):
            pending = [self._pending(row) for row in part]
            urls = [each.place.url for each in pending if each.place is not None and each.place.url is not None]
            remote = iter(self._stores.facts(urls))
            for each in pending:
                yield self._listed(each, remote)

    def _pending(self, row: Row) -> _Pending:
        name = b"row-%09d" % self._count
        self._count += 1
        if row.fault is not None:
            return _Pending(row, name, None, None, 0, f"{self._table.unit} {row.line}: {row.fault}")
        label, place, size = None, None, 0
        try:
            # Before the image, so that a class of which every image is refused keeps its index.
            if self._rule is None:
                label = self._label(row.values[self.label_column]) if self.label_column is not None else ONE_CLASS
            if self.image_column is not None:
                place, size = self._place(row.values[self.image_column])
            else:
                size = self._table.bytes_of(row)
            if self._rule is not None:
                label = label_of(self._rule, place.name) if place is not None else None
                if label is None:
                    raise SampleRejectedError("the label rule does not fit the path")
        except SampleRejectedError as error:
            return _Pending(row, name, label, None, 0, f"{self._table.unit} {row.line}: {error.rule}")
        return _Pending(row, name if place is None else place.name, label, place, size, None)

    def _place(self, value: Any) -> tuple[Place | None, int]:
        if isinstance(value, Held):
            return (_named(value.path), value.size) if value.path is not None else (None, value.size)
        if is_inside(value, self.is_base64):
            if isinstance(value, str | Mapping | bytes) and value:
                return None, size_inside(value)
            held_image(value, self.is_base64)
            raise SampleRejectedError("the image is missing")
        text = held_image(value, False)
        if not isinstance(text, str):
            raise SampleRejectedError("the image is missing")
        return self.paths.resolve(text, latin1="latin1" in self._table.notes), 0

    def _label(self, label: object) -> object:
        if isinstance(label, str):
            try:
                label.encode("utf-8")
            except UnicodeEncodeError as error:
                raise SampleRejectedError("the label must be text") from error
            if not self._table.typed:
                return text_label(label, self._classes)
        return label

    def _listed(self, each: _Pending, remote: Iterator[Facts]) -> _Listed:
        place = each.place
        facts = Facts(each.size, 0, each.reason)
        if place is not None and place.path is not None:
            facts = local_facts(place.path)
        elif place is not None and place.url is not None:
            facts = next(remote)
        where = Where.INSIDE if place is None else place.where
        return _Listed(each.name, each.label, facts, where, each.row.line, each.row.place, each.row.length)


def _named(path: str) -> Place | None:
    """A name for bytes that lie in the row: their path where it is relative, which alone may be published."""
    if os.path.isabs(path) or protocol_of(path) is not None or not path:
        return None
    return Place(Where.INSIDE, path.encode("utf-8", "surrogateescape"), None, None)


def _facts(place: Place, stores: Stores) -> Facts:
    return local_facts(place.path) if place.path is not None else stores.facts([place.url or ""])[0]


def _fields(options: InputOptions, has_image: bool) -> tuple[Field, ...]:
    further = tuple(Field(name, kind) for name, kind in options.columns)
    names = [field.name for field in further]
    for field in further:
        if field.type in ("image", "class") or field.name in ("image", "class") or names.count(field.name) > 1:
            raise UsageError(
                "a further column must have a name and a type of its own",
                got=f"{field.name}:{field.type}",
                remedy="The image and the class have their own options; name each other column once.",
            )
    return (*(USUAL_FIELDS if has_image else USUAL_FIELDS[1:]), *further)


def _ending(location: str) -> str:
    return posixpath.splitext(location)[1].lower()


def _format_of(location: str, stores: Stores) -> str:
    """The format of a table whose name does not say it."""
    start = TextFile.start_of(location, stores)
    if start.startswith(b"PAR1"):
        return "parquet"
    first = start.partition(b"\n")[0].removeprefix(codecs.BOM_UTF8)
    if first.lstrip().startswith(b"{"):
        return "json"
    return "tsv" if b"\t" in first else "csv"


def _folder_of(location: str) -> str:
    return posixpath.dirname(location) if protocol_of(location) is not None else os.path.dirname(location) or "."


def _open_table(format_: str, location: str, stores: Stores, facts: dict[str, Any] | None = None) -> Table:
    """A table to list, or the one that `facts` was taken from."""
    if format_ == "parquet":
        return ParquetTable(location, stores) if facts is None else ParquetTable.saved(location, stores, facts)
    if format_ == "json":
        return JsonTable.open(location, stores) if facts is None else JsonTable.saved(location, stores, facts)
    if facts is None:
        return CsvTable.open(location, stores, "\t" if format_ == "tsv" else ",")
    return CsvTable.saved(location, stores, facts)
