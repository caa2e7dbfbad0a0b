"""JSON Lines: one object a line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Self

from wellfed.pipeline.errors import SampleRejectedError

from .stores import Stores
from .table_base import Row
from .table_text import TextFile, saved_text_file, text_facts

_LOOKED_AT = 1000


class JsonTable:
    """A JSON Lines file; see `Table`. Its columns are the keys of the first 1,000 objects. Blank lines are skipped."""

    unit = "line"
    typed = True

    def __init__(self, file: TextFile, column_names: tuple[str, ...] | None = None) -> None:
        self._file = file
        self.notes: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        if file.mark:
            self.notes["byte_order_mark" if file.encoding == "utf-8" else "utf16"] += 1
        if column_names is None:
            keys: dict[str, None] = {}
            for row in islice(self._objects(), _LOOKED_AT):
                keys.update(dict.fromkeys(row.values))
            column_names = tuple(keys)
            self.skipped.clear()
        self.column_names = column_names

    @classmethod
    def open(cls, location: str, stores: Stores) -> Self:
        """Open a table, UTF-8 or UTF-16."""
        return cls(TextFile(location, stores))

    @classmethod
    def saved(cls, location: str, stores: Stores, facts: dict[str, Any]) -> Self:
        """The table that `facts` was taken from."""
        return cls(saved_text_file(location, stores, facts), ())

    @property
    def facts(self) -> dict[str, Any]:
        """The encoding."""
        return text_facts(self._file)

    def rows(self, columns: tuple[str, ...]) -> Iterator[Row]:
        """All objects; a key that one lacks is None there."""
        for row in self._objects():
            values = row.values
            yield row._replace(values={name: values.get(name) for name in columns})

    def _objects(self) -> Iterator[Row]:
        for line in self._file.lines():
            if line.text is not None and not line.text.strip():
                self.skipped["blank_lines"] += 1
                continue
            values, fault = _object(line.text)
            yield Row(line.number, line.place, line.length, values, fault)

    def values_at(self, place: int, length: int, columns: tuple[str, ...]) -> Mapping[str, Any]:
        """The values of one object."""
        values, fault = _object(self._file.line_at(place, length))
        if fault is not None:
            raise SampleRejectedError(fault)
        return {name: values.get(name) for name in columns}

    def bytes_of(self, row: Row) -> int:
        """Those of its line."""
        return max(1, row.length)

    def content(self) -> str:
        """SHA-256 of the file."""
        return self._file.digest


def _object(text: str | None) -> tuple[dict[str, Any], str | None]:
    if text is None:
        return {}, "the line is not of the table's encoding"
    try:
        value = json.loads(text)
    # Beside its own error: numbers of too many digits, and nesting that is too deep.
    except (ValueError, RecursionError) as error:
        words = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else "beyond limits"
        return {}, f"the line is no JSON: {words}"
    if not isinstance(value, dict):
        return {}, f"the line must be a JSON object, not {type(value).__name__}"
    return value, None
