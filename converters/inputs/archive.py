"""What tars and zips share as inputs: listing their members as samples, and reading samples from saved places."""

from __future__ import annotations

import json
import math
import os
from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from wellfed.pipeline.errors import SampleRejectedError, UsageError
from wellfed.pipeline.formats.npy import parse_npy
from wellfed.pipeline.formats.perprocess import PerProcess

from .archive_rows import SampleRows
from .base import Field, InputOptions, Record
from .layout import IMAGE_EXTS, LabelSource, Layout, is_left_out
from .listing import ListedInput, Listing, ListingBuilder
from .members import ArchiveCutError, Capture, Member, cut_error, shown
from .membertable import MemberTable
from .shards import expand

CHANGED = "the archive must not change between planning and reading"
_OPEN_FILES = 64
_SHOWN = 5


@dataclass(frozen=True)
class Archive:
    """One archive file as it was listed.

    Attributes:
        path: absolute. name: for messages, without folders.
        size, mtime_ns: of the file.
        packing: "plain", "gz", "bz2" or "zst".
        unpacked: bytes up to which it was listed, decompressed.
    """

    path: str
    name: str
    size: int
    mtime_ns: int
    packing: str
    unpacked: int


class ArchiveInput(ListedInput):
    """Samples in archives; see `Input` for the contract. Rows come archive by archive, in each in its order."""

    endings: ClassVar[tuple[str, ...]]
    _locators: ClassVar[tuple[str, ...]]

    def __init__(self, location: str, listing: Listing) -> None:
        super().__init__(location, listing)
        # As lists: JSON has no dataclasses.
        self._archives = [Archive(*each) for each in listing.facts["archives"]]
        self._files = PerProcess(_Files)

    @classmethod
    def list(cls, location: str, options: InputOptions) -> Self:
        """Walk the archives.

        Raises:
            UsageError: none matches, one is cut short or damaged (without `prefix`), encrypted or holds no samples;
                labels or fields that the options name are not there.
        """
        found, table, counts = list_members(cls, location, options)
        try:
            if counts.notes["archive_cut"] and not _has_image(table, options):
                raise _nothing(location, len(table), counts)
            layout = Layout(table, options, location)
            builder = ListingBuilder()
            rows = SampleRows(
                builder,
                table,
                layout,
                stamps=[archive.mtime_ns for archive in found],
                locators=cls._locators,
                skipped=counts.skipped,
            )
            for members in table.samples():
                rows.add(members)
            if not len(builder):
                raise _nothing(location, len(table), counts)
            classes = options.classes
            if classes is None and layout.labels_from == "folders":
                classes = rows.classes_with_empty(counts.folders)
            listing = builder.finish(
                classes,
                fields=layout.fields,
                skipped=dict(sorted(counts.skipped.items())),
                notes=dict(counts.notes),
                facts={
                    "archives": [list(asdict(each).values()) for each in found],
                    "extensions": [layout.shown_ext(code) for code in layout.extras],
                    "label_extension": layout.label_extension,
                    "scattered": [shown(name) for name in table.first_names(table.scattered[:_SHOWN])],
                    "scattered_samples": len(set(table.scattered)),
                    "keys": [field.name for field in layout.keys],
                },
                content=rows.content.hexdigest(),
            )
        finally:
            table.close()
        return cls(location, listing)

    @classmethod
    @abstractmethod
    def packing(cls, path: Path) -> str:
        """How the whole file is compressed: "plain" where members can be read in place."""

    @classmethod
    @abstractmethod
    def walk(cls, path: Path, capture: Capture, end: Ending) -> Iterator[Member]:
        """Members of one archive; sets `end.unpacked`. Raises ArchiveCutError, or UsageError if encrypted."""

    @abstractmethod
    def _unpack(self, archive: int, place: Mapping[str, int]) -> bytes:
        """The bytes of one member. Raises SampleRejectedError."""

    def read(self, row: int) -> Record:
        """Image and further fields of one sample.

        Raises:
            SampleRejectedError: its archive changed or cannot be read, or a value is not of its field's type.
        """
        columns = self.listing.columns
        archive = int(columns["archive"][row])
        image = self._unpack(archive, {name: int(columns[name][row]) for name in self._locators})
        values: dict[str, Any] = {}
        keys = self.listing.facts["keys"]
        numbered = 0
        for field in self.fields:
            if field.type in ("image", "class"):
                continue
            if field.name not in keys:
                values[field.name] = decode(field, self._part(archive, f"f{numbered}_", row))
                numbered += 1
        if keys:
            held = decode(Field("json", "json"), self._part(archive, "json_", row))
            for field in self.fields:
                if field.name in keys:
                    if not isinstance(held, dict) or held.get(field.name) is None:
                        raise SampleRejectedError(f"the sample's json must have {field.name!r}")
                    values[field.name] = typed(field, held[field.name])
        return Record(image, values)

    def _part(self, archive: int, prefix: str, row: int) -> bytes:
        columns = self.listing.columns
        return self._unpack(archive, {name: int(columns[prefix + name][row]) for name in self._locators})

    def _pread(self, archive: int, size: int, offset: int) -> bytes:
        """Bytes of an archive that is as it was listed."""
        listed = self._archives[archive]
        try:
            descriptor = self._files.get().open(listed.path)
            status = os.fstat(descriptor)
            if (status.st_size, status.st_mtime_ns) != (listed.size, listed.mtime_ns):
                raise SampleRejectedError(CHANGED)
            data = os.pread(descriptor, size, offset)
        except OSError as error:
            raise SampleRejectedError("the archive must be readable", got=os.strerror(error.errno or 0)) from error
        if len(data) != size:
            raise SampleRejectedError(CHANGED)
        return data


@dataclass
class Ending:
    """How far a walk came, decompressed."""

    unpacked: int = 0


@dataclass
class Counts:
    """What listing counted beside samples; `folders` are first-level ones."""

    skipped: Counter[str]
    notes: Counter[str]
    folders: set[bytes]


def list_members(
    kind: type[ArchiveInput], location: str, options: InputOptions
) -> tuple[list[Archive], MemberTable, Counts]:
    """Walk every archive of a location. Raises UsageError as `ArchiveInput.list` does."""
    labels = LabelSource.of(options)
    table, counts = MemberTable(), Counts(Counter(), Counter(), set())
    found: list[Archive] = []
    try:
        for number, path in enumerate(expand(location, kind.endings)):
            try:
                status = os.stat(path)
                end = Ending()
                _walk_one(kind, path, number, options.prefix, labels, table, counts, end)
            except OSError as error:
                raise UsageError(
                    "each archive must be readable", got=f"{path}: {error.strerror}", remedy="Check its permissions."
                ) from error
            plain = kind.packing(path)
            absolute = os.path.abspath(path)
            found.append(Archive(absolute, path.name, status.st_size, status.st_mtime_ns, plain, end.unpacked))
        table.finish()
    except BaseException:
        table.close()
        raise
    return found, table, counts


def _walk_one(
    kind: type[ArchiveInput],
    path: Path,
    number: int,
    prefix: bool,
    labels: LabelSource,
    table: MemberTable,
    counts: Counts,
    end: Ending,
) -> None:
    last: bytes | None = None
    try:
        for member in kind.walk(path, labels.capture, end):
            last = member.name
            if left_out := is_left_out(member.name):
                counts.skipped[left_out] += 1
            elif member.folder and member.reason is None:
                counts.folders.add(member.name.removeprefix(b"./"))
            else:
                label = None if member.reason is not None else labels.label(member.name, member.data)
                if member.reason is None and member.size == 0:
                    member = member._replace(reason="zero bytes")
                table.add(number, member, label)
    except ArchiveCutError as error:
        if not prefix:
            raise cut_error(str(path), last, str(error)) from error
        counts.notes["archive_cut"] += 1


def _has_image(table: MemberTable, options: InputOptions) -> bool:
    """Whether a member, whole and usable or not, has an image's extension."""
    wanted = IMAGE_EXTS if options.image_column is None else {options.image_column.lower().rpartition(".")[2].encode()}
    return any(ext.rpartition(b".")[2] in wanted for ext in table.exts)


def _nothing(location: str, members: int, counts: Counts) -> UsageError:
    skipped = counts.skipped
    if counts.notes["archive_cut"]:
        return UsageError(
            "--prefix takes the whole samples before the cut",
            got=f"{location}, with no whole sample before it and {members} whole members",
            remedy="Copy the archive again, or more of it.",
        )
    if outside := skipped["outside_class_folders"]:
        return UsageError(
            "samples in archives must have labels",
            got=f"{location}, with {outside} images, without .cls members and outside of folders",
            remedy="Give --label-regex or --label-column.",
        )
    return UsageError(
        "the archives must hold images",
        got=f"{location}, with {members} usable members ({sum(skipped.values())} skipped)",
        remedy="Check the path.",
    )


def decode(field: Field, data: bytes) -> Any:
    """A member's bytes as a field's type. Raises SampleRejectedError where they are none."""
    try:
        if field.type == "text":
            return data.decode("utf-8")
        if field.type == "json":
            return json.loads(data)
        if field.type == "number":
            return typed(field, json.loads(data))
        if field.type == "array":
            return parse_npy(data)
    except (ValueError, RecursionError) as error:
        raise SampleRejectedError(f"the sample's {field.name} must be {field.type}", got=str(error)[:200]) from error
    return data


def typed(field: Field, value: Any) -> Any:
    """A JSON value that must be of a field's type. Raises SampleRejectedError where it is not."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    fits = {"text": isinstance(value, str), "number": number, "json": True}.get(field.type, False)
    if not fits:
        raise SampleRejectedError(f"the sample's {field.name} must be {field.type}", got=type(value).__name__)
    return value


class _Files:
    """The most recently used files of one process."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def open(self, path: str) -> int:
        descriptor = self._open.get(path)
        if descriptor is None:
            descriptor = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > _OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
        self._open.move_to_end(path)
        return descriptor

    def __del__(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
