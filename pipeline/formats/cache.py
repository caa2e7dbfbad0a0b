"""A bounded folder of downloaded files, shared by all processes and ranks of a machine."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import ConfigError, ResourceError

__all__ = ["DiskCache", "default_directory"]

MOST_BYTES = 100 * 10**9
"""Of a cache whose size nobody gave; less where that is more than four fifths of what the disk has for it."""

_LOCKS = "locks"
_PART = ".part"


def default_directory() -> Path:
    """$XDG_CACHE_HOME/wellfed, else ~/.cache/wellfed."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wellfed"


class DiskCache:
    """Files in folders of a cache, the least recently used of which make room for new ones.

    A file appears whole, by a rename. Before it is downloaded its room is taken, under a lock over the cache, so the
    files and what is being downloaded never exceed the bound together; only where nothing can go does a reader exceed
    it, by the file that it needs. One process downloads a file; others that need it wait. A killed one's locks end
    with it, and what it left is removed.

    Threads and processes: any, also of several programs. Pickling: its settings.

    Args:
        directory: made where it is missing.
        limit: bytes; None for the default, see MOST_BYTES.

    Raises:
        ConfigError: a limit that is no whole number from 1 on.
        ResourceError: the folder cannot be made or written.
    """

    def __init__(self, directory: Path, limit: int | None) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ConfigError("cache_bytes is a whole number from 1 on", got=limit, remedy="Leave it out, or give one.")
        self.directory = Path(os.path.abspath(directory))
        try:
            (self.directory / _LOCKS).mkdir(parents=True, exist_ok=True)
            if limit is None:
                held = sum(status.st_size for _, status in self._files())
                limit = max(1, min(MOST_BYTES, (shutil.disk_usage(self.directory).free + held) * 4 // 5))
        except OSError as error:
            raise self._unusable(error) from error
        self.limit = limit

    def ensure(self, path: Path, size: int, write: Callable[[IO[bytes]], None]) -> None:
        """Have a file of this size at a path in a folder of the cache.

        Args:
            write: fills an open file with the contents; what it raises passes through, and nothing is left.

        Raises:
            ResourceError: the disk is full.
        """
        if _has(path, size):
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self._lock_of(path)):
                if _has(path, size):
                    return
                part = path.with_name(path.name + _PART)
                try:
                    with self._room(part, path.parent, size) as file:
                        write(file)
                    os.replace(part, path)
                finally:
                    part.unlink(missing_ok=True)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOTDIR):
                raise
            raise self._unusable(error) from error

    @contextmanager
    def _room(self, part: Path, own: Path, size: int) -> Iterator[IO[bytes]]:
        with _locked(self.directory / _LOCKS / "all"):
            self._make_room(size, own)
            file = open(part, "wb")  # noqa: SIM115 - closed below, after the lock
            # Its whole length at once, so that others count it.
            file.truncate(size)
        with file:
            yield file

    def _make_room(self, size: int, own: Path) -> None:
        # Indexes and names last: they are small, and in use as long as their dataset is open.
        files = sorted(self._files(), key=lambda found: (found[0].suffix != ".tar", found[1].st_mtime_ns, found[0]))
        held = sum(status.st_size for _, status in files)
        for path, status in files:
            if path.suffix == _PART:
                removed = self._remove_abandoned(path)
            elif held + size <= self.limit or (path.parent == own and path.suffix != ".tar"):
                # Those of the dataset that is being read stay.
                continue
            else:
                path.unlink(missing_ok=True)
                removed = True
            held -= status.st_size if removed else 0

    def _remove_abandoned(self, part: Path) -> bool:
        with open(self._lock_of(part.with_name(part.name[: -len(_PART)])), "wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            part.unlink(missing_ok=True)
            fcntl.flock(lock, fcntl.LOCK_UN)
        return True

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for folder in self.directory.iterdir():
            if folder.name == _LOCKS or not folder.is_dir():
                continue
            for path in folder.iterdir():
                try:
                    yield path, path.stat()
                except FileNotFoundError:
                    continue  # another process has just removed or renamed it

    def _lock_of(self, path: Path) -> Path:
        # A fixed number, so that they need not be removed, which no two processes can do safely.
        name = f"{path.parent.name}/{path.name}".encode()
        return self.directory / _LOCKS / f"{hashlib.sha256(name).digest()[0]:02x}"

    def _unusable(self, error: OSError) -> ResourceError:
        return ResourceError(
            f"the cache {str(self.directory)!r} must have a disk with room that can be written",
            got=str(error),
            remedy="Give another cache_dir=, or a smaller cache_bytes=.",
        )


def _has(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Said, not left to closing: a process that was forked meanwhile has this file open, too.
            fcntl.flock(lock, fcntl.LOCK_UN)
