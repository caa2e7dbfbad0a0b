"""Folders for what listing spools to disk: gone with the process, and at the latest with the next one after a kill."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wellfed.pipeline.errors import ResourceError

_PREFIX = "wellfed-spool-"


class TemporaryFolder:
    """A new folder in the system's folder for temporary files (`TMPDIR`).

    Removed by `close`, when this object goes, or when the process exits. A process that is killed leaves it: the next
    one to make such a folder removes it. The lock on a folder ends with its process, so a folder whose lock can be
    had belongs to nobody, whatever process numbers mean in this container.

    Attributes:
        path: the folder.

    Raises:
        ResourceError: there is no place for it.
    """

    def __init__(self) -> None:
        with spool_errors():
            _sweep(Path(tempfile.gettempdir()))
            self.path, lock = _locked_folder()
        self._finalizer: Any = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove the folder and all in it; may be called again."""
        self._finalizer()


@contextmanager
def spool_errors() -> Iterator[None]:
    """Turn an OSError of the folder for temporary files into a ResourceError that names that folder."""
    try:
        yield
    except OSError as error:
        raise spool_error(error) from error


def spool_error(error: OSError) -> ResourceError:
    """What `spool_errors` raises."""
    try:
        where = tempfile.gettempdir()
    except FileNotFoundError:
        where = "TMPDIR, /tmp or /var/tmp"
    return ResourceError(
        f"the folder for temporary files, {where}, must hold the listing of the source",
        got=error.strerror or str(error),
        remedy="Make room there, or let TMPDIR name a folder on another disk; nothing was written elsewhere.",
    )


def _locked_folder() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # swept away by another process before it was opened
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have swept it away before it was locked.
            if path.exists():
                return path, lock
        except BlockingIOError:
            pass  # being swept at this moment
        except OSError:
            # A file system without locks: nobody can lock it, so nobody sweeps it either.
            return path, lock
        os.close(lock)


def _sweep(parent: Path) -> None:
    """Remove what killed processes of this user left."""
    with os.scandir(parent) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(_PREFIX) and _is_own_folder(entry)]
    for path in left:
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its owner, or another sweeper, was faster
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)  # in use, or no locks there: it is not ours to remove
            continue
        _remove(Path(path), lock)


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except FileNotFoundError:
        return False  # removed since it was listed


def _remove(path: Path, lock: int) -> None:
    # What cannot be removed now is swept by a later process; an exit must not fail for it.
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
