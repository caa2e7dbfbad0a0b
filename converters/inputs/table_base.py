"""What CSV, JSON Lines and Parquet tables have in common: rows with values by column, found again by their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from wellfed.pipeline.errors import UsageError


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        line: where a user finds it: line of the file from 1, or row from 1 in a Parquet file.
        place, length: where `Table.values_at` finds it.
        values: by column, those asked for in `Table.rows`; `Held` for what is costly to read.
        fault: why it is no row that can be used, or None.
    """

    line: int
    place: int
    length: int
    values: Mapping[str, Any]
    fault: str | None


class Held(NamedTuple):
    """Stands for bytes that a row holds and that listing did not read.

    Attributes:
        size: about their number.
        path: what the row calls them, or None.
    """

    size: int
    path: str | None


class Table(Protocol):
    """A table that streams.

    Attributes:
        unit: what `Row.line` counts, "line" or "row".
        typed: whether values have types of their own; in CSV all are text.
        column_names: as far as they are known before `rows`.
        notes, skipped: counted, complete once `rows` is exhausted.
        facts: JSON values that another process needs to open the same table.
    """

    unit: str
    typed: bool
    column_names: tuple[str, ...]
    notes: Counter[str]
    skipped: Counter[str]

    @property
    def facts(self) -> dict[str, Any]: ...

    def rows(self, columns: tuple[str, ...]) -> Iterator[Row]:
        """All rows in order. Raises UsageError where the file is no such table."""
        ...

    def values_at(self, place: int, length: int, columns: tuple[str, ...]) -> Mapping[str, Any]:
        """The values of one row again. Raises SampleRejectedError where they are not there any more."""
        ...

    def bytes_of(self, row: Row) -> int:
        """About how much the row holds, at least 1."""
        ...

    def content(self) -> str:
        """Digest of the whole table, once `rows` is exhausted."""
        ...


IMAGE_NAMES = (
    *("image", "image_path", "image_file", "path", "file", "filename", "file_name", "filepath", "file_path", "img"),
    *("url", "image_url", "bytes", "image_bytes", "base64", "image_base64"),
)
LABEL_NAMES = ("label", "class", "class_name", "category", "target", "labels")
BASE64_ENDINGS = ("bytes", "base64", "b64")


def choose(what: str, given: str | None, likely: tuple[str, ...], there: tuple[str, ...]) -> str | None:
    """The column to use: the one given, or the only one that is called as such columns are; None where none is.

    Raises:
        UsageError: the given one is missing, or several are likely; names the columns there.
    """
    if given is not None:
        if given not in there:
            raise missing(what, given, there)
        return given
    found = [name for name in there if name.lower() in likely]
    if len(found) > 1:
        raise UsageError(
            f"the column of the {what} must be clear",
            got=f"{len(found)} candidates: {', '.join(map(repr, found))}",
            remedy=f"Choose one with --{what}-column.",
        )
    return found[0] if found else None


def missing(what: str, name: str | None, there: tuple[str, ...]) -> UsageError:
    """The error of a column that is not there."""
    shown = ", ".join(map(repr, there[:50])) or "none"
    return UsageError(
        f"the table must have a column for the {what}",
        got=f"no column {name!r} among {shown}" if name is not None else f"columns {shown}",
        remedy=f"Name the column with --{what}-column." if what in ("image", "label") else "Check its name.",
    )
