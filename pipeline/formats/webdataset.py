"""Random access to the samples of tar shards, by the offsets in the index; the tars' headers are not read."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .index import index_rows
from .perprocess import PerProcess
from .readahead import READ_BLOCK, RecentBlocks
from .reading import ReadMemory, Stretches
from .stored import StoredSource

OPEN_SHARDS = 128
"""Shards kept open in one process: well under the usual limit of 1,024 open files."""


class WebDatasetSource(StoredSource):
    """A converted dataset of tar shards; see `Source`.

    Reads by `pread`, which has no position to share between threads and, unlike a map of a shard that was cut
    short, fails with an error and not with SIGBUS.
    """

    kind = "webdataset"

    def _load(self) -> None:
        super()._load()
        self._shards = PerProcess(_OpenShards)
        self._memory = PerProcess(ReadMemory)

    def read(self, row: int) -> bytes:
        """The encoded image of a row.

        Raises:
            DamagedDatasetError: the shard is missing or cut short; names shard and row.
            IndexError: a row outside 0..len-1.
        """
        return self.read_field(row, "image")

    def read_field(self, row: int, field: str) -> bytes:
        """The stored bytes of one of a row's fields that are members of their own; see `read`."""
        entry = self.index[self._checked_row(row)]
        shard = self._manifest.shards[int(entry["shard"])]
        size = int(entry[f"size_{self._checked_member(field)}"])
        file = self._opened(int(entry["shard"]), row)
        try:
            data = os.pread(file.descriptor, size, int(entry[f"offset_{field}"]))
        except OSError as error:
            raise self._damaged(row, shard.name, str(error)) from error
        if len(data) != size:
            raise self._damaged(row, shard.name, f"{len(data)} bytes instead of {size}")
        return data

    def read_rows(self, rows: np.ndarray) -> list[memoryview]:
        """See `ManyReader`."""
        return self.read_members(rows, "image")

    def read_members(self, rows: np.ndarray, field: str) -> list[memoryview]:
        """What `read_field` gives for these rows, shape (n,), in their order."""
        stretches = self._stretches_of(rows, self._checked_member(field))
        memory = stretches.take(int(stretches.sizes.sum()))
        whole = stretches.read(memory)
        if whole < len(rows):
            # Read alone, it says what is wrong with its shard.
            row = int(rows[whole])
            self.read_field(row, field)
            raise self._damaged(row, self._manifest.shards[int(self.index["shard"][row])].name, "too few bytes")
        return stretches.parted(memory)

    def stretches(self, rows: np.ndarray) -> Stretches:
        """See `InFiles`."""
        return self._stretches_of(rows, "image")

    def _stretches_of(self, rows: np.ndarray, field: str) -> Stretches:
        if len(rows) and ((low := int(rows.min())) < 0 or (high := int(rows.max())) >= len(self)):
            self._checked_row(low if low < 0 else high)
        entries = index_rows(self.index, rows)
        shards = entries["shard"].tolist()
        files: dict[int, OpenFile] = {}
        for shard, row in zip(shards, rows.tolist(), strict=True):
            if shard not in files:
                files[shard] = self._opened(shard, row)
        return Stretches(
            descriptors=np.array([files[shard].descriptor for shard in shards], dtype=np.int32),
            offsets=entries[f"offset_{field}"].astype(np.int64),
            sizes=entries[f"size_{field}"].astype(np.int64),
            files=tuple(files.values()),
            take=self._memory.get().take,
        )

    def _opened(self, number: int, row: int) -> OpenFile:
        """The shard, whose size was looked at when it was opened: once, since asking costs as much as reading."""
        try:
            return self._shards.get().file(number, self._open)
        except OSError as error:
            raise self._damaged(row, self._manifest.shards[number].name, str(error)) from error
        except _WrongSizeError as wrong:
            raise self._damaged(row, self._manifest.shards[number].name, str(wrong)) from None

    def _open(self, number: int) -> OpenFile:
        shard = self._manifest.shards[number]
        file = OpenFile(self._directory / shard.name)
        # Whole, or bytes of a shard that was replaced could pass for the image.
        actual = os.fstat(file.descriptor).st_size
        if actual != shard.size:
            raise _WrongSizeError(f"a file of {actual} bytes instead of {shard.size}")
        return file

    @property
    def shards(self) -> np.ndarray:
        """The shard of each row, in the manifest's count."""
        return self.index["shard"]

    def will_need(self, rows: np.ndarray, hinted: RecentBlocks) -> None:
        """Tell the system that these rows, and what lies around them, are read soon; it reads them in the background.

        What cannot be announced is left out: where it cannot be read either, reading it raises at its turn.

        Args:
            rows: shape (b,).
            hinted: the blocks told before; those of these rows are added.
        """
        index = index_rows(self.index, rows)
        # From the image, which comes first, or what does without one; what follows lies in the same blocks or the next.
        first = next(iter(self._manifest.members))
        starts = index[f"offset_{first}"].astype(np.int64)
        ends = starts + index[f"size_{first}"].astype(np.int64)
        stretches = zip(index["shard"].tolist(), starts.tolist(), ends.tolist(), strict=True)
        blocks = {
            (shard, block)
            for shard, start, end in stretches
            for block in range(start // READ_BLOCK, -(-end // READ_BLOCK))
        }
        for shard, block in sorted(blocks):
            if not hinted.add((shard, block)):
                continue
            try:
                file = self._shards.get().file(shard, self._open)
                os.posix_fadvise(file.descriptor, block * READ_BLOCK, READ_BLOCK, os.POSIX_FADV_WILLNEED)
            except (OSError, _WrongSizeError):
                continue

    def close(self) -> None:
        """Close the shards; reading opens them again."""
        self._shards.drop()


class OpenFile:
    """A descriptor that closes when its last user lets go, so that no thread reads from a closed one."""

    def __init__(self, path: Path) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # By the default: at the interpreter's end `os` may be gone before this is.
        if self.descriptor >= 0:
            close(self.descriptor)


class _WrongSizeError(Exception):
    """A shard that is not the one the manifest describes."""


class _OpenShards:
    """The most recently read shards of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[int, OpenFile] = OrderedDict()

    def file(self, number: int, open_: Callable[[int], OpenFile]) -> OpenFile:
        with self._lock:
            file = self._files.get(number)
            if file is None:
                file = self._files[number] = open_(number)
                if len(self._files) > OPEN_SHARDS:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(number)
            return file
