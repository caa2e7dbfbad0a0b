"""Tars as input, WebDataset shards or tarred class folders: plain ones read in place, compressed ones unpacked once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from wellfed.pipeline.errors import ResourceError, SampleRejectedError, SourceChangedError

from .archive import CHANGED, ArchiveInput, Ending
from .listing import Listing
from .members import ArchiveCutError, Capture, Member
from .shards import TAR_ENDINGS, compression, names_archives, open_stream
from .tarwalk import walk_tar
from .temporary import TemporaryFolder

_CHUNK = 1 << 20


def matches(location: str) -> bool:
    """Paths, braces and globs that end as tars do; folders with nothing but tars and files beside them."""
    return names_archives(location, TAR_ENDINGS)


class TarInput(ArchiveInput):
    """See `ArchiveInput`. `save` decompresses what is compressed, so that workers read members in any order."""

    kind = "tar"
    endings = TAR_ENDINGS
    _locators = ("offset", "size")

    def __init__(self, location: str, listing: Listing) -> None:
        super().__init__(location, listing)
        self._spools: Path | None = None
        self._keeper: Any = None

    @classmethod
    def load(cls, location: str, directory: Path) -> Self:
        """Open what `save` wrote, memory-mapped."""
        loaded = super().load(location, directory)
        loaded._spools = directory
        return loaded

    def save(self, directory: Path) -> None:
        """Write the listing, and each compressed tar as a plain one.

        Raises:
            ResourceError: they do not fit on the disk.
            SourceChangedError: a tar is not as it was listed.
        """
        super().save(directory)
        self._unpack_all(directory)

    def _unpack_all(self, directory: Path) -> None:
        packed = [number for number, each in enumerate(self._archives) if each.packing != "plain"]
        needed = sum(self._archives[number].unpacked for number in packed)
        free = shutil.disk_usage(directory).free
        if needed > free:
            raise ResourceError(
                f"the disk must have {needed / 1e9:,.2f} GB free for decompressed tars",
                got=f"{free / 1e9:,.2f} GB free",
                remedy="Make room, give a destination on another disk, or give plain tars.",
            )
        for number in packed:
            self._unpack_one(number, directory / _spool_name(number))

    def _unpack_one(self, number: int, to: Path) -> None:
        archive = self._archives[number]
        left = archive.unpacked
        try:
            with open_stream(Path(archive.path)) as stream, open(to, "wb") as spool:
                while left and (piece := stream.read(min(left, _CHUNK))):
                    spool.write(piece)
                    left -= len(piece)
                status = os.stat(archive.path)
        except (ArchiveCutError, FileNotFoundError) as error:
            raise _changed(archive.path) from error
        if left or (status.st_size, status.st_mtime_ns) != (archive.size, archive.mtime_ns):
            raise _changed(archive.path)

    @classmethod
    def packing(cls, path: Path) -> str:
        """ "plain", "gz", "bz2" or "zst"."""
        return compression(path)

    @classmethod
    def walk(cls, path: Path, capture: Capture, end: Ending) -> Iterator[Member]:
        """See `walk_tar`."""
        with open_stream(path) as stream:
            for member in walk_tar(stream, capture):
                end.unpacked = stream.position
                yield member
            end.unpacked = stream.position

    def read_at(self, archive: int, *, offset: int, size: int) -> bytes:
        """Bytes of a member. Raises SampleRejectedError where the archive changed or cannot be read."""
        return self._unpack(archive, {"offset": offset, "size": size})

    def _unpack(self, archive: int, place: Mapping[str, int]) -> bytes:
        listed = self._archives[archive]
        if listed.packing == "plain":
            return self._pread(archive, place["size"], place["offset"])
        if self._spools is None:
            # Read without having been saved, as a look at a few samples is.
            self._keeper = TemporaryFolder()
            self._spools = self._keeper.path
            self._unpack_all(self._spools)
        try:
            descriptor = self._files.get().open(str(self._spools / _spool_name(archive)))
            data = os.pread(descriptor, place["size"], place["offset"])
        except OSError as error:
            raise SampleRejectedError(
                "the decompressed tar must be readable", got=os.strerror(error.errno or 0)
            ) from error
        if len(data) != place["size"]:
            raise SampleRejectedError(CHANGED)
        return data


def _spool_name(number: int) -> str:
    return f"input.spool-{number:06d}.tar"


def _changed(path: str) -> SourceChangedError:
    return SourceChangedError("a tar must not change while it is being converted", got=path, remedy="Run again.")
