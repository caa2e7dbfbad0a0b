"""Downloads that are tried again, continued where they broke off, and checked on arrival."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, TypeVar

from ..errors import DamagedDatasetError, MissingDependencyError, RemoteError, UsageError, WellfedError
from .perprocess import PerProcess
from .urls import kind_of_error, open_store, protocol_of, without_query

__all__ = ["Remote", "Retry", "Stopped"]

_PIECE = 8 << 20

T = TypeVar("T")


class Stopped(Exception):  # noqa: N818 (no error: whoever stopped it knows)
    """A download was given up because nobody waits for it any more."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often a request is made, and how long to wait before the next: doubled each time.

    Attributes:
        attempts: requests at most.
        first_delay: seconds before the second.
        sleep: waits so many seconds.
    """

    attempts: int = 5
    first_delay: float = 0.5
    sleep: Callable[[float], None] = time.sleep


class Remote:
    """The objects below a prefix of a store.

    Threads: any. Pickling: the address alone; each process opens the store for itself, as none outlives a fork.

    Args:
        location: URL of the prefix.
    """

    def __init__(self, location: str, retry: Retry | None = None) -> None:
        self.location = location.rstrip("/")
        self._retry = retry or Retry()
        self._system: PerProcess[dict[str, Any]] = PerProcess(dict)

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["location"])  # type: ignore[misc]

    def url(self, name: str) -> str:
        """The address of an object."""
        return f"{self.location}/{name}"

    def read(self, name: str) -> bytes:
        """A small object, whole.

        Raises:
            FileNotFoundError: there is none.
            RemoteError: the store does not answer.
            UsageError: it refuses, or as `open_store`.
            MissingDependencyError: as `open_store`.
        """
        data: bytes = self._again(name, lambda: self._store().cat_file(self.url(name)))
        return data

    def size(self, name: str) -> int:
        """Bytes of an object; raises as `read`."""
        return int(self._again(name, lambda: self._store().info(self.url(name)))["size"])

    def part(self, name: str, start: int, size: int) -> bytes:
        """`size` bytes from `start`; raises as `read`, and RemoteError where the server gives others."""
        return self._again(name, lambda: self._piece(name, start, size)) if size else b""

    def download(self, name: str, file: IO[bytes], *, size: int, sha256: str, stopped: Callable[[], bool]) -> None:
        """Write an object into a file, from its start.

        Args:
            size, sha256: what it must be.
            stopped: asked between pieces.

        Raises:
            DamagedDatasetError: other bytes came, twice.
            Stopped: `stopped` said so.
            FileNotFoundError, RemoteError: as `read`.
        """
        for _ in range(2):
            file.seek(0)
            digest = hashlib.sha256()
            for start in range(0, size, _PIECE):
                if stopped():
                    raise Stopped
                data = self.part(name, start, min(_PIECE, size - start))
                digest.update(data)
                file.write(data)
            if digest.hexdigest() == sha256:
                file.flush()
                return
        raise DamagedDatasetError(
            f"{without_query(self.url(name))!r} must have the SHA-256 of the dataset's manifest",
            got=f"{digest.hexdigest()} instead of {sha256}",
            remedy="Copy the dataset to the store again, its wellfed.json last.",
        )

    def _piece(self, name: str, start: int, size: int) -> bytes:
        data: bytes = self._store().cat_file(self.url(name), start=start, end=start + size)
        if len(data) > size:
            raise RemoteError(
                f"{without_query(self.url(name))!r} must be readable in parts",
                got=f"{len(data)} bytes where {size} were asked for",
                remedy="Serve the dataset by a server that answers range requests, or copy it to a local disk.",
            )
        if len(data) != size:
            raise OSError(f"{len(data)} bytes came where {size} were asked for")
        return data

    def _store(self) -> Any:
        systems = self._system.get()
        if not systems:
            systems["store"] = open_store(protocol_of(self.location) or "file")
        return systems["store"]

    def _again(self, name: str, ask: Callable[[], T]) -> T:
        delay = self._retry.first_delay
        for attempt in range(1, self._retry.attempts + 1):
            try:
                return ask()
            except (FileNotFoundError, MissingDependencyError, MemoryError):
                raise
            # Each store's library raises its own kinds, below no common one.
            except Exception as error:
                if isinstance(error, WellfedError):
                    raise
                # Of what a library says only the kind: the text may hold the secrets of a signed URL.
                rule, kind = f"{without_query(self.url(name))!r} must be readable", kind_of_error(error)
                if isinstance(error, PermissionError) or "Credential" in kind:
                    raise UsageError(
                        rule, got=kind, remedy="Check the credentials in the environment and what they may read."
                    ) from error
                if attempt == self._retry.attempts:
                    raise RemoteError(
                        rule,
                        got=f"{kind}, {attempt} times",
                        remedy="Check the address, the endpoint and the connection.",
                    ) from error
            self._retry.sleep(delay)
            delay *= 2
        raise AssertionError("attempts is at least 1")
