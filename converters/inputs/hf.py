"""Hugging Face datasets from disk: what `save_to_disk` wrote, and Arrow or Parquet files, read without the hub."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from wellfed.pipeline.errors import SampleRejectedError, UsageError

from .arrow_files import ARROW_SUFFIXES, PARQUET_SUFFIXES, RowFile, import_pyarrow, open_rows
from .base import USUAL_FIELDS, Field, InputOptions, Record
from .hf_columns import Columns, choose_columns
from .hf_layout import INFO, SPLITS, STATE, HfFiles, features_of_metadata, find_files
from .listing import ListedInput, ListingBuilder
from .parquet_check import refuse_crashing
from .values import row_name, typed_value

if TYPE_CHECKING:
    import pyarrow as pa

_CHANGED = "the file must not change between planning and reading"


def matches(location: str) -> bool:
    """Whether it is a saved dataset, an Arrow file, a Parquet file of `datasets`, or a folder of such files."""
    path = Path(location)
    if (path / SPLITS).is_file() or ((path / STATE).is_file() and (path / INFO).is_file()):
        return True
    if path.is_file():
        return path.suffix in ARROW_SUFFIXES or (path.suffix in PARQUET_SUFFIXES and b"huggingface" in _tail(path))
    return path.is_dir() and any(
        each.suffix in (*ARROW_SUFFIXES, *PARQUET_SUFFIXES)
        for folder in (path, path / "data")
        if folder.is_dir()
        for each in folder.iterdir()
    )


def _tail(path: Path) -> bytes:
    """The footer of a Parquet file, or its last MiB."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - (1 << 20)))
            return file.read()
    except OSError:
        return b""  # listing says why it cannot be read


class HfInput(ListedInput):
    """One split of a dataset; see `Input`. Sizes are those of the images, or their mean in a Parquet row group."""

    kind: ClassVar[str] = "hf"

    @classmethod
    def list(cls, location: str, options: InputOptions) -> Self:
        """Read labels, image paths and image sizes, not the images.

        Raises:
            UsageError: no dataset; several splits and none chosen; a file that is cut or damaged; no column for the
                image or the label, or one of a type that cannot be either.
            MissingDependencyError: pyarrow is not installed.
        """
        pa = import_pyarrow()
        found = find_files(Path(location), options.split_name)
        with suppress(OSError):  # opening says which one, and why
            refuse_crashing(_each_open(found.base, found.files))
        files = [open_rows(found.base / name, prefix=options.prefix) for name in found.files]
        schema = files[0].schema
        for name, file in zip(found.files, files, strict=True):
            if not file.schema.equals(schema, check_metadata=False):
                raise UsageError(
                    "all files of a split must have the same columns",
                    got=f"{name}, which differs from {found.files[0]}",
                )
        features = dict(found.features) or features_of_metadata(schema.metadata)
        columns = choose_columns(schema, features, options)
        fields = (*USUAL_FIELDS, *(Field(*each) for each in options.columns))
        root = Path(options.root) if options.root is not None else found.base
        builder = ListingBuilder()
        numbers = []
        try:
            for number, (name, file) in enumerate(zip(found.files, files, strict=True)):
                status = (found.base / name).stat()
                numbers.append([name, status.st_size, status.st_mtime_ns])
                _add_rows(builder, file, number, status.st_mtime_ns, columns, root, options)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UsageError(
                f"{name} must be whole", got=str(error), remedy="It is damaged or cut short; write or fetch it again."
            ) from error
        _check_count(builder, found, location, options)
        left_out = len(schema.names) - len({columns.image, columns.label, *(each for each, _ in options.columns)})
        facts = {
            "base": os.path.relpath(found.base, location) if Path(location).is_dir() else "",
            "root": options.root,
            "files": numbers,
            "image": [columns.image, columns.image_kind],
            "texts": {name: list(names) for name, names in columns.texts.items()},
        }
        class_names = columns.class_names if options.classes is None else options.classes
        notes = {"columns_left_out": left_out} if left_out else {}
        return cls(location, builder.finish(class_names, fields=fields, notes=notes, facts=facts))

    def read(self, row: int) -> Record:
        """The image's bytes and the fields. Raises SampleRejectedError; see `Input`."""
        listed = self.listing.columns
        column, kind = self.listing.facts["image"]
        fields = self._further
        values = self._row(row, [column, *(field.name for field in fields)])
        picture = values[column]
        if kind == "struct":
            data = picture and picture.get("bytes")
            path = picture and picture.get("path")
        else:
            data, path = (picture, None) if kind == "bytes" else (None, picture)
        if data is None:
            size, stamp = int(listed["file_size"][row]), int(listed["file_stamp"][row])
            if stamp == 0:
                raise SampleRejectedError("the sample has no image")
            data = _read_file(_path_of(path, self._root), size, stamp)
        texts = self.listing.facts["texts"]
        return Record(data, {each.name: _value(values[each.name], each, texts) for each in fields})

    def _row(self, row: int, columns: Sequence[str]) -> dict[str, Any]:
        listed = self.listing.columns
        number = int(listed["file"][row])
        name, size, mtime = self.listing.facts["files"][number]
        path = self._base / name
        try:
            status = path.stat()
        except OSError as error:
            raise SampleRejectedError(_CHANGED, got=name) from error
        # Before each look: a file that was cut under its mapping would end the process.
        if (status.st_size, status.st_mtime_ns) != (size, mtime):
            raise SampleRejectedError(_CHANGED, got=name)
        if number not in self._opened:
            self._opened[number] = open_rows(path, prefix=True)
        return self._opened[number].row(int(listed["group"][row]), int(listed["row"][row]), columns)

    @cached_property
    def _opened(self) -> dict[int, RowFile]:
        return {}

    @cached_property
    def _further(self) -> tuple[Field, ...]:
        return self.fields[len(USUAL_FIELDS) :]

    @cached_property
    def _base(self) -> Path:
        location = Path(self.location)
        return location / self.listing.facts["base"] if location.is_dir() else location.parent

    @cached_property
    def _root(self) -> Path:
        root = self.listing.facts["root"]
        return self._base if root is None else Path(root)


def _add_rows(
    builder: ListingBuilder,
    file: RowFile,
    number: int,
    stamp: int,
    columns: Columns,
    root: Path,
    options: InputOptions,
) -> None:
    names = columns.class_names if options.classes is not None else None
    leaves = _leaves(file, columns)
    for group, first, batch in file.batches(_needed(file, columns)):
        labels = batch.column(columns.label).to_pylist()
        mean = file.mean_bytes(group, columns.image)
        for place, ((size, path), label) in enumerate(zip(_pictures(batch, columns, leaves), labels, strict=True)):
            # Given classes in another order than the source's must not shift its labels.
            if names is not None and isinstance(label, int) and 0 <= label < len(names):
                label = names[label]
            file_size, file_stamp, reason = 0, 0, None
            if size in (None, _UNKNOWN) and path is not None:
                file_size, file_stamp, reason = _measured(path, root)
            if size is None:
                size = file_size
                reason = reason or ("the sample has no image" if path is None else None)
            elif size == _UNKNOWN:
                # Most rows hold their bytes and a path that leads nowhere; reading tells.
                size, reason = max(mean, file_size), None
            builder.add(
                row_name(len(builder)) if not path else _relative(path, root),
                label=label,
                size=size,
                stamp=stamp,
                reason=reason or ("the image is empty" if size == 0 else None),
                file=number,
                group=group,
                row=first + place,
                file_size=file_size,
                file_stamp=file_stamp,
            )


_UNKNOWN = -1
"""Size of an image in a Parquet file, which could be had only by reading it."""


def _needed(file: RowFile, columns: Columns) -> list[str]:
    """What listing reads: of images in Parquet files only the paths."""
    if file.knows_sizes or columns.image_kind == "path":
        return [columns.label, columns.image]
    leaves = _leaves(file, columns)
    if leaves == {"path"}:
        return [columns.label, columns.image]
    return [columns.label, f"{columns.image}.path"] if "path" in leaves else [columns.label]


def _leaves(file: RowFile, columns: Columns) -> frozenset[str]:
    kind = file.schema.field(columns.image).type
    return frozenset(kind.field(number).name for number in range(kind.num_fields))


def _pictures(
    batch: pa.RecordBatch, columns: Columns, leaves: frozenset[str]
) -> Iterator[tuple[int | None, str | None]]:
    """For each row the size of its bytes (None without bytes) and its path; `leaves`: of the file's structs."""
    import pyarrow.compute as pc

    if columns.image not in batch.schema.names:
        return ((_UNKNOWN, None) for _ in range(len(batch)))
    array = batch.column(columns.image)
    if columns.image_kind == "path":
        return ((None, path) for path in array.to_pylist())
    if columns.image_kind == "bytes":
        return ((size, None) for size in pc.binary_length(array).to_pylist())
    # A null struct may have children with values.
    inner = {array.type.field(number).name: number for number in range(array.type.num_fields)}
    valid = array.is_valid().to_pylist()
    paths = pc.struct_field(array, inner["path"]).to_pylist() if "path" in inner else [None] * len(array)
    if "bytes" in inner:
        sizes = pc.binary_length(pc.struct_field(array, inner["bytes"])).to_pylist()
    else:
        sizes = [_UNKNOWN if "bytes" in leaves else None] * len(array)
    return ((size, path) if good else (None, None) for good, size, path in zip(valid, sizes, paths, strict=True))


def _each_open(base: Path, names: Sequence[str]) -> Iterator[tuple[str, IO[bytes]]]:
    for name in names:
        with open(base / name, "rb") as file:
            yield name, file


def _measured(path: str, root: Path) -> tuple[int, int, str | None]:
    """Size, modification time and, where it cannot be read, the reason."""
    try:
        status = os.stat(_path_of(path, root))
    except SampleRejectedError as error:
        return 0, 0, str(error)
    except (OSError, ValueError) as error:
        return 0, 0, f"the image's file cannot be read: {getattr(error, 'strerror', None) or 'no such name'}"
    if not stat.S_ISREG(status.st_mode):
        return 0, 0, "the image's path is no file"
    return status.st_size, status.st_mtime_ns, None


def _path_of(path: str | None, root: Path) -> Path:
    if path is None:
        raise SampleRejectedError("the sample has no image")
    if "://" in path:
        raise SampleRejectedError("an image must be bytes or the path of a file, not a URL", got=path)
    return root / path


def _relative(path: str, root: Path) -> bytes:
    under = os.path.abspath(root) + os.sep
    return (path.removeprefix(under) if os.path.isabs(path) else path).encode("utf-8", "surrogateescape")


def _read_file(path: Path, size: int, mtime: int) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(size + 1)
            status = os.fstat(file.fileno())
    except OSError as error:
        raise SampleRejectedError("the file must be readable", got=os.strerror(error.errno or 0)) from error
    if len(data) != size or status.st_mtime_ns != mtime:
        raise SampleRejectedError(_CHANGED)
    return data


def _value(value: Any, field: Field, texts: Mapping[str, list[str]]) -> Any:
    if field.name in texts and isinstance(value, int):
        names = texts[field.name]
        value = names[value] if 0 <= value < len(names) else None
    if field.type == "bytes" and isinstance(value, dict):
        value = value.get("bytes")
    if field.type == "array" and isinstance(value, list):
        value = np.asarray(value)
    return typed_value(value, field)


def _check_count(builder: ListingBuilder, found: HfFiles, location: str, options: InputOptions) -> None:
    if found.rows is not None and len(builder) != found.rows and not options.prefix:
        raise UsageError(
            f"the split must have the {found.rows:,} rows of its record ({INFO})",
            got=f"{len(builder):,} rows",
            remedy="A file was cut short or replaced; save or fetch it again.",
        )
    if not len(builder):
        raise UsageError("the source must hold at least one row", got=f"{location}, which holds none")
