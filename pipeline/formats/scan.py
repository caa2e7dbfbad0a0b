"""Find the files of a folder of class folders, in an order that depends on their names alone."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import UsageError
from .manifest import class_names_digest
from .names import Names

_LAYOUT = "Arrange the images as ROOT/CLASS/IMAGE, one folder for each class, and give ROOT."


@dataclass(frozen=True, kw_only=True)
class FolderScan:
    """What a folder of class folders holds; row r is planned number r, rejected entries included.

    Attributes:
        root: the folder.
        class_names: first-level folders, sorted as text (so that "10" comes before "2"), empty ones included.
        names: relative paths (class folder included), one after another, exactly as bytes.
        offsets: u8, shape (n + 1,): name r is names[offsets[r]:offsets[r + 1]].
        labels: i8, shape (n,): positions in class_names.
        sizes: u8, shape (n,): bytes; 0 where the entry could not be read.
        mtimes_ns: i8, shape (n,): modification times, nanoseconds; 0 where the entry could not be read.
        reasons: rows that cannot be samples, with the reason.
        skipped: entries left out on purpose, counted by kind; a skipped folder counts once.
        notes: counted remarks ("empty_class").
    """

    root: Path
    class_names: tuple[str, ...]
    names: bytes
    offsets: np.ndarray
    labels: np.ndarray
    sizes: np.ndarray
    mtimes_ns: np.ndarray
    reasons: Mapping[int, str]
    skipped: Mapping[str, int]
    notes: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.labels)

    def name_bytes(self, row: int) -> bytes:
        """The relative path of a row."""
        return Names(self.names, self.offsets).bytes_at(row)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 hex digest over names, sizes and classes; modification times don't count, so a copy is equal."""
        digest = hashlib.sha256(class_names_digest(self.class_names))
        digest.update(hashlib.sha256(self.names).digest())
        for column in (self.offsets, self.labels, self.sizes):
            digest.update(hashlib.sha256(column.tobytes()).digest())
        return digest.hexdigest()


class Entry(NamedTuple):
    """A file found: path relative to the root, bytes, modification time, and why it cannot be a sample."""

    path: bytes
    size: int
    mtime_ns: int
    reason: str | None


class FolderWalk:
    """A walk of a folder of class folders, for callers that keep the entries themselves; see `scan_folder`.

    Attributes:
        class_names: as in `FolderScan`.
        skipped, notes: complete once `entries` is exhausted.

    Raises:
        UsageError: the root is missing, not a folder or unreadable.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._top = root, os.fsencode(root)
        self._listed = _list_root(root, self._top)
        self.skipped: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self._classes: list[tuple[str, bytes]] = []
        for name in self._listed:
            if kind := _skip_kind(name):
                self.skipped[kind] += 1
            elif _is_no_folder(os.path.join(self._top, name)):
                self.skipped["outside_class_folders"] += 1
            else:
                self._classes.append((name.decode("utf-8", "surrogateescape"), name))
        self._classes.sort()
        self.class_names = tuple(text for text, _ in self._classes)

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """Label and entry of every file, in planned order. Raises UsageError at its end where there was none."""
        above = frozenset({_identity(os.stat(self._top))})
        total = 0
        for label, (_, folder) in enumerate(self._classes):
            found = 0
            for entry in _walk(self._top, folder, above, self.skipped):
                found += 1
                yield label, entry
            if not found:
                self.notes["empty_class"] += 1
            total += found
        if not total:
            raise _nothing_found(self._root, self._listed, self._classes, self.skipped)


def walk_files(root: Path, skipped: Counter[str]) -> Iterator[Entry]:
    """Every file below a folder, in the order of the relative paths' bytes, by the rules of `scan_folder`.

    Args:
        skipped: entries left out are counted here.

    Raises:
        UsageError: the root is missing, not a folder or unreadable.
    """
    top = os.fsencode(root)
    _list_root(root, top)
    yield from _walk(top, b"", frozenset(), skipped)


def scan_folder(root: Path) -> FolderScan:
    """Walk a folder of class folders.

    A class is a first-level folder (or a link to one); files below it, however deep, belong to it. Every file is a
    candidate: its content decides later whether it is an image. Links are followed. A link that leads nowhere or to
    a folder above itself, a file or folder that cannot be read, an empty file and anything that is neither file nor
    folder become rejected rows. A first-level entry of that kind keeps its name as a class, so that a disk that is
    not mounted never shifts labels.

    Raises:
        UsageError: the root is missing, not a folder, unreadable or empty, or no class folder holds a file.
    """
    walk = FolderWalk(root)
    names, offsets, labels = bytearray(), array("Q", [0]), array("q")
    sizes, mtimes, reasons = array("Q"), array("q"), {}
    for label, entry in walk.entries():
        if entry.reason is not None:
            reasons[len(labels)] = entry.reason
        names += entry.path
        offsets.append(len(names))
        labels.append(label)
        sizes.append(entry.size)
        mtimes.append(entry.mtime_ns)
    return FolderScan(
        root=Path(root),
        class_names=walk.class_names,
        names=bytes(names),
        offsets=np.array(offsets, dtype="<u8"),
        labels=np.array(labels, dtype="<i8"),
        sizes=np.array(sizes, dtype="<u8"),
        mtimes_ns=np.array(mtimes, dtype="<i8"),
        reasons=reasons,
        skipped=dict(sorted(walk.skipped.items())),
        notes=dict(sorted(walk.notes.items())),
    )


def _list_root(root: Path, top: bytes) -> list[bytes]:
    try:
        return sorted(os.listdir(top))
    except FileNotFoundError as error:
        raise UsageError("the folder must exist", got=str(root), remedy="Check the path.") from error
    except NotADirectoryError as error:
        raise UsageError("the path must be a folder, not a file", got=str(root), remedy=_LAYOUT) from error
    except (OSError, ValueError) as error:
        raise UsageError("the folder must be readable", got=f"{root}: {error}", remedy="Check the path.") from error


def _nothing_found(
    root: Path, entries: list[bytes], classes: list[tuple[str, bytes]], skipped: Counter[str]
) -> UsageError:
    if not entries:
        return UsageError("the folder must hold images", got=f"{root}, which is empty", remedy=_LAYOUT)
    if outside := skipped["outside_class_folders"]:
        return UsageError(
            "images must lie in class folders",
            got=f"{root}, with {outside} files directly in it and none in {len(classes)} folders",
            remedy=_LAYOUT,
        )
    left_out = sum(skipped.values())
    return UsageError(
        "the folder must hold images",
        got=f"{root}, with {len(classes)} class folders and no files in them ({left_out} hidden entries skipped)",
        remedy=_LAYOUT,
    )


_SKIPPED_START = (b".", b"T", b"t", b"D", b"d", b"_")


def _skip_kind(name: bytes) -> str | None:
    if name[:1] not in _SKIPPED_START:
        return None  # nearly every name, and listing millions is felt
    lower = name.lower()
    if lower.startswith(b"._"):
        return "apple_double"
    if lower.startswith(b"."):
        return "hidden"
    if lower.startswith(b"thumbs.db"):
        return "thumbs_db"
    if lower == b"desktop.ini":
        return "desktop_ini"
    if lower == b"__macosx":
        return "macosx"
    return None


def _is_no_folder(path: bytes) -> bool:
    """Whether the path certainly is no class folder; one that cannot be looked at may be."""
    return os.path.exists(path) and not os.path.isdir(path)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _walk(top: bytes, folder: bytes, above: frozenset[tuple[int, int]], skipped: Counter[str]) -> Iterator[Entry]:
    """All entries below one folder, in the order of their paths' bytes; holds one listing for each level."""
    levels: list[tuple[bytes, bytes, list[bytes], frozenset[tuple[int, int]]]] = []
    pending: tuple[bytes, bytes, frozenset[tuple[int, int]]] | None = (folder, os.path.join(top, folder), above)
    while True:
        if pending is None:
            while levels and not levels[-1][2]:
                levels.pop()
            if not levels:
                return
            prefix, full_prefix, names, parents = levels[-1]
            name = names.pop()
            pending = (prefix + name, full_prefix + name, parents)
        path, full, parents = pending
        pending = None
        try:
            status = os.stat(full)
        except OSError as error:
            yield Entry(path, 0, 0, _reason(full, error))
            continue
        if not stat.S_ISDIR(status.st_mode):
            yield _file_entry(path, full, status)
        elif _identity(status) in parents:
            yield Entry(path, 0, 0, "symbolic link loop")
        else:
            try:
                children = _children(full, skipped)
            except OSError as error:
                yield Entry(path, 0, 0, _reason(full, error))
                continue
            levels.append(
                (path + b"/" if path else b"", os.path.join(full, b""), children, parents | {_identity(status)})
            )


def _children(full: bytes, skipped: Counter[str]) -> list[bytes]:
    """Names in a folder, the last one first, a folder's where its files' paths belong: as if it ended in a slash."""
    names = []
    with os.scandir(full) as listed:
        for entry in listed:
            if kind := _skip_kind(entry.name):
                skipped[kind] += 1
                continue
            try:
                is_folder = entry.is_dir()
            except OSError:
                is_folder = False  # what is wrong with it is found, and said, when its turn comes
            names.append(entry.name + b"/" if is_folder else entry.name)
    names.sort(reverse=True)
    return [name.rstrip(b"/") for name in names]


def _file_entry(path: bytes, full: bytes, status: os.stat_result) -> Entry:
    reason = None
    if not stat.S_ISREG(status.st_mode):
        reason = "not a regular file"
    elif not os.access(full, os.R_OK):
        reason = "unreadable: permission denied"
    elif status.st_size == 0:
        reason = "zero bytes"
    return Entry(path, status.st_size, status.st_mtime_ns, reason)


def _reason(full: bytes, error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "symbolic link loop"
    if error.errno == errno.ENOENT and os.path.islink(full):
        return "broken symbolic link"
    return f"unreadable: {(error.strerror or str(error)).lower()}"
