"""CSV and TSV: records by the rules of RFC 4180, and what to do with those that break them."""

from __future__ import annotations

import codecs
import csv
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

from wellfed.pipeline.errors import SampleRejectedError, UsageError

from .stores import Stores
from .table_base import Row
from .table_text import LONGEST_LINE, Line, TextFile, saved_text_file, text_facts

_MOST_LINES = 1000
"""Of one record; a quote that stays open longer than this is a broken one."""


class CsvTable:
    """A CSV or TSV file with a header; see `Table`.

    A line that is no record is a row with a fault, and reading goes on with the next line, so that a quote that is
    never closed costs one row and not the rest of the file. Blank lines are skipped and counted.

    Raises:
        UsageError: the header cannot be read.
    """

    unit = "line"
    typed = False

    def __init__(self, file: TextFile, delimiter: str, header: tuple[str, ...] | None = None) -> None:
        # The library's own limit of 128 KiB is too small for an image in Base64, and only a process-wide one exists.
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
        self._file, self._delimiter = file, delimiter
        self.notes: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        if file.mark:
            self.notes["byte_order_mark" if file.encoding == "utf-8" else "utf16"] += 1
        if file.encoding == "latin-1":
            self.notes["latin1"] += 1
        self.column_names = self._header() if header is None else header

    @classmethod
    def open(cls, location: str, stores: Stores, delimiter: str) -> Self:
        """Open a table and find its encoding: UTF-8 or UTF-16, or Latin-1 where no other line has UTF-8 letters."""
        file = TextFile(location, stores)
        if file.encoding == "utf-8" and not _is_utf8(file) and not file.mark and _is_latin1(file):
            file.encoding = "latin-1"
        return cls(file, delimiter)

    @classmethod
    def saved(cls, location: str, stores: Stores, facts: dict[str, Any]) -> Self:
        """The table that `facts` was taken from."""
        return cls(saved_text_file(location, stores, facts), facts["delimiter"], tuple(facts["header"]))

    @property
    def facts(self) -> dict[str, Any]:
        """Delimiter, header and encoding."""
        return {**text_facts(self._file), "delimiter": self._delimiter, "header": self.column_names}

    def _header(self) -> tuple[str, ...]:
        records = _records(self._file.lines(), self._delimiter, None)
        first = next((record for record in records if record.fault or record.cells), None)
        if first is None or first.fault:
            raise UsageError(
                f"the table {self._file.location!r} must begin with a line of column names",
                got=f"line {first.first.number}: {first.fault}" if first is not None else "an empty file",
                remedy="Lines end in LF or CRLF.",
            )
        return tuple(first.cells)

    def rows(self, columns: tuple[str, ...]) -> Iterator[Row]:
        """All records after the header.

        Raises:
            UsageError: a column is there twice.
        """
        places = self._places(columns)
        width = len(self.column_names)
        header_is_due = True
        for record in _records(self._file.lines(), self._delimiter, width):
            line, place = record.first.number, record.first.place
            if record.fault is not None:
                yield Row(line, place, record.length, {}, record.fault)
            elif not record.cells:
                self.skipped["blank_lines"] += 1
            elif header_is_due:
                header_is_due = False
            elif len(record.cells) != width:
                fault = f"the row must have {width} cells, not {len(record.cells)}"
                yield Row(line, place, record.length, {}, fault)
            else:
                cells = record.cells
                yield Row(line, place, record.length, {name: cells[at] for name, at in places}, None)

    def _places(self, columns: tuple[str, ...]) -> list[tuple[str, int]]:
        for name in columns:
            if self.column_names.count(name) > 1:
                raise UsageError(
                    "a column that is read must be there once", got=f"{name!r} twice", remedy="Rename one."
                )
        return [(name, self.column_names.index(name)) for name in columns]

    def values_at(self, place: int, length: int, columns: tuple[str, ...]) -> Mapping[str, Any]:
        """The cells of one record."""
        text = self._file.line_at(place, length)
        try:
            cells = next(csv.reader([text], delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            raise SampleRejectedError("the row must be a CSV record", got=str(error)) from error
        return {name: cells[at] for name, at in self._places(columns)}

    def bytes_of(self, row: Row) -> int:
        """Those of its line."""
        return max(1, row.length)

    def content(self) -> str:
        """SHA-256 of the file."""
        return self._file.digest


class _Record(NamedTuple):
    first: Line
    length: int
    cells: list[str]
    fault: str | None


def _records(lines: Iterator[Line], delimiter: str, width: int | None) -> Iterator[_Record]:
    waiting: deque[Line] = deque()
    while (first := waiting.popleft() if waiting else next(lines, None)) is not None:
        text = first.text
        if text is None:
            yield _Record(first, first.length, [], "the line is not of the table's encoding")
        elif '"' not in text and "\r" not in text[:-2]:
            bare = text.rstrip("\r\n")
            yield _Record(first, first.length, bare.split(delimiter) if bare else [], None)
        else:
            yield _quoted(first, waiting, lines, delimiter, width)


def _quoted(first: Line, waiting: deque[Line], lines: Iterator[Line], delimiter: str, width: int | None) -> _Record:
    taken = [first]
    fault = None
    cells: list[str] = []
    try:
        cells = next(csv.reader(_pull(taken, waiting, lines), delimiter=delimiter, strict=True))
    except csv.Error as error:
        fault = f"the line is no CSV record: {error}"
    if len(taken) > 1 and (fault or (width is not None and len(cells) != width)):
        # A quote that was never closed swallowed other rows' lines: give them back.
        waiting.extendleft(reversed(taken[1:]))
        return _Record(first, first.length, [], fault or "the line is no CSV record: a quote is not closed in its row")
    return _Record(first, sum(line.length for line in taken), cells, fault)


def _pull(taken: list[Line], waiting: deque[Line], lines: Iterator[Line]) -> Iterator[str]:
    """The text of the first line and of those that the record goes on in."""
    yield taken[0].text or ""
    while len(taken) < _MOST_LINES:
        line = waiting.popleft() if waiting else next(lines, None)
        if line is None:
            return
        if line.text is None:
            waiting.appendleft(line)
            return
        taken.append(line)
        yield line.text


def _is_utf8(file: TextFile) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for chunk in file.chunks():
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _is_latin1(file: TextFile) -> bool:
    """Of a file that is not UTF-8: whether no line is UTF-8 with letters beyond ASCII."""
    return all(line.text is None or line.text.isascii() for line in file.lines())
