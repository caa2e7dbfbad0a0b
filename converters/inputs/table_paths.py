"""Where the paths of a table lead: below its root, or to a URL of their own."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from enum import IntEnum
from typing import NamedTuple
from urllib.parse import quote, unquote

from wellfed.pipeline.errors import SampleRejectedError

from .stores import Facts, protocol_of, without_query

_ODD = re.compile(rb"\A/|/\Z|//|(\A|/)\.\.?(/|\Z)")
"""Paths that must be brought to their plain form before they can be judged."""


class Where(IntEnum):
    """Where a row's image lies."""

    INSIDE = 0
    """In the row itself."""
    BELOW_ROOT = 1
    """At the row's name, below a local root."""
    AT_URL = 2
    """At a URL that the row's name, and the root, tell."""
    AT_ROWS_URL = 3
    """At a URL that only the row tells: it has a query, which must not be published."""


class Place(NamedTuple):
    """Where an image lies.

    Attributes:
        name: what the sample is called, as far as it may be published.
        path: local path, or None.
        url: or None.
    """

    where: Where
    name: bytes
    path: bytes | None
    url: str | None


class Paths:
    """Resolves what a table says; `..` and absolute paths must stay below the root.

    Args:
        root: a local folder or a URL.
    """

    def __init__(self, root: str) -> None:
        self._is_remote = protocol_of(root) is not None
        self.root = root if self._is_remote else os.path.abspath(root)
        self._prefix = os.fsencode(self.root).rstrip(b"/") + b"/"

    def resolve(self, text: str, *, latin1: bool = False) -> Place:
        """The place that a cell names.

        Args:
            latin1: the table is in Latin-1, so names may also be those bytes.

        Raises:
            SampleRejectedError: it lies outside the root, or is no path.
        """
        is_url = "://" in text
        if is_url and text.lower().startswith(("file://", "local://")):
            text, is_url = unquote(text.partition("://")[2]), False
        if "\0" in text:
            raise SampleRejectedError("the path must not hold a zero byte")
        if is_url and protocol_of(text) is not None:
            public = without_query(text)
            return Place(Where.AT_URL if public == text else Where.AT_ROWS_URL, _encoded(public), None, text)
        if self._is_remote:
            return Place(Where.AT_URL, _encoded(text), None, self._url(text))
        name = _encoded(text)
        if latin1 and not os.path.lexists(self._below(name)):
            raw = text.encode("latin-1")
            name = raw if os.path.lexists(self._below(raw)) else name
        path = self._below(name)
        if os.path.isabs(name):
            name = path[len(self._prefix) :]
        return Place(Where.BELOW_ROOT, name, path, None)

    def again(self, where: Where, name: bytes) -> Place:
        """The place of a row that `resolve` found below the root or at a URL."""
        if where is Where.BELOW_ROOT:
            return Place(where, name, self._below(name), None)
        text = name.decode("utf-8")
        return Place(where, name, None, text if protocol_of(text) is not None else self._url(text))

    def _below(self, name: bytes) -> bytes:
        if name and not _ODD.search(name):
            return self._prefix + name
        path = os.path.normpath(os.path.join(self._prefix, name))
        if not path.startswith(self._prefix):
            raise SampleRejectedError("the path must lie below the table's root", got="a path outside it")
        return path

    def _url(self, text: str) -> str:
        path = posixpath.normpath(text)
        if posixpath.isabs(path) or path == ".." or path.startswith("../"):
            raise SampleRejectedError("the path must lie below the table's root", got="a path outside it")
        web = protocol_of(self.root) in ("http", "https")
        return f"{self.root.rstrip('/')}/{quote(path) if web else path}"


def local_facts(path: bytes) -> Facts:
    """Size and modification time of a file, or why it cannot be a sample."""
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return Facts(0, 0, "symbolic link loop")
        if os.path.islink(path):
            return Facts(0, 0, "broken symbolic link")
        return Facts(0, 0, f"unreadable: {(error.strerror or str(error)).lower()}")
    reason = None
    if not stat.S_ISREG(status.st_mode):
        reason = "not a regular file"
    elif not os.access(path, os.R_OK):
        reason = "unreadable: permission denied"
    elif status.st_size == 0:
        reason = "zero bytes"
    return Facts(status.st_size, status.st_mtime_ns, reason)


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SampleRejectedError("the path must be text") from error
