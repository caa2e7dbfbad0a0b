"""ImageFolder as input: one folder for each class, files below it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Self

from wellfed.pipeline.errors import SampleRejectedError
from wellfed.pipeline.formats.scan import Entry, FolderWalk

from .base import InputOptions, Record
from .listing import ListedInput, ListingBuilder

CHANGED = "the file must not change between planning and reading"

_AT_ONCE = 1 << 12
"""Rows."""


def matches(location: str) -> bool:
    """Any local folder."""
    return os.path.isdir(location)


class FolderInput(ListedInput):
    """Files of a folder of class folders; see `Input` for the contract."""

    kind = "folder"
    rereads = True

    @classmethod
    def list(cls, location: str, options: InputOptions) -> Self:
        """Walk the folder. Raises UsageError where it is missing or holds nothing in class folders."""
        walk = FolderWalk(Path(location))
        builder = ListingBuilder()
        for label, entries in groupby(walk.entries(), itemgetter(0)):
            # Of given classes the names are looked up, and one that is not among them refuses its rows.
            given: int | str = label if options.classes is None else walk.class_names[label]
            _add(builder, given, (entry for _, entry in entries))
        classes = walk.class_names if options.classes is None else options.classes
        return cls(location, builder.finish(classes, skipped=walk.skipped))

    def read(self, row: int) -> Record:
        """The file's bytes.

        Raises:
            SampleRejectedError: it cannot be read, or its size or modification time is not the listed one.
        """
        columns = self.listing.columns
        path = os.path.join(os.fsencode(self.location), self.name(row))
        return Record(read_listed(path, size=int(columns["size"][row]), mtime_ns=int(columns["stamp"][row])), {})


def _add(builder: ListingBuilder, label: int | str, entries: Iterator[Entry]) -> None:
    """Rows of one class; those without a fault many at a time."""
    while some := list(islice(entries, _AT_ONCE)):
        for refused, rows in groupby(some, lambda entry: entry.reason is not None):
            if refused:
                for entry in rows:
                    builder.add(entry.path, label=label, size=entry.size, stamp=entry.mtime_ns, reason=entry.reason)
            else:
                names, sizes, stamps, _ = zip(*rows, strict=True)
                builder.extend(names, label=label, sizes=sizes, stamps=stamps)


def read_listed(path: bytes, *, size: int, mtime_ns: int) -> bytes:
    """The bytes of a file, which must be as it was listed.

    Raises:
        SampleRejectedError: it cannot be read, or its size (bytes) or modification time is another.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # One byte more than listed, so that a file that grew is seen without another call.
            data = os.read(fd, size + 1)
            while len(data) < size and (more := os.read(fd, size + 1 - len(data))):
                data += more
            # After reading: a change before or during it shows here.
            status = os.fstat(fd)
        finally:
            os.close(fd)
    except OSError as error:
        # Not str(error): it holds the absolute path, and rejects.jsonl must not.
        raise SampleRejectedError("the file must be readable", got=os.strerror(error.errno or 0)) from error
    if status.st_size != size or status.st_mtime_ns != mtime_ns or len(data) != size:
        raise SampleRejectedError(CHANGED)
    return data
