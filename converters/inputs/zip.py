"""Zips as input, by the same rules as tars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from .archive import ArchiveInput, Ending
from .members import Capture, Member
from .shards import ZIP_ENDINGS, names_archives
from .zipwalk import read_member, walk_zip


def matches(location: str) -> bool:
    """Paths, braces and globs that end in .zip; folders with nothing but zips and files beside them."""
    return names_archives(location, ZIP_ENDINGS)


class ZipInput(ArchiveInput):
    """See `ArchiveInput`."""

    kind = "zip"
    endings = ZIP_ENDINGS
    _locators = ("offset", "size", "packed", "method", "crc")

    @classmethod
    def packing(cls, path: Path) -> str:
        """Always "plain": members are packed, the file is not."""
        return "plain"

    @classmethod
    def walk(cls, path: Path, capture: Capture, end: Ending) -> Iterator[Member]:
        """See `walk_zip`."""
        return walk_zip(path, capture)

    def _unpack(self, archive: int, place: Mapping[str, int]) -> bytes:
        return read_member(lambda size, offset: self._pread(archive, size, offset), **place)
