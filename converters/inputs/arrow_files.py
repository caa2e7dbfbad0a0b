"""Rows of Arrow and Parquet files by position, without holding a file in memory. Needs pyarrow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from wellfed.pipeline.errors import MissingDependencyError, SampleRejectedError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_SUFFIXES = (".arrow", ".feather")
PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
_STREAM_ENDS = (b"\xff\xff\xff\xff\x00\x00\x00\x00", b"\x00\x00\x00\x00")
_ROWS_AT_A_TIME = 64


class RowFile(Protocol):
    """One file of rows; not for use by several threads at once.

    Rows are found by (group, row): the record batch or row group, and the row in it.

    Attributes:
        knows_sizes: sizes of values can be had without reading them.
    """

    schema: pa.Schema
    knows_sizes: bool

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """All rows in order, in pieces: group, first row in the group, rows. A column may name a struct's "a.b"."""
        ...

    def row(self, group: int, row: int, columns: Sequence[str]) -> dict[str, Any]:
        """One row's values. Raises SampleRejectedError where the file no longer gives it."""
        ...

    def mean_bytes(self, group: int, column: str) -> int:
        """About the bytes that a value of the column takes, from the file's own statistics; 0 where unknown."""
        ...


def open_rows(path: Path, *, prefix: bool) -> RowFile:
    """Open an Arrow stream, Arrow file (Feather 2) or Parquet file; its content decides which.

    Args:
        prefix: of an Arrow stream that was cut short, take the whole record batches before the cut.

    Raises:
        UsageError: it cannot be read, is of another kind, or is damaged or cut short.
        MissingDependencyError: pyarrow is not installed.
    """
    arrow = import_pyarrow()
    try:
        with open(path, "rb") as file:
            head = file.read(6)
        kind = _ParquetRows if head[:4] == b"PAR1" else _ArrowFileRows if head == b"ARROW1" else None
        opened: RowFile = _ArrowStreamRows(path, prefix) if kind is None else kind(path)
        _read_names(opened.schema)
    except (arrow.ArrowException, OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise UsageError(
            f"{path.name} must be a whole Arrow or Parquet file",
            got=reason.replace(str(path), path.name),
            remedy="It is damaged, cut short or of another kind; write or fetch it again.",
        ) from error
    return opened


def _read_names(fields: Any) -> None:
    """Raises UnicodeDecodeError for the name of a column, or of a field in it, that was damaged."""
    import pyarrow as pa

    for field in fields:
        field.name  # noqa: B018
        if pa.types.is_struct(field.type):
            _read_names([field.type.field(number) for number in range(field.type.num_fields)])


def import_pyarrow() -> Any:
    """The module. Raises MissingDependencyError without it."""
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "reading Arrow and Parquet files needs pyarrow", remedy="Install it: pip install 'wellfed[parquet]'"
        ) from error
    return pyarrow


class _ArrowStreamRows:
    """A stream, as `datasets` writes it: memory-mapped, so that a row costs no more than its bytes."""

    knows_sizes = True

    def __init__(self, path: Path, prefix: bool) -> None:
        arrow = import_pyarrow()
        size = path.stat().st_size
        if not size:
            raise arrow.ArrowInvalid("it is empty")
        with open(path, "rb") as file:
            file.seek(max(0, size - 8))
            tail = file.read()
        if not prefix and not tail.endswith(_STREAM_ENDS):
            raise arrow.ArrowInvalid("its end is missing: it was cut short")
        reader = arrow.ipc.open_stream(arrow.memory_map(str(path)))
        self.schema = reader.schema
        self._batches: list[pa.RecordBatch] = []
        while True:
            try:
                batch = reader.read_next_batch()
                # Offsets that point outside the file would crash the process when they are followed.
                batch.validate(full=True)
            except StopIteration:
                break
            except (arrow.ArrowInvalid, OSError):
                if prefix:
                    break
                raise
            self._batches.append(batch)

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        for group, batch in enumerate(self._batches):
            yield group, 0, batch.select(_top(columns))

    def row(self, group: int, row: int, columns: Sequence[str]) -> dict[str, Any]:
        return _row_of(self._batches[group], row, columns)

    def mean_bytes(self, group: int, column: str) -> int:
        return self._batches[group].column(column).nbytes // max(1, len(self._batches[group]))


class _ArrowFileRows:
    """An Arrow file, often compressed: one record batch is unpacked at a time."""

    knows_sizes = True

    def __init__(self, path: Path) -> None:
        arrow = import_pyarrow()
        self._reader = arrow.ipc.open_file(arrow.memory_map(str(path)))
        self.schema = self._reader.schema
        self._held: tuple[int, pa.RecordBatch] | None = None

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        for group in range(self._reader.num_record_batches):
            yield group, 0, self._batch(group).select(_top(columns))

    def row(self, group: int, row: int, columns: Sequence[str]) -> dict[str, Any]:
        arrow = import_pyarrow()
        try:
            return _row_of(self._batch(group), row, columns)
        except (arrow.ArrowException, OSError) as error:
            raise SampleRejectedError("the Arrow file must give the row", got=str(error)) from error

    def mean_bytes(self, group: int, column: str) -> int:
        batch = self._batch(group)
        return batch.column(column).nbytes // max(1, len(batch))

    def _batch(self, group: int) -> pa.RecordBatch:
        if self._held is None or self._held[0] != group:
            batch = self._reader.get_batch(group)
            batch.validate(full=True)
            self._held = (group, batch)
        return self._held[1]


class _ParquetRows:
    """A Parquet file: a cursor runs through a row group, in memory are the rows around it."""

    knows_sizes = False

    def __init__(self, path: Path) -> None:
        import_pyarrow()
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(path, memory_map=True, page_checksum_verification=True)
        self.schema = self._file.schema_arrow
        self._group = -1
        self._columns: tuple[str, ...] = ()
        self._first = 0
        self._piece: pa.RecordBatch | None = None
        self._pieces: Iterator[pa.RecordBatch] = iter(())

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        for group in range(self._file.num_row_groups):
            first = 0
            for piece in self._file.iter_batches(1024, row_groups=[group], columns=list(columns), use_threads=False):
                yield group, first, piece
                first += len(piece)

    def row(self, group: int, row: int, columns: Sequence[str]) -> dict[str, Any]:
        arrow = import_pyarrow()
        try:
            piece = self._piece_with(group, row, tuple(columns))
        except (arrow.ArrowException, OSError, StopIteration) as error:
            self._group = -1
            raise SampleRejectedError("the Parquet file must give the row", got=str(error) or "no such row") from error
        return _row_of(piece, row - self._first, columns)

    def mean_bytes(self, group: int, column: str) -> int:
        # Not the chunks' `statistics`: pyarrow ends the process over damaged ones.
        facts = self._file.metadata.row_group(group)
        chunks = [facts.column(number) for number in range(facts.num_columns)]
        size = sum(each.total_uncompressed_size for each in chunks if each.path_in_schema.split(".")[0] == column)
        return int(size // max(1, facts.num_rows))

    def _piece_with(self, group: int, row: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        if (group, columns) != (self._group, self._columns) or row < self._first:
            self._pieces = self._file.iter_batches(
                _ROWS_AT_A_TIME, row_groups=[group], columns=list(columns), use_threads=False
            )
            self._group, self._columns, self._first, self._piece = group, columns, 0, next(self._pieces)
        while self._piece is not None and row >= self._first + len(self._piece):
            passed = len(self._piece)
            self._piece = next(self._pieces)
            self._first += passed
        if self._piece is None:
            raise StopIteration
        return self._piece


def _top(columns: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(each.split(".")[0] for each in columns))


def _row_of(batch: pa.RecordBatch, row: int, columns: Sequence[str]) -> dict[str, Any]:
    if not 0 <= row < len(batch):
        raise SampleRejectedError("the file must give the row", got="no such row")
    try:
        return {name: batch.column(name)[row].as_py() for name in _top(columns)}
    except ValueError as error:
        raise SampleRejectedError("the row's values must be readable", got=str(error)) from error
