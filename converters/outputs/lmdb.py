"""LMDB: one pass with one writer over the staged tars, so that the bytes never depend on how they were made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import lmdb
import numpy as np

from wellfed.pipeline.errors import ResourceError, WellfedError
from wellfed.pipeline.formats import Shard

from ..files import out_of_space, sha256_of
from .base import Assembled, Part

DATA_NAME = "data.mdb"

_BATCH_BYTES = 64 << 20
_BATCH_SAMPLES = 4096
_SIZES_AT_ONCE = 1 << 20

# LMDB's sizes (mdb.c 0.9): page header, node header, and the share of a page above which a value gets its own pages.
_PAGE_HEADER, _NODE_HEADER, _KEY = 16, 8, 16


class LmdbOutput:
    """See `Output`."""

    kind: Literal["webdataset", "lmdb"] = "lmdb"

    def bytes_beyond_tars(self, sizes: np.ndarray) -> int:
        """The environment, beside the tars it is written from; label and JSON take about 200 bytes."""
        images = (sizes[start : start + _SIZES_AT_ONCE] for start in range(0, len(sizes), _SIZES_AT_ONCE))
        return map_bytes(images) + 500 * len(sizes)

    def assemble(
        self, parts: Sequence[Part], scratch: Path, final: Path, on_samples: Callable[[int], None]
    ) -> Assembled:
        """Write `data.mdb` from zero."""
        try:
            _write(parts, scratch, on_samples)
        except lmdb.Error as error:
            # A short write on a full disk comes out of LMDB 0.9 as an I/O error.
            if not isinstance(error, lmdb.DiskError) and not any(
                word in str(error)
                for word in ("No space left", "quota exceeded", "File too large", "Input/output error")
            ):
                raise WellfedError("LMDB must be able to write", got=str(error), remedy="Run again.") from error
            raise out_of_space(final.parent.parent, str(error)) from error
        data = scratch / DATA_NAME
        shard = Shard(
            name=DATA_NAME,
            samples=sum(part.samples for part in parts),
            size=data.stat().st_size,
            sha256=sha256_of(data),
        )
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


def _write(parts: Sequence[Part], scratch: Path, on_samples: Callable[[int], None]) -> None:
    sizes = (part.rows()[f"size_{field}"] for part in parts for field in part.members)
    environment = lmdb.open(
        str(scratch),
        map_size=map_bytes(sizes),
        max_dbs=0,
        lock=False,
        # Synced once at the end: a killed pass starts again anyway. Not a writable map: a full disk would kill us.
        sync=False,
        metasync=False,
        writemap=False,
    )
    try:
        done = 0
        for samples, batch in _batches(parts):
            _commit(environment, batch)
            done += samples
            on_samples(done)
        environment.sync(True)
    finally:
        environment.close()


def _commit(environment: lmdb.Environment, batch: list[tuple[bytes, bytes]]) -> None:
    while True:
        try:
            with environment.begin(write=True) as transaction:
                for key, value in batch:
                    if not transaction.put(key, value, append=True):
                        raise WellfedError("keys must be written in ascending order", got=key.decode("ascii"))
            return
        except lmdb.MapFullError as error:
            # The whole transaction is void: it is written again into the larger map.
            size = environment.info()["map_size"] * 2
            if size > 1 << 46:
                raise ResourceError("the environment must fit into memory addresses", got=f"{size} bytes") from error
            environment.set_mapsize(size)


def _batches(parts: Sequence[Part]) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
    """Entries in order of their keys, cut where the sizes say, never where the clock or a worker does."""
    batch: list[tuple[bytes, bytes]] = []
    samples = weight = 0
    for part in parts:
        fd = os.open(part.tar, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for row in part.rows():
                image = row["ext"].decode("ascii")
                entries = []
                for field, extension in part.members.items():
                    value = os.pread(fd, int(row[f"size_{field}"]), int(row[f"offset_{field}"]))
                    entries.append((b"%010d.%s" % (int(row["key"]), (extension or image).encode("ascii")), value))
                batch += sorted(entries)
                samples += 1
                weight += sum(len(value) for _, value in entries)
                if weight >= _BATCH_BYTES or samples >= _BATCH_SAMPLES:
                    yield samples, batch
                    batch, samples, weight = [], 0, 0
        finally:
            os.close(fd)
    if batch:
        yield samples, batch
