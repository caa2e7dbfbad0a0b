"""ImageFolder as input: one folder for each class, files below it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from wellfed.pipeline.errors import SampleRejectedError
from wellfed.pipeline.formats.scan import FolderScan, scan_folder

from .base import InputOptions, Record
from .listing import ListedInput, ListingBuilder

CHANGED = "the file must not change between planning and reading"


def matches(location: str) -> bool:
    """Any local folder."""
    return os.path.isdir(location)


class FolderInput(ListedInput):
    """Files of a folder of class folders; see `Input` for the contract."""

    kind = "folder"

    @classmethod
    def list(cls, location: str, options: InputOptions) -> Self:
        """Walk the folder. Raises UsageError where it is missing or holds nothing in class folders."""
        scan = scan_folder(Path(location))
        builder = ListingBuilder()
        for row in range(len(scan)):
            label: int | str = int(scan.labels[row])
            if options.classes is not None:
                label = scan.class_names[label]
            _add(builder, scan, row, label)
        classes = options.classes if options.classes is not None else scan.class_names
        return cls(location, builder.finish(classes, skipped=scan.skipped, notes=_without_empty(scan)))

    def read(self, row: int) -> Record:
        """The file's bytes.

        Raises:
            SampleRejectedError: it cannot be read, or its size or modification time is not the listed one.
        """
        columns = self.listing.columns
        path = os.path.join(os.fsencode(self.location), self.name(row))
        return Record(read_listed(path, size=int(columns["size"][row]), mtime_ns=int(columns["stamp"][row])), {})


def _add(builder: ListingBuilder, scan: FolderScan, row: int, label: int | str) -> None:
    builder.add(
        scan.name_bytes(row),
        label=label,
        size=int(scan.sizes[row]),
        stamp=int(scan.mtimes_ns[row]),
        reason=scan.reasons.get(row),
    )


def _without_empty(scan: FolderScan) -> dict[str, int]:
    # The listing counts empty classes itself, among the given ones too.
    return {note: count for note, count in scan.notes.items() if note != "empty_class"}


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
