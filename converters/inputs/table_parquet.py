"""Parquet tables, through pyarrow: listed by footer and small columns, images read when they are asked for."""

from __future__ import annotations

import hashlib
import importlib
import os
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Self

import numpy as np

from wellfed.pipeline.errors import (
    MissingDependencyError,
    SampleRejectedError,
    SourceChangedError,
    UsageError,
    WellfedError,
)
from wellfed.pipeline.formats.perprocess import PerProcess

from .parquet_check import refuse_crashing
from .stores import Stores, protocol_of, without_query
from .table_base import Held, Row

_LISTED_AT_ONCE = 1 << 14
_READ_AT_ONCE = 64
_SMALL_GROUP = 64 << 20
_GROUPS_KEPT = 2


class ParquetTable:
    """A Parquet file; see `Table`. Rows are counted from 1.

    A row group whose columns are small is kept whole, so that rows of it may be read in any order; a large one is
    read in sequence, and going back in it starts it again.

    Raises:
        UsageError: it is cut short or no Parquet file.
        MissingDependencyError: pyarrow is not installed.
    """

    unit = "row"
    typed = True

    def __init__(self, location: str, stores: Stores, opened: Literal["first", "again"] = "first") -> None:
        _pyarrow()
        self.location = location
        self._stores = stores
        self._files: PerProcess[Any] = PerProcess(self._open)
        self._groups: OrderedDict[tuple[int, tuple[str, ...]], Any] = OrderedDict()
        self._stream: _Stream | None = None
        self.notes: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.stat = self._stat()
        if opened == "first":
            with self._errors(), self._bytes() as source:
                refuse_crashing([(without_query(location), source)])
        file = self._files.get()
        self.column_names = tuple(file.schema_arrow.names)
        counts = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).tolist()

    @classmethod
    def saved(cls, location: str, stores: Stores, facts: dict[str, Any]) -> Self:
        """The table that `facts` was taken from. Raises SourceChangedError where it is another."""
        table = cls(location, stores, "again")
        if list(table.stat) != facts["stat"]:
            raise SourceChangedError(
                f"the table {location!r} must not change between planning and reading",
                remedy="Run the conversion again.",
            )
        return table

    @property
    def facts(self) -> dict[str, Any]:
        """Size and modification time."""
        return {"stat": list(self.stat)}

    def _open(self) -> Any:
        parquet = importlib.import_module("pyarrow.parquet")
        remote = protocol_of(self.location) is not None
        with self._errors():
            source = self._stores.open(self.location) if remote else self.location
            # Reading ahead whole column chunks would hold a row group's images in memory.
            return parquet.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20)

    def _bytes(self) -> Any:
        is_remote = protocol_of(self.location) is not None
        return self._stores.open(self.location) if is_remote else open(self.location, "rb")

    def _stat(self) -> tuple[int, int]:
        if protocol_of(self.location) is not None:
            facts = self._stores.facts([self.location])[0]
            return facts.size, facts.stamp
        try:
            status = os.stat(self.location)
        except (OSError, ValueError) as error:
            raise UsageError(f"the table {self.location!r} must be readable", got=str(error)) from error
        return status.st_size, status.st_mtime_ns

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (WellfedError, MemoryError):
            raise
        # Beside pyarrow's own, whatever the library of a store raises below it.
        except Exception as error:
            is_remote = protocol_of(self.location) is not None
            raise UsageError(
                f"the Parquet file {without_query(self.location)!r} must be whole",
                got=type(error).__name__ if is_remote else str(error).split("\n")[0],
                remedy="It is cut short, damaged or no Parquet file: write it again.",
            ) from error

    def rows(self, columns: tuple[str, ...]) -> Iterator[Row]:
        """All rows, without the bytes of binary columns.

        Raises:
            UsageError: the file is damaged, or has a column twice.
        """
        file = self._files.get()
        for name in columns:
            if self.column_names.count(name) > 1:
                raise UsageError(
                    "a column that is read must be there once", got=f"{name!r} twice", remedy="Rename one."
                )
        paths = {name: self._light(name) for name in columns}
        wanted = [path for path in paths.values() if path is not None]
        for group in range(len(self._starts) - 1):
            first = self._starts[group]
            # pyarrow decodes text only where it is asked for: what is no UTF-8 is found here, not by reading.
            with self._errors():
                sizes = {name: self._average(group, name) for name in columns}
            for start, batch in self._light_batches(file, group, wanted):
                with self._errors():
                    read = {name: batch.column(name).to_pylist() for name in columns if paths[name] is not None}
                for at in range(batch.num_rows if wanted else 0):
                    values = {name: _listed(read[name][at] if name in read else None, sizes[name]) for name in columns}
                    place = first + start + at
                    yield Row(place + 1, place, 1, values, None)
            if not wanted:
                for place in range(first, self._starts[group + 1]):
                    yield Row(place + 1, place, 1, {name: Held(sizes[name] or 0, None) for name in columns}, None)

    def _light_batches(self, file: Any, group: int, wanted: list[str]) -> Iterator[tuple[int, Any]]:
        if not wanted:
            return
        start = 0
        with self._errors():
            for batch in file.iter_batches(_LISTED_AT_ONCE, row_groups=[group], columns=wanted):
                yield start, batch
                start += batch.num_rows

    def _light(self, name: str) -> str | None:
        """What to read of a column when listing: all of it, the path of an image struct, or nothing."""
        types = _pyarrow().types
        kind = self._files.get().schema_arrow.field(name).type
        if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            return f"{name}.path" if kind.get_field_index("path") >= 0 else None
        return None if _is_binary(types, kind) else name

    def _average(self, group: int, name: str) -> int | None:
        """About the bytes of a binary column's values in a row group; None where the column is not binary."""
        types = _pyarrow().types
        file = self._files.get()
        kind = file.schema_arrow.field(name).type
        inside = types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        if not inside and not _is_binary(types, kind):
            return None
        if group >= len(self._starts) - 1:
            return 0
        facts = file.metadata.row_group(group)
        path = f"{name}.bytes" if inside else name
        for number in range(facts.num_columns):
            column = facts.column(number)
            if column.path_in_schema == path:
                return int(column.total_uncompressed_size // max(1, facts.num_rows))
        return 0

    def values_at(self, place: int, length: int, columns: tuple[str, ...]) -> Mapping[str, Any]:
        """The values of one row."""
        if protocol_of(self.location) is None and self._stat() != self.stat:
            raise SampleRejectedError("the table must not change between planning and reading")
        group = bisect_right(self._starts, place) - 1
        try:
            with self._errors():
                batch, at = self._batch_with(group, place - self._starts[group], columns)
                return {name: _value(batch.column(name)[at]) for name in columns}
        except UsageError as error:
            self._stream = None
            # Not the error's text, which may hold absolute paths.
            raise SampleRejectedError("the row must be readable", got=type(error.__cause__).__name__) from error

    def _batch_with(self, group: int, row: int, columns: tuple[str, ...]) -> tuple[Any, int]:
        file = self._files.get()
        facts = file.metadata.row_group(group)
        size = sum(
            facts.column(number).total_uncompressed_size
            for number in range(facts.num_columns)
            if facts.column(number).path_in_schema.split(".")[0] in columns
        )
        if size <= _SMALL_GROUP:
            key = (group, columns)
            if key not in self._groups:
                self._groups[key] = file.read_row_group(group, columns=list(columns))
                while len(self._groups) > _GROUPS_KEPT:
                    self._groups.popitem(last=False)
            self._groups.move_to_end(key)
            return self._groups[key], row
        if self._stream is None or not self._stream.leads_to(group, row, columns):
            self._stream = _Stream(file, group, columns)
        return self._stream.batch_with(row)

    def bytes_of(self, row: Row) -> int:
        """The mean of the file's rows, not compressed."""
        facts = self._files.get().metadata
        total = sum(facts.row_group(number).total_byte_size for number in range(facts.num_row_groups))
        return max(1, total // max(1, facts.num_rows))

    def content(self) -> str:
        """SHA-256 of the footer, which holds the sizes and statistics of all columns, and of the file's size."""
        with self._bytes() as source:
            end = source.seek(0, os.SEEK_END)
            source.seek(end - 8)
            length = int.from_bytes(source.read(4), "little")
            source.seek(end - 8 - length)
            return hashlib.sha256(source.read(length) + str(end).encode()).hexdigest()


class _Stream:
    """A row group that is read in sequence, a few rows at a time."""

    def __init__(self, file: Any, group: int, columns: tuple[str, ...]) -> None:
        self._of = (group, columns)
        self._batches = file.iter_batches(_READ_AT_ONCE, row_groups=[group], columns=list(columns))
        self._start = 0
        self._batch = next(self._batches)

    def leads_to(self, group: int, row: int, columns: tuple[str, ...]) -> bool:
        return self._of == (group, columns) and row >= self._start

    def batch_with(self, row: int) -> tuple[Any, int]:
        while row >= self._start + self._batch.num_rows:
            self._start += self._batch.num_rows
            self._batch = next(self._batches)
        return self._batch, row - self._start


def _pyarrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise MissingDependencyError(
            "reading Parquet needs pyarrow", got=str(error), remedy="Run: pip install 'wellfed[parquet]'"
        ) from error


def _is_binary(types: Any, kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _listed(value: Any, size: int | None) -> Any:
    if size is None:
        return value
    path = value.get("path") if isinstance(value, Mapping) else None
    return Held(size, path if isinstance(path, str) else None)


def _value(scalar: Any) -> Any:
    """A cell; a list of numbers keeps their type, as an array."""
    value = scalar.as_py()
    if not isinstance(value, list):
        return value
    types, kind = _pyarrow().types, scalar.type
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        return value
    try:
        return np.array(value, kind.to_pandas_dtype())
    except (TypeError, ValueError):
        # A ragged list, or one with holes, is still JSON.
        return value
