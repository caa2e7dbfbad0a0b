"""Files in object stores and behind URLs, through fsspec: their sizes, their bytes, and errors without secrets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import IO, Any, NamedTuple

from wellfed.pipeline.errors import MissingDependencyError, SampleRejectedError, UsageError
from wellfed.pipeline.formats.perprocess import PerProcess
from wellfed.pipeline.formats.urls import kind_of_error, open_store, protocol_of, without_query

__all__ = [
    "CHANGED",
    "Facts",
    "Stores",
    "facts_of",
    "in_parts",
    "location_errors",
    "protocol_of",
    "sample_errors",
    "without_query",
]

CHANGED = "the object must not change between planning and reading"

_AT_ONCE = 16
_MARKS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime", "created")


class Facts(NamedTuple):
    """What is known of an object without reading it.

    Attributes:
        size: bytes; 0 where the store does not say.
        stamp: changes when the object is written again, where the store says; below 2**63.
        reason: why it cannot be read, or None.
    """

    size: int
    stamp: int
    reason: str | None


class Stores:
    """Filesystems by protocol, made once in each process: those of object stores must not be used after a fork."""

    def __init__(self) -> None:
        self._systems: PerProcess[dict[str, Any]] = PerProcess(dict)

    def system(self, url: str) -> Any:
        """The fsspec filesystem of a URL.

        Raises:
            MissingDependencyError: the library for the protocol is not installed.
            UsageError: no such protocol is known, the URL is a chain of several, or the store's settings are wrong.
        """
        protocol = protocol_of(url)
        if protocol is None or "::" in url:
            raise UsageError(
                "a URL must be one of a single store", got=without_query(url), remedy="Give one such as s3://bucket/x."
            )
        systems = self._systems.get()
        if protocol not in systems:
            systems[protocol] = open_store(protocol)
        return systems[protocol]

    def fetch(self, url: str, *, size: int, stamp: int) -> bytes:
        """All bytes of an object, which must be as it was listed.

        Args:
            size, stamp: as `facts` gave them.

        Raises:
            SampleRejectedError: it cannot be read, or changed.
        """
        system = self._system_of_sample(url)
        with sample_errors():
            data: bytes = system.cat_file(url)
        # After reading: a change before or during it shows here.
        now = self._facts(system, url)
        if now.reason is not None:
            raise SampleRejectedError(now.reason)
        if (size and len(data) != size) or now.size != size or now.stamp != stamp:
            raise SampleRejectedError(CHANGED)
        if not data:
            raise SampleRejectedError("zero bytes")
        return data

    def facts(self, urls: list[str]) -> list[Facts]:
        """Size and stamp of each object, asked for several at once; what cannot be had becomes a reason."""
        if not urls:
            return []
        with ThreadPoolExecutor(min(_AT_ONCE, len(urls))) as pool:
            return list(pool.map(self._facts_of, urls))

    def _facts_of(self, url: str) -> Facts:
        try:
            return self._facts(self._system_of_sample(url), url)
        except SampleRejectedError as error:
            return Facts(0, 0, error.rule)

    def _facts(self, system: Any, url: str) -> Facts:
        try:
            with sample_errors():
                info = system.info(url)
        except SampleRejectedError as error:
            return Facts(0, 0, f"{error.rule}; got {error.got}")
        return facts_of(info)

    def _system_of_sample(self, url: str) -> Any:
        try:
            return self.system(url)
        except MissingDependencyError:
            raise
        except UsageError as error:
            raise SampleRejectedError(error.rule) from error

    def open(self, url: str) -> IO[bytes]:
        """A seekable file that reads ahead. Raises UsageError where it cannot be opened."""
        with location_errors(url):
            file: IO[bytes] = self.system(url).open(url, "rb")
            return file


def facts_of(info: dict[str, Any]) -> Facts:
    """What fsspec says of a path, as `Facts`."""
    if info.get("type") == "directory":
        return Facts(0, 0, "not a regular file")
    size = info.get("size")
    mark = next((str(info[key]) for key in _MARKS if info.get(key) is not None), "")
    stamp = int.from_bytes(hashlib.sha256(mark.encode()).digest()[:7], "big") if mark else 0
    return Facts(int(size or 0), stamp, "zero bytes" if size == 0 else None)


@contextmanager
def sample_errors(what: str = "the object") -> Iterator[None]:
    """What a store raises for one object, as SampleRejectedError, in words without the URL, which may hold secrets."""
    try:
        yield
    except (MissingDependencyError, SampleRejectedError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise SampleRejectedError(f"{what} must be readable", got="no such object") from error
    except PermissionError as error:
        raise SampleRejectedError(f"{what} must be readable", got="access denied") from error
    # Each store's library raises its own kinds, below no common one.
    except Exception as error:
        raise SampleRejectedError(f"{what} must be readable", got=kind_of_error(error)) from error


@contextmanager
def location_errors(url: str) -> Iterator[None]:
    """What a store raises for the source itself, as UsageError."""
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except Exception as error:
        what = "no such object" if isinstance(error, FileNotFoundError) else kind_of_error(error)
        raise UsageError(
            f"{without_query(url)!r} must be readable",
            got=what,
            remedy="Check the address, the endpoint and the credentials in the environment.",
        ) from error


def in_parts(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of at most `size` items."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part
