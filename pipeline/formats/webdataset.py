"""Random access to the samples of tar shards, by the offsets in the index; the tars' headers are not read."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np

from .perprocess import PerProcess
from .readahead import READ_BLOCK, RecentBlocks
from .reading import ReadMemory
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
        size = int(entry[f"size_{field}"])
        try:
            file = self._whole_shard(int(entry["shard"]), row)
            data = os.pread(file.descriptor, size, int(entry[f"offset_{field}"]))
        except OSError as error:
            raise self._damaged(row, shard.name, str(error)) from error
        if len(data) != size:
            raise self._damaged(row, shard.name, f"{len(data)} bytes instead of {size}")
        return data

    def read_rows(self, rows: np.ndarray) -> list[memoryview]:
        """See `ManyReader`."""
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            self._checked_row(int(rows.min()) if rows.min() < 0 else int(rows.max()))
        # As a plain array: each step on a memory map makes another memory map, which is slow.
        entries = self.index.view(np.ndarray)[rows]
        sizes = entries["size_image"].astype(np.int64)
        ends = np.cumsum(sizes)
        memory = self._memory.get().take(int(ends[-1]) if len(ends) else 0)
        files: dict[int, OpenFile] = {}
        encoded: list[memoryview] = []
        places = zip(
            *(entries["shard"].tolist(), entries["offset_image"].tolist()),
            *((ends - sizes).tolist(), ends.tolist()),
            strict=True,
        )
        for place, (shard, offset, start, end) in enumerate(places):
            part = memory[start:end]
            try:
                file = files.get(shard)
                if file is None:
                    file = files[shard] = self._whole_shard(shard, int(rows[place]))
                read = os.preadv(file.descriptor, [part], offset) if end > start else 0
            except OSError as error:
                raise self._damaged(int(rows[place]), self._manifest.shards[shard].name, str(error)) from error
            if read != end - start:
                what = f"{read} bytes instead of {end - start}"
                raise self._damaged(int(rows[place]), self._manifest.shards[shard].name, what)
            encoded.append(part)
        return encoded

    def _whole_shard(self, number: int, row: int) -> OpenFile:
        shard = self._manifest.shards[number]
        file = self._shards.get().file(self._directory / shard.name)
        # Whole, or bytes of a shard that was replaced could pass for the image.
        actual = os.fstat(file.descriptor).st_size
        if actual != shard.size:
            raise self._damaged(row, shard.name, f"a file of {actual} bytes instead of {shard.size}")
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
        index = self.index[rows]
        starts = index["offset_image"].astype(np.int64)
        ends = starts + index["size_image"].astype(np.int64)
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
                file = self._shards.get().file(self._directory / self._manifest.shards[shard].name)
                os.posix_fadvise(file.descriptor, block * READ_BLOCK, READ_BLOCK, os.POSIX_FADV_WILLNEED)
            except OSError:
                continue

    def close(self) -> None:
        """Close the shards; reading opens them again."""
        self._shards.drop()


class OpenFile:
    """A descriptor that closes when its last user lets go, so that no thread reads from a closed one."""

    def __init__(self, path: Path) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class _OpenShards:
    """The most recently read shards of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()

    def file(self, path: Path) -> OpenFile:
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = OpenFile(path)
                if len(self._files) > OPEN_SHARDS:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(path)
            return file
