"""ImageFolder as input: one folder for each class, files below it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from wellfed.pipeline.errors import SampleRejectedError
from wellfed.pipeline.formats.names import Names, NamesWriter, open_names
from wellfed.pipeline.formats.scan import scan_folder

_TABLE = "input.table.npy"
_FACTS = "input.json"
_TABLE_ROW = np.dtype([("label", "<i8"), ("size", "<u8"), ("mtime_ns", "<i8")])

CHANGED = "the file must not change between planning and reading"


@dataclass(frozen=True)
class FolderInput:
    """Files of a folder of class folders; see `Input` for the contract.

    Attributes:
        root: the folder.
        table: structured array, shape (n,): label, size (bytes), mtime_ns.
        names: relative paths by row.
    """

    root: Path
    class_names: tuple[str, ...]
    table: np.ndarray
    names: Names
    refused: Mapping[int, str]
    skipped: Mapping[str, int]
    notes: Mapping[str, int]
    fingerprint: str
    kind: str = "folder"

    @classmethod
    def list(cls, root: Path) -> Self:
        """Walk the folder. Raises UsageError where it is missing or holds nothing in class folders."""
        scan = scan_folder(root)
        table = np.empty(len(scan), _TABLE_ROW)
        table["label"], table["size"], table["mtime_ns"] = scan.labels, scan.sizes, scan.mtimes_ns
        return cls(
            root=root,
            class_names=scan.class_names,
            table=table,
            names=Names(scan.names, scan.offsets),
            refused=scan.reasons,
            skipped=scan.skipped,
            notes=scan.notes,
            fingerprint=scan.fingerprint,
        )

    @classmethod
    def load(cls, root: Path, directory: Path) -> Self:
        """Open what `save` wrote, memory-mapped."""
        facts = json.loads((directory / _FACTS).read_text())
        table = np.load(directory / _TABLE, mmap_mode="r", allow_pickle=False)
        return cls(
            root=root,
            class_names=tuple(facts["class_names"]),
            table=table,
            names=open_names(directory, len(table)),
            refused={int(row): reason for row, reason in facts["refused"].items()},
            skipped=facts["skipped"],
            notes=facts["notes"],
            fingerprint=facts["fingerprint"],
        )

    def save(self, directory: Path) -> None:
        """Write table, names and facts into `directory`."""
        np.save(directory / _TABLE, self.table, allow_pickle=False)
        with NamesWriter(directory) as writer:
            for row in range(len(self)):
                writer.add(self.names.bytes_at(row))
        facts = {
            "class_names": self.class_names,
            "refused": self.refused,
            "skipped": self.skipped,
            "notes": self.notes,
            "fingerprint": self.fingerprint,
        }
        (directory / _FACTS).write_text(json.dumps(facts))

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each file, shape (n,)."""
        return self.table["size"]

    @property
    def labels(self) -> np.ndarray:
        """Class index of each file, shape (n,)."""
        return self.table["label"]

    @cached_property
    def state(self) -> str:
        """Digest of names, sizes, classes, modification times and refused rows."""
        digest = hashlib.sha256(self.fingerprint.encode())
        digest.update(np.ascontiguousarray(self.table["mtime_ns"]).tobytes())
        digest.update(json.dumps(sorted(self.refused.items())).encode())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.table)

    def name(self, row: int) -> bytes:
        """Path relative to the root, class folder first."""
        return self.names.bytes_at(row)

    def read(self, row: int) -> bytes:
        """The file's bytes.

        Raises:
            SampleRejectedError: it cannot be read, or its size or modification time is not the listed one.
        """
        size, mtime = int(self.table["size"][row]), int(self.table["mtime_ns"][row])
        try:
            fd = os.open(os.path.join(os.fsencode(self.root), self.name(row)), os.O_RDONLY | os.O_CLOEXEC)
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
        if status.st_size != size or status.st_mtime_ns != mtime or len(data) != size:
            raise SampleRejectedError(CHANGED)
        return data
