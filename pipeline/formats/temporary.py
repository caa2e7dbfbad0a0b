"""A folder for temporary files: gone with its process, and at the latest with the next one after a kill."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

__all__ = ["TemporaryFolder"]


class TemporaryFolder:
    """A new folder in the system's folder for temporary files (`TMPDIR`).

    Removed by `close`, when this object goes, or when the process exits. A process that is killed leaves it: the next
    one to make such a folder removes it. The lock on a folder ends with its process, so a folder whose lock can be
    had belongs to nobody, whatever process numbers mean in this container.

    Args:
        prefix: of its name, by which those that were left are found.

    Attributes:
        path: the folder.

    Raises:
        OSError: there is no place for it.
    """

    def __init__(self, prefix: str) -> None:
        _sweep(Path(tempfile.gettempdir()), prefix)
        self.path, lock = _locked_folder(prefix)
        self._finalizer: Any = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove the folder and all in it; may be called again."""
        self._finalizer()


def _locked_folder(prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
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


def _sweep(parent: Path, prefix: str) -> None:
    """Remove what killed processes of this user left."""
    with os.scandir(parent) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(prefix) and _is_own_folder(entry)]
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
