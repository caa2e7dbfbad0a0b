"""Files in object stores and behind URLs, through fsspec: their sizes, their bytes, and errors without secrets."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import IO, Any, NamedTuple

from wellfed.pipeline.errors import MissingDependencyError, SampleRejectedError, UsageError
from wellfed.pipeline.formats.perprocess import PerProcess

CHANGED = "the object must not change between planning and reading"

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_LOCAL = {"file", "local"}
_INSTALL = {"s3": "s3", "s3a": "s3"}
_MODULES = {"s3": "s3fs", "s3a": "s3fs"}
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


def protocol_of(text: str) -> str | None:
    """The protocol of a URL in lower case; None for anything that is no URL, or a local one."""
    found = _URL.match(text)
    protocol = found[1].lower() if found else None
    return None if protocol in _LOCAL else protocol


def without_query(url: str) -> str:
    """The URL as it may be published: without user, query and fragment, which hold the secrets of signed URLs."""
    head, _, rest = url.partition("://")
    if protocol_of(url) not in ("http", "https"):
        # A question mark or hash may be part of an object's name elsewhere.
        return url
    host, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{head}://{host.rpartition('@')[2]}{slash}{path}"


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
            systems[protocol] = _open(protocol)
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
        raise SampleRejectedError(f"{what} must be readable", got=_kind_of(error)) from error


@contextmanager
def location_errors(url: str) -> Iterator[None]:
    """What a store raises for the source itself, as UsageError."""
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except Exception as error:
        what = "no such object" if isinstance(error, FileNotFoundError) else _kind_of(error)
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


def _kind_of(error: Exception) -> str:
    """The kind of an error, and its system or HTTP code; never its text."""
    code = getattr(error, "status", None) or getattr(error, "errno", None)
    return f"{type(error).__name__}" + (f" {code}" if isinstance(code, int) else "")


def _open(protocol: str) -> Any:
    filesystem: Callable[..., Any] = importlib.import_module("fsspec").filesystem
    try:
        # A cached directory listing would hide what changed since.
        return filesystem(protocol, use_listings_cache=False)
    except ImportError as error:
        extra = _INSTALL.get(protocol)
        raise MissingDependencyError(
            f"reading {protocol}:// needs {_MODULES.get(protocol, 'another library')}",
            got=str(error),
            remedy=f"Run: pip install 'wellfed[{extra}]'" if extra else "Install what the message names.",
        ) from error
    except Exception as error:
        raise UsageError(
            f"{protocol}:// must be a store that fsspec can open", got=_kind_of(error), remedy="Check the address."
        ) from error
