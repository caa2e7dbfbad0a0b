"""Small files written whole or not at all, and what a full disk raises."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from wellfed.pipeline.errors import ResourceError, UsageError, WellfedError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""A full disk, a used up quota, a file that may not grow this large."""
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG}


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn what the destination's disk raises into an error that a user can act on.

    Raises:
        ResourceError: the disk is full, a quota is used up or files may not grow this large.
        UsageError: nothing can be written there.
        WellfedError: anything else, with the system's words.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise out_of_space(where, os.strerror(error.errno)) from error
        if error.errno in _REFUSED:
            raise UsageError(
                f"the destination {str(where)!r} must be writable", got=str(error), remedy="Give another path."
            ) from error
        raise WellfedError(
            f"the destination {str(where)!r} must keep working", got=str(error), remedy="Check the disk, and run again."
        ) from error


def out_of_space(where: Path, what: str) -> ResourceError:
    """The error of a disk that filled up while writing to a destination."""
    return ResourceError(
        f"the disk of {str(where)!r} must hold the whole dataset",
        got=what,
        remedy="Make room and run the same command again: it continues from the shards that are finished.",
    )


def write_file(path: Path, data: bytes) -> str:
    """Write a file through a temporary one, synced; returns its SHA-256."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return hashlib.sha256(data).hexdigest()


def join_files(parts: Iterable[Path], path: Path) -> str:
    """Write files one after another into one, synced; returns its SHA-256."""
    with open(path, "wb") as file:
        for part in parts:
            with open(part, "rb") as piece:
                shutil.copyfileobj(piece, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
    return sha256_of(path)


def sha256_of(path: Path) -> str:
    """SHA-256 of a whole file, hex."""
    # Not a memory map, though it is faster: a file cut meanwhile, or a bad disk, would kill the process under it.
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class IndexWriter:
    """Writes an .npy file of a known number of rows, part after part, through ordinary writes.

    Not a memory map: a disk that fills up under one kills the process. Synced at the end of the block.
    """

    def __init__(self, path: Path, dtype: np.dtype, rows: int) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def add(self, rows: np.ndarray) -> None:
        """Append rows of the file's dtype."""
        self._file.write(np.ascontiguousarray(rows).tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
