"""Random access to the samples of an LMDB environment, by key."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import lmdb
import numpy as np

from ..errors import DamagedDatasetError, UsageError, WellfedError
from .environments import ENVIRONMENTS, Environment
from .index import index_rows
from .lent import Lease, lend
from .perprocess import PerProcess
from .readahead import RecentBlocks
from .stored import StoredSource

DATA_NAME = "data.mdb"

STRETCH_BYTES = 256 << 20

_Value = TypeVar("_Value", bytes, memoryview)


class LmdbSource(StoredSource):
    """A converted LMDB dataset; see `Source`. The environment is opened at a process's first read."""

    kind = "lmdb"

    def _load(self) -> None:
        super()._load()
        if [shard.name for shard in self._manifest.shards] != [DATA_NAME]:
            raise DamagedDatasetError(
                f"the LMDB dataset {self._location!r} must have the one data file {DATA_NAME!r}",
                got=", ".join(shard.name for shard in self._manifest.shards) or "none",
                remedy="Convert the dataset again.",
            )
        self._held = PerProcess[_Held](_Held)

    def read(self, row: int) -> bytes:
        """The encoded image of a row.

        Raises:
            DamagedDatasetError: the environment is missing, cut short or lacks the key; names file and row.
            IndexError: a row outside 0..len-1.
        """
        return self.read_field(row, "image")

    def read_field(self, row: int, field: str) -> bytes:
        """The stored bytes of one of a row's fields that are entries of their own; see `read`."""
        entry = self.index[self._checked_row(row)]
        extension = self._manifest.members[self._checked_member(field)]
        key = b"%010d." % int(entry["key"]) + (bytes(entry["ext"]) if extension is None else extension.encode("ascii"))
        with ENVIRONMENTS:
            environment = self._environment(row)
            try:
                with environment.handle.begin() as transaction:
                    data = transaction.get(key)
            except lmdb.Error as error:
                raise self._damaged(row, DATA_NAME, str(error)) from error
        return self._whole(row, key, data, int(entry[f"size_{field}"]))

    def read_rows(self, rows: np.ndarray) -> list[memoryview]:
        """Views into the map, nothing copied, each valid for as long as it lives; see `ManyReader` and `Lease`.

        The pages of a view are read from disk when a decoder touches them, or before, as the system likes.
        """
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            self._checked_row(int(rows.min()) if rows.min() < 0 else int(rows.max()))
        entries = index_rows(self.index, rows)
        views: list[memoryview] = []
        extension = self._manifest.members["image"]
        with ENVIRONMENTS:
            lease: Lease | None = None
            places = zip(entries["key"].tolist(), entries["ext"].tolist(), entries["size_image"].tolist(), strict=True)
            for place, (number, ext, size) in enumerate(places):
                key = b"%010d." % number + (ext if extension is None else extension.encode("ascii"))
                try:
                    if lease is None:
                        lease = Lease(self._environment(int(rows[place])))
                    value = lease.transaction.get(key)
                except lmdb.Error as error:
                    raise self._damaged(int(rows[place]), DATA_NAME, str(error)) from error
                views.append(lend(lease, self._whole(int(rows[place]), key, value, size)))
        return views

    def will_need(self, rows: np.ndarray, hinted: RecentBlocks) -> None:
        """Tell the system that these rows are read soon; it reads them in the background.

        What cannot be announced is left out: where it cannot be read either, reading it raises at its turn.

        Args:
            rows: shape (b,).
            hinted: not used, since each row is announced by itself, and once.
        """
        if "image" not in self._manifest.members:
            return  # nothing but images is announced
        with suppress(WellfedError):
            self.read_rows(rows)

    def _environment(self, row: int) -> Environment:
        """Call it inside `with ENVIRONMENTS`."""
        held = self._held.get()
        if held.environment is None:
            held.environment = self._open(row)
        return held.environment

    def _whole(self, row: int, key: bytes, data: _Value | None, size: int) -> _Value:
        if data is None or len(data) != size:
            what = f"no key {key.decode('ascii', 'replace')}" if data is None else f"{len(data)} bytes"
            raise self._damaged(row, DATA_NAME, f"{what}, where the index says {size} bytes")
        return data

    @cached_property
    def shards(self) -> np.ndarray:
        """Stretches of 256 MiB of images, as shards would have: entries lie in the file in the order of their keys.

        Of samples without an image, all that they have counts.
        """
        members = ("image",) if "image" in self._manifest.members else tuple(self._manifest.members)
        ends = np.zeros(1, dtype=np.uint64)
        for member in members:
            ends = ends + np.cumsum(self.index[f"size_{member}"], dtype=np.uint64)
        return (ends // np.uint64(STRETCH_BYTES)).astype(np.uint32)

    def close(self) -> None:
        """Let go of the environment; it closes with its last user, and reading opens it again."""
        with ENVIRONMENTS:
            self._held.drop()

    def _open(self, row: int) -> Environment:
        path = self._directory / DATA_NAME
        expected = self._manifest.shards[0].size
        try:
            size = os.stat(path).st_size
            if size == expected:
                check_mappable(path)
                return ENVIRONMENTS.open(path)
        except DamagedDatasetError as error:
            raise self._damaged(row, DATA_NAME, str(error)) from error
        except (OSError, lmdb.Error) as error:
            if "already open in this process" in str(error):
                raise UsageError(
                    f"LMDB lets a process open {str(path)!r} only once",
                    got="an environment opened outside wellfed",
                    remedy="Close that lmdb.Environment before reading the dataset here.",
                ) from error
            raise self._damaged(row, DATA_NAME, str(error)) from error
        raise self._damaged(row, DATA_NAME, f"a file of {size} bytes instead of {expected}")


def check_mappable(path: Path) -> None:
    """Require that an LMDB data file holds all pages it says it has; mapping a shorter one kills with SIGBUS.

    Raises:
        DamagedDatasetError: not an LMDB data file, or cut short.
        OSError: it cannot be read.
    """
    # Two meta pages at the start: a 16-byte page header, then MDB_meta of lmdb.h 0.9 on a 64-bit machine:
    # magic, version, address, mapsize, two MDB_db of 48 bytes (the first starts with the page size), last page.
    page_size, pages = 0, 0
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for position in (0, None):
            meta = os.pread(file.fileno(), 152, page_size if position is None else position)
            if len(meta) == 152:
                magic, version = struct.unpack_from("<II", meta, 16)
                (psize,) = struct.unpack_from("<I", meta, 40)
                (last_page,) = struct.unpack_from("<Q", meta, 136)
            if len(meta) < 152 or magic != 0xBEEFC0DE or version != 1 or not 512 <= psize <= 65536:
                raise DamagedDatasetError(
                    f"{str(path)!r} must be an LMDB data file", got="another header", remedy="Copy the file again."
                )
            page_size, pages = psize, max(pages, last_page + 1)
    if pages * page_size > size:
        raise DamagedDatasetError(
            f"the LMDB file {str(path)!r} must hold the {pages} pages of {page_size} bytes that its header counts",
            got=f"{size} bytes",
            remedy="Copy the file again.",
        )


class _Held:
    """What one source holds in one process."""

    def __init__(self) -> None:
        self.environment: Environment | None = None
