"""A converted WebDataset in an object store or behind a web server, read through a cache on the local disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import numpy as np
import xxhash

from ..errors import ConfigError, DamagedDatasetError, UsageError
from .background import Background
from .cache import DiskCache, default_directory
from .download import Remote, Stopped
from .index import INDEX_NAME, index_rows
from .manifest import MANIFEST_NAME, Shard
from .names import NAMES_BLOB, NAMES_OFFSETS
from .perprocess import PerProcess
from .readahead import RecentBlocks
from .reading import Encoded, Stretches
from .urls import without_query
from .webdataset import OpenFile, WebDatasetSource

__all__ = ["RemoteSource"]

_SHARDS_AT_ONCE = 4
_SAMPLES_AT_ONCE = 16

T = TypeVar("T")


class RemoteSource(WebDatasetSource):
    """A converted dataset of tar shards behind a URL; see `Source`.

    The manifest, the index and the names lie in the cache, in a folder for this manifest, so a dataset that changed is
    never mixed with what was fetched before. Shards are fetched whole, checked against the manifest's SHA-256, and used
    by every process and by the next run. Where the cache does not hold all shards and samples are read in no order of
    shards, a sample of a shard that is not there is fetched alone, and checked against the index's XXH3.

    Args:
        location: URL of the dataset's prefix.
        cache_dir: None for $XDG_CACHE_HOME/wellfed, else ~/.cache/wellfed.
        cache_bytes: of everything in `cache_dir`; None for 100 GB, or four fifths of the room on its disk.
        remote: the store; None for that of the URL.

    Raises:
        UsageError: there is no converted dataset, or one of LMDB.
        RemoteError: the store does not answer.
        ResourceError, ConfigError: as `DiskCache`.
        DamagedDatasetError, SchemaVersionError: as `StoredSource`, or bytes that are not the manifest's.
    """

    def __init__(
        self,
        location: str,
        *,
        cache_dir: str | Path | None = None,
        cache_bytes: int | None = None,
        remote: Remote | None = None,
    ) -> None:
        self._location = without_query(location)
        self._remote = remote or Remote(location)
        self._cache = DiskCache(Path(cache_dir) if cache_dir is not None else default_directory(), cache_bytes)
        text = self._fetched_manifest()
        self._manifest_sha256 = hashlib.sha256(text).hexdigest()
        self._directory = self._cache.directory / self._manifest_sha256[:32]
        self._by_shard = False
        self._load()
        _ = self.index

    def _fetched_manifest(self) -> bytes:
        try:
            text = self._remote.read(MANIFEST_NAME)
        except FileNotFoundError as error:
            raise UsageError(
                "a dataset that is read from a URL must be a converted one",
                got=f"{self._location} without {MANIFEST_NAME}",
                remedy=f"Check the address, or convert it: wellfed convert {self._location} DST --format webdataset, "
                "and copy DST to the store.",
            ) from error
        try:
            kind = json.loads(text).get("kind")
        except (ValueError, AttributeError, RecursionError):
            kind = None  # Manifest.load says what is wrong with it
        if kind == "lmdb":
            raise UsageError(
                "LMDB must lie on a local disk, since it is mapped into memory",
                got=f"an LMDB dataset at {self._location}",
                remedy="Copy its folder to a local disk and give that path, or convert with --format webdataset, which "
                "is read from a URL.",
            )
        return text

    def _load(self) -> None:
        path = self._directory / MANIFEST_NAME
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != self._manifest_sha256:
            path.unlink(missing_ok=True)
            text = self._fetched_manifest()
            if hashlib.sha256(text).hexdigest() != self._manifest_sha256:
                raise DamagedDatasetError(
                    f"the dataset {self._location!r} must not change while it is being read",
                    got="another manifest than when it was opened",
                    remedy="Start again, so that every process opens the same dataset.",
                )
            self._cache.ensure(path, len(text), lambda file: _write(file, text))
        os.utime(path)
        self._background = PerProcess(Background)
        self._fetched = PerProcess[set[int]](set)
        super()._load()
        self._fetch_file(INDEX_NAME)
        shards = self._manifest.shards
        self._fits = sum(shard.size for shard in shards) + self._index_bytes() <= self._cache.limit

    def _index_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._directory.iterdir() if path.suffix not in (".tar", ".part"))

    def _fetch_file(self, name: str) -> None:
        """A file beside the shards; the manifest has its SHA-256 and not its size."""
        path = self._directory / name
        if path.exists():
            return
        sha256 = self._manifest.files.get(name)
        try:
            size = self._remote.size(name)
            if sha256 is None:
                raise FileNotFoundError(name)
            self._cache.ensure(path, size, self._download(name, size, sha256))
        except FileNotFoundError as error:
            raise self._absent(name) from error

    def _download(
        self, name: str, size: int, sha256: str, stopped: Callable[[], bool] = lambda: False
    ) -> Callable[[IO[bytes]], None]:
        return lambda file: self._remote.download(name, file, size=size, sha256=sha256, stopped=stopped)

    def _absent(self, name: str) -> DamagedDatasetError:
        return DamagedDatasetError(
            f"the dataset {self._location!r} must have every file of its manifest",
            got=f"no {name}",
            remedy="Copy the dataset to the store again, its wellfed.json last.",
        )

    @property
    def cache_directory(self) -> Path:
        """The folder of the cache that this dataset's files are in."""
        return self._directory

    def prepare(self, *, order: Literal["global", "sharded"], window: int) -> None:
        """Say in which order rows will be read, before reading or pickling.

        Args:
            window: samples of a stream that order "sharded" mixes.

        Raises:
            ConfigError: order "sharded", and the cache does not hold the shards that are read at the same time.
        """
        self._by_shard = order == "sharded"
        if not self._by_shard or self._fits:
            return
        shards = self._manifest.shards
        largest = max(shard.size for shard in shards)
        beside = 2 + -(-window * len(shards) // max(1, len(self)))
        needed = self._manifest.streams * beside * largest + self._index_bytes()
        if self._cache.limit < needed:
            raise ConfigError(
                f"cache_bytes must hold the shards that order='sharded' reads at the same time and the next ones: "
                f"{self._manifest.streams} x {beside} shards of {largest} bytes and the index, {needed} bytes",
                got=self._cache.limit,
                remedy="Give more, convert with a smaller --shard-size, or use order='global', which then fetches "
                "each sample alone.",
            )

    @property
    def samples_ahead(self) -> int:
        """Samples of an epoch that a loader should announce ahead: those of about one shard in each stream."""
        mean = -(-len(self) // max(1, len(self._manifest.shards)))
        return min(len(self), self._manifest.streams * mean)

    def will_need(self, rows: np.ndarray, hinted: RecentBlocks) -> None:
        """Fetch the shards of these rows in the background; returns at once."""
        # In the order in which the rows come.
        for number in dict.fromkeys(self._shard_numbers(rows).tolist()):
            if hinted.add((number, 0)):
                shard = self._manifest.shards[number]
                self._background.get().ask(number, partial(self._fetch, shard))

    def _fetch(self, shard: Shard, stopped: Callable[[], bool] = lambda: False) -> None:
        write = self._download(shard.name, shard.size, shard.sha256, stopped)
        try:
            self._cache.ensure(self._directory / shard.name, shard.size, write)
        except FileNotFoundError as error:
            raise self._absent(shard.name) from error
        except Stopped:
            return

    def read_field(self, row: int, field: str) -> bytes:
        """The stored bytes of one of a row's fields; raises as `read`, and RemoteError."""
        entry = self.index[self._checked_row(row)]
        if self._whole(int(entry["shard"])):
            return super().read_field(row, field)
        return self._alone(row, field)

    def read_members(self, rows: np.ndarray, field: str) -> list[Encoded]:  # type: ignore[override]
        """See `WebDatasetSource`; raises RemoteError, too."""
        whole = self._read_whole(rows)
        found: list[Encoded] = [b""] * len(rows)
        for place, data in zip(np.flatnonzero(whole).tolist(), super().read_members(rows[whole], field), strict=True):
            found[place] = data
        alone = np.flatnonzero(~whole)
        fetched = _all_at_once(partial(self._alone, field=field), rows[alone].tolist(), _SAMPLES_AT_ONCE)
        for place, sample in zip(alone.tolist(), fetched, strict=True):
            found[place] = sample
        return found

    def stretches(self, rows: np.ndarray) -> Stretches | None:  # type: ignore[override]
        """See `InFiles`; None where a sample is fetched alone. Raises RemoteError, too."""
        return super().stretches(rows) if self._read_whole(rows).all() else None

    def _read_whole(self, rows: np.ndarray) -> np.ndarray:
        """Which of these rows are read from their whole shards; fetches those that are absent, several at once."""
        for row in (rows.min(), rows.max()) if len(rows) else ():
            self._checked_row(int(row))
        numbers = self._shard_numbers(rows)
        whole = np.array([self._whole(number) for number in numbers.tolist()], dtype=bool)
        absent = [number for number in dict.fromkeys(numbers[whole].tolist()) if not self._is_there(number)]
        if len(absent) > 1:
            _all_at_once(self._fetch, [self._manifest.shards[number] for number in absent], _SHARDS_AT_ONCE)
        return whole

    def _shard_numbers(self, rows: np.ndarray) -> np.ndarray:
        return index_rows(self.index["shard"], rows)

    def _is_there(self, number: int) -> bool:
        return (self._directory / self._manifest.shards[number].name).exists()

    def _whole(self, number: int) -> bool:
        """Whether a row of this shard is read from the whole shard."""
        if self._by_shard or self._is_there(number):
            return True
        # Once fetched and gone, the cache is too small for what uses it: fetching it again for each sample would cost
        # more than the samples.
        return self._fits and number not in self._fetched.get()

    def _alone(self, row: int, field: str) -> bytes:
        entry = self.index[row]
        name = self._manifest.shards[int(entry["shard"])].name
        try:
            data = self._remote.part(name, int(entry[f"offset_{field}"]), int(entry[f"size_{field}"]))
        except FileNotFoundError as error:
            raise self._absent(name) from error
        if xxhash.xxh3_64_intdigest(data) != int(entry[f"xxh3_{field}"]):
            raise self._damaged(row, name, "other bytes than the index's XXH3 says")
        return data

    def _opened(self, number: int, row: int) -> OpenFile:
        shard = self._manifest.shards[number]
        path = self._directory / shard.name
        for _ in range(3):
            self._fetch(shard)
            self._fetched.get().add(number)
            try:
                # Open for this read alone: a shard that made room for others would keep its place on the disk.
                file = OpenFile(path)
            except FileNotFoundError:
                continue  # it made room just now
            os.utime(file.descriptor)
            return file
        raise self._damaged(row, shard.name, "a cache that is too small for all who use it")

    def name(self, row: int) -> str:
        """The original relative path of a row (bytes that are not UTF-8 as surrogate escapes)."""
        if self._names is None:
            self._fetch_file(NAMES_BLOB)
            self._fetch_file(NAMES_OFFSETS)
        return super().name(row)

    def close(self) -> None:
        """Stop fetching; reading begins it again."""
        self._background.get().close()
        self._background.drop()
        super().close()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_remote", "_cache", "_manifest_sha256", "_by_shard")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in kept}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in ("_remote", "_cache", "_manifest_sha256", "_by_shard"):
            setattr(self, name, state[name])
        super().__setstate__(state)


def _all_at_once(work: Callable[[Any], T], items: list[Any], most: int) -> list[T]:
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(most, len(items))) as pool:
        return list(pool.map(work, items))


def _write(file: IO[bytes], data: bytes) -> None:
    file.write(data)
