"""LMDB: one writer over the staged tars, in their order, so that the bytes never depend on how they were made.

It follows the workers: a tar is written into the environment as soon as it and all before it are packed. Images that
the source gives again are not in the tars: they are read from it, and held to the hash of what the worker checked.
"""

from __future__ import annotations

import mmap
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

import lmdb
import numpy as np
import xxhash

from wellfed.pipeline.errors import ResourceError, SourceChangedError, WellfedError
from wellfed.pipeline.formats import Shard

from ..files import out_of_space, sha256_of
from ..writeback import Writeback
from .base import Assembled, Follower, Part

DATA_NAME = "data.mdb"

_BATCH_BYTES = 64 << 20
_BATCH_SAMPLES = 4096
_SIZES_AT_ONCE = 1 << 20
_ROWS_AT_ONCE = 1 << 14
_SMALL_BYTES = 500
"""A sample's label and JSON, with their shares of leaf and branch pages."""

_POPULATE = getattr(mmap, "MAP_POPULATE", 0)  # Linux

# LMDB's sizes (mdb.c 0.9): page header, node header, and the share of a page above which a value gets its own pages.
_PAGE_HEADER, _NODE_HEADER, _KEY = 16, 8, 16


class LmdbOutput:
    """See `Output`."""

    kind: Literal["webdataset", "lmdb"] = "lmdb"

    def bytes_beyond_tars(self, sizes: np.ndarray) -> int:
        """The environment, beside the tars it is written from."""
        return self._map_bytes(sizes)

    def follow(self, sizes: np.ndarray, scratch: Path, final: Path, read: Callable[[int], bytes]) -> EnvironmentWriter:
        """Begin `data.mdb` from zero in an empty folder; parts are added while later ones are still packed."""
        return EnvironmentWriter(scratch, self._map_bytes(sizes), read)

    def _map_bytes(self, sizes: np.ndarray) -> int:
        images = (sizes[start : start + _SIZES_AT_ONCE] for start in range(0, len(sizes), _SIZES_AT_ONCE))
        # From the plan, not from what was stored: equal for every run, and known before the first part is.
        return map_bytes(images) + -(-_SMALL_BYTES * len(sizes) // (1 << 20)) * (1 << 20)

    def assemble(
        self,
        parts: Sequence[Part],
        scratch: Path,
        final: Path,
        on_samples: Callable[[int], None],
        follower: Follower,
    ) -> Assembled:
        """Wait for the environment to be written and synced."""
        assert isinstance(follower, EnvironmentWriter)
        sha256 = follower.finish(on_samples)
        data = scratch / DATA_NAME
        samples = sum(part.samples for part in parts)
        shard = Shard(name=DATA_NAME, samples=samples, size=data.stat().st_size, sha256=sha256)
        return Assembled(shards=(shard,), moves=((data, DATA_NAME),), files={})

    def published_rows(self, parts: Sequence[Part]) -> Iterator[np.ndarray]:
        """The parts' rows without offsets: LMDB is read by key."""
        for part in parts:
            rows = np.array(part.rows())
            for field in part.members:
                rows[f"offset_{field}"] = 0
            yield rows


def map_bytes(sizes: Iterable[np.ndarray], *, page: int | None = None) -> int:
    """Upper bound for an environment with one entry of each of these value sizes, in whole MiB.

    Args:
        sizes: bytes of the values, integer arrays.
        page: LMDB's page size; None for this machine's.
    """
    page = page or min(os.sysconf("SC_PAGE_SIZE"), 1 << 15)
    own_pages = in_leaves = 0
    for some in sizes:
        node = some.astype(np.int64) + (_NODE_HEADER + _KEY + 2)
        large = node > (page - _PAGE_HEADER) // 2 - 2
        own_pages += int((-(-(some[large].astype(np.int64) + _PAGE_HEADER) // page)).sum())
        in_leaves += int(node[~large].sum()) + int(large.sum()) * (_NODE_HEADER + _KEY + 10)
    # Appending leaves each leaf more than half full; branch pages are a few percent of the leaves.
    leaves = 2 * in_leaves // (page - _PAGE_HEADER) + 1
    total = (own_pages + leaves + leaves // 10 + 256) * page
    return -(-(total + total // 100) // (1 << 20)) * (1 << 20)


class EnvironmentWriter:
    """Writes `data.mdb` in a thread of its own; LMDB and the hashes let other threads run meanwhile.

    A context manager, whose end stops the thread. What fails in the thread is raised by the next `add` or `finish`.

    Args:
        scratch: an empty folder.
        size: of the map, bytes; enlarged where it does not do.
        read: see `Output.follow`.
    """

    def __init__(self, scratch: Path, size: int, read: Callable[[int], bytes]) -> None:
        self._scratch, self._size, self._read = scratch, size, read
        # Parts are small descriptions: any number may wait.
        self._parts: queue.SimpleQueue[Part | None] = queue.SimpleQueue()
        self._stopped = False
        self._done = 0
        self._error: Exception | None = None
        self._sha256 = ""
        self._thread = threading.Thread(target=self._run, name="wellfed-lmdb", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        self._parts.put(None)
        self._thread.join()

    def add(self, part: Part) -> None:
        """The next part, in order."""
        self._raise()
        self._parts.put(part)

    @property
    def behind(self) -> int:
        """Parts added and not begun yet."""
        self._raise()
        return self._parts.qsize()

    def finish(self, on_samples: Callable[[int], None]) -> str:
        """Wait until all parts are written and synced; the file's SHA-256.

        Raises:
            ResourceError: the disk is full.
            WellfedError: LMDB failed, or a staged tar is not as it was packed.
        """
        self._parts.put(None)
        while self._thread.is_alive():
            self._thread.join(0.1)
            on_samples(self._done)
        self._raise()
        return self._sha256

    def _raise(self) -> None:
        if self._error is None:
            return
        try:
            raise self._error
        except lmdb.Error as error:
            # A short write on a full disk comes out of LMDB 0.9 as an I/O error.
            if not isinstance(error, lmdb.DiskError) and not any(
                word in str(error)
                for word in ("No space left", "quota exceeded", "File too large", "Input/output error")
            ):
                raise WellfedError("LMDB must be able to write", got=str(error), remedy="Run again.") from error
            raise out_of_space(self._scratch.parent.parent, str(error)) from error

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:
            # Raised in the caller's thread.
            self._error = error

    def _write(self) -> None:
        environment = lmdb.open(
            str(self._scratch),
            map_size=self._size,
            max_dbs=0,
            lock=False,
            # Synced once at the end: a killed pass starts again anyway. Not a writable map: a full disk would kill us.
            sync=False,
            metasync=False,
            writemap=False,
        )
        try:
            # The disk works beside the puts and the hash: a thread of its own, since the system may make it wait.
            with open(self._scratch / DATA_NAME, "rb") as data, ThreadPoolExecutor(1) as disk:
                writeback = Writeback(data.fileno())
                for samples, batch in _batches(iter(self._parts.get, None)):
                    if self._stopped:
                        return
                    self._commit(environment, batch)
                    self._done += samples
                    disk.submit(writeback.upto, os.fstat(data.fileno()).st_size)
                if self._stopped:
                    return
                synced = disk.submit(environment.sync, True)
                self._sha256 = sha256_of(self._scratch / DATA_NAME)
                synced.result()
        finally:
            environment.close()

    def _commit(self, environment: lmdb.Environment, batch: list[_Entry]) -> None:
        while True:
            try:
                with environment.begin(write=True) as transaction:
                    for entry in batch:
                        if not transaction.put(entry.key, self._value(entry), append=True):
                            raise WellfedError("keys must be written in ascending order", got=entry.key.decode("ascii"))
                return
            except lmdb.MapFullError as error:
                # The whole transaction is void: it is written again into the larger map.
                size = environment.info()["map_size"] * 2
                if size > 1 << 46:
                    raise ResourceError(
                        "the environment must fit into memory addresses", got=f"{size} bytes"
                    ) from error
                environment.set_mapsize(size)

    def _value(self, entry: _Entry) -> memoryview | bytes:
        """Read only now: LMDB copies it, and a batch of values held beside its copies takes memory and time."""
        if entry.offset:
            value: memoryview | bytes = entry.tar[entry.offset : entry.offset + entry.size]
        else:
            value = self._read(entry.number)
        if xxhash.xxh3_64_intdigest(value) == entry.xxh3:
            return value
        if entry.offset:
            raise _not_as_packed(entry.part)
        raise SourceChangedError(
            "the source must not change while it is converted",
            got=f"the image of sample {entry.number}, which is not as it was checked",
            remedy="Restore it and run the same command again, or use --overwrite to begin again.",
        )


class _Entry(NamedTuple):
    """A value to be put: where it lies, and the hash it must have; an offset of 0 is that of an image outside."""

    key: bytes
    number: int
    part: Part
    tar: memoryview
    offset: int
    size: int
    xxh3: int


def _batches(parts: Iterable[Part]) -> Iterator[tuple[int, list[_Entry]]]:
    """Entries in order of their keys, cut where the sizes say, never where the clock or a worker does."""
    batch: list[_Entry] = []
    samples = weight = 0
    for part in parts:
        # The map lives as long as the entries that lie in it.
        tar = memoryview(_mapped(part.tar))
        for (number, ext), fields in _tuples(part):
            entries = [
                _Entry(
                    b"%010d.%s" % (number, extension.encode("ascii") if extension else ext), number, part, tar, *place
                )
                for extension, place in zip(part.members.values(), fields, strict=True)
            ]
            entries.sort(key=itemgetter(0))
            batch += entries
            weight += sum(entry.size for entry in entries)
            samples += 1
            if weight >= _BATCH_BYTES or samples >= _BATCH_SAMPLES:
                yield samples, batch
                batch, samples, weight = [], 0, 0
    if batch:
        yield samples, batch


def _tuples(part: Part) -> Iterator[tuple[tuple[int, bytes], list[tuple[int, int, int]]]]:
    """Of each sample, its key and its image's extension; and of each member, offset, size and XXH3."""
    rows = part.rows()
    names = [tuple(f"{column}_{field}" for column in ("offset", "size", "xxh3")) for field in part.members]
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        members = [zip(*(some[name].tolist() for name in each), strict=True) for each in names]
        heads = zip(some["key"].tolist(), some["ext"].tolist(), strict=True)
        for head, *fields in zip(heads, *members, strict=True):
            yield head, fields


def _mapped(path: Path) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | _POPULATE, prot=mmap.PROT_READ)


def _not_as_packed(part: Part) -> WellfedError:
    # Staged tars are not synced, and a machine that stops may lose some of them: without it the task is packed again.
    part.tar.unlink()
    return WellfedError(
        "a staged shard must be as it was packed",
        got=f"{part.tar.name}, which is not",
        remedy="Run the same command again: that shard is packed anew.",
    )
