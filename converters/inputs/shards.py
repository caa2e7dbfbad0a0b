"""Which archive files a location means, and how each is opened: braces, globs, folders, compression."""

from __future__ import annotations

import bz2
import glob
import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import braceexpand

from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.formats.manifest import MANIFEST_NAME

from .members import ArchiveCutError
from .tarwalk import PlainStream, Stream
from .zstframes import WholeFrames

SEPARATOR = "::"
"""Between several locations in one text, as in webdataset."""

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tzst", ".tar.bz2", ".tbz2", ".tbz")
ZIP_ENDINGS = (".zip",)

_MOST_FILES = 1_000_000
_CHUNK = 1 << 20
_MAGIC = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zst", b"\x50\x2a\x4d\x18": "zst"}
_BROKEN: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error)


def names_archives(location: str, endings: tuple[str, ...]) -> bool:
    """Whether a location is, by its name, archives with one of these endings, or a folder of nothing but those."""
    parts = location.split(SEPARATOR)
    if all(part.lower().rstrip("*}").endswith(endings) or part.lower().endswith(endings) for part in parts):
        return True
    if len(parts) > 1 or not os.path.isdir(location) or os.path.lexists(os.path.join(location, MANIFEST_NAME)):
        return False
    with os.scandir(location) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    # Indexes, checksums and lists often lie beside shards; folders beside them mean something else.
    return any(entry.name.lower().endswith(endings) for entry in shown) and not any(entry.is_dir() for entry in shown)


def expand(location: str, endings: tuple[str, ...]) -> tuple[Path, ...]:
    """The files of a location, in the order given; globs and folders sorted as text.

    Raises:
        UsageError: nothing matches, a file is missing or no regular file, a file comes twice, or braces are broken.
    """
    if not location or "\0" in location:
        raise UsageError("archives must be given by a path", got=location, remedy="Give a path, as shard-{0..9}.tar.")
    found: list[Path] = []
    for part in location.split(SEPARATOR):
        for path in _one(part, endings):
            found.append(path)
            if len(found) > _MOST_FILES:
                raise UsageError(f"there may be at most {_MOST_FILES:,} archives", got=location)
    for path in found:
        if not path.is_file():
            what = "which is no file" if path.exists() else "which does not exist"
            raise UsageError("each archive must be a file", got=f"{path}, {what}", remedy="Check the path.")
    if len({path.resolve() for path in found}) < len(found):
        raise UsageError("each archive may be given once", got=location, remedy="Remove the repeated file.")
    return tuple(found)


def _one(part: str, endings: tuple[str, ...]) -> Iterator[Path]:
    if os.path.isdir(part):
        names = sorted(name for name in os.listdir(part) if name.lower().endswith(endings) and name[0] != ".")
        if not names:
            raise UsageError(
                "the folder must hold archives",
                got=f"{part}, without any file ending in {', '.join(endings)}",
                remedy="Check the path.",
            )
        yield from (Path(part) / name for name in names)
    elif os.path.lexists(part):
        # A file may well have a brace or a star in its name.
        yield Path(part)
    else:
        try:
            patterns = braceexpand.braceexpand(part)
            for pattern in patterns:
                yield from _matches(pattern)
        except ValueError as error:
            raise UsageError(
                "braces must be balanced", got=f"{part}: {error}", remedy="Write for example shard-{000..009}.tar."
            ) from error


def _matches(pattern: str) -> Iterator[Path]:
    if not glob.has_magic(pattern) or os.path.lexists(pattern):
        yield Path(pattern)
        return
    names = sorted(glob.glob(pattern))
    if not names:
        raise UsageError("a pattern must match at least one file", got=pattern, remedy="Check the path.")
    yield from map(Path, names)


def compression(path: Path) -> str:
    """ "plain", "gz", "bz2" or "zst", by the file's first bytes. Raises UsageError where it cannot be read."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise UsageError("each archive must be readable", got=f"{path}: {error.strerror}") from error
    for magic, name in _MAGIC.items():
        if start.startswith(magic) or (name == "zst" and magic[1:] == start[1:] and 0x50 <= start[0] <= 0x5F):
            return name
    return "plain"


class _Unpacking:
    """A decompressor's output as a Stream."""

    def __init__(self, file: IO[bytes], broken: tuple[type[Exception], ...]) -> None:
        self._file = file
        self._broken = broken
        self.position = 0

    def read(self, size: int) -> bytes:
        pieces = []
        while size > 0:
            try:
                piece = self._file.read(min(size, _CHUNK))
            except self._broken as error:
                raise ArchiveCutError(f"its compressed data is damaged or cut short ({error})") from error
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
        data = b"".join(pieces)
        self.position += len(data)
        return data

    def skip(self, size: int) -> int:
        passed = 0
        while passed < size and (piece := self.read(min(_CHUNK, size - passed))):
            passed += len(piece)
        return passed


@contextmanager
def open_stream(path: Path) -> Iterator[Stream]:
    """A tar's bytes, decompressed on their way in bounded memory."""
    kind = compression(path)
    with open(path, "rb") as file:
        if kind == "plain":
            yield PlainStream(file)
        elif kind == "gz":
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield _Unpacking(unpacked, _BROKEN)  # type: ignore[arg-type]
        elif kind == "bz2":
            with bz2.BZ2File(file) as unpacked_bz2:
                yield _Unpacking(unpacked_bz2, _BROKEN)
        else:
            with _open_zst(file) as (unpacked_zst, broken):
                yield _Unpacking(unpacked_zst, (*_BROKEN, broken))


@contextmanager
def _open_zst(file: IO[bytes]) -> Iterator[tuple[Any, type[Exception]]]:
    try:
        from compression import zstd  # type: ignore[import-not-found]  # Python 3.14
    except ModuleNotFoundError:
        import zstandard

        decompressor = zstandard.ZstdDecompressor()
        with decompressor.stream_reader(file, read_across_frames=True, closefd=False) as reader:
            yield WholeFrames(file, reader), zstandard.ZstdError
        return
    with zstd.ZstdFile(file) as unpacked:
        yield unpacked, zstd.ZstdError
