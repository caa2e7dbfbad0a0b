"""Lines of a text table with their places, whatever its encoding, and its rows read again by place."""

from __future__ import annotations

import codecs
import hashlib
import os
from collections.abc import Iterator
from typing import IO, Any, Literal, NamedTuple

from wellfed.pipeline.errors import SampleRejectedError, SourceChangedError, UsageError
from wellfed.pipeline.formats.perprocess import PerProcess

from .stores import Stores, location_errors, protocol_of, sample_errors

Encoding = Literal["utf-8", "latin-1", "utf-16-le", "utf-16-be"]

LONGEST_LINE = 64 << 20
_CHUNK = 1 << 20
_START = 4096


class Line(NamedTuple):
    """A line with its line end.

    Attributes:
        number: from 1.
        place, length: bytes in the file.
        data: as in the file.
        text: None where the bytes are not of the encoding.
    """

    number: int
    place: int
    length: int
    data: bytes
    text: str | None


class TextFile:
    """A text file, local or in a store, read from its start line by line and by place.

    Attributes:
        encoding: may be changed between two readings; the byte order mark decides it where there is one.
        mark: length of the byte order mark.

    Raises:
        UsageError: it cannot be opened, or is no text.
    """

    def __init__(self, location: str, stores: Stores, encoding: Encoding | None = None) -> None:
        self.location = location
        self._stores = stores
        self._files: PerProcess[IO[bytes]] = PerProcess(self._open)
        self._digest = hashlib.sha256()
        with self._open() as file:
            start = file.read(_START)
        self.mark, found = _encoding_of(start, location)
        self.encoding: Encoding = encoding or found
        self.stat = self._stat()

    @staticmethod
    def start_of(location: str, stores: Stores) -> bytes:
        """The first bytes of a file. Raises UsageError where it cannot be opened."""
        with _open(location, stores) as file:
            return file.read(_START)

    def _open(self) -> IO[bytes]:
        return _open(self.location, self._stores)

    def _stat(self) -> tuple[int, int]:
        """Size and stamp."""
        if protocol_of(self.location) is not None:
            facts = self._stores.facts([self.location])[0]
            return facts.size, facts.stamp
        status = os.stat(self.location)
        return status.st_size, status.st_mtime_ns

    @property
    def digest(self) -> str:
        """SHA-256 of the file, once `lines` is exhausted."""
        return self._digest.hexdigest()

    def chunks(self) -> Iterator[bytes]:
        """The file in large pieces."""
        with self._open() as file:
            while chunk := self._chunk(file):
                yield chunk

    def _chunk(self, file: IO[bytes]) -> bytes:
        with location_errors(self.location):
            return file.read(_CHUNK)

    def lines(self) -> Iterator[Line]:
        """All lines. Raises UsageError where one is longer than LONGEST_LINE."""
        self._digest = hashlib.sha256()
        number, place = 1, self.mark
        with self._open() as file:
            self._digest.update(file.read(self.mark))
            for data in self._split(file):
                yield Line(number, place, len(data), data, self.decode(data))
                number, place = number + 1, place + len(data)

    def decode(self, data: bytes) -> str | None:
        """The text of a line; None where it is not of the encoding."""
        try:
            return data.decode(self.encoding)
        except UnicodeDecodeError:
            return None

    def _split(self, file: IO[bytes]) -> Iterator[bytes]:
        end = "\n".encode(self.encoding)
        held, searched = b"", 0
        while chunk := self._chunk(file):
            self._digest.update(chunk)
            held += chunk
            start = 0
            while (found := _find(held, end, max(start, searched), start)) >= 0:
                yield held[start : found + len(end)]
                start = found + len(end)
            held = held[start:]
            # Never within a unit of the encoding, which a chunk may cut.
            searched = max(0, len(held) - len(held) % len(end) - len(end))
            if len(held) > LONGEST_LINE:
                raise UsageError(
                    f"a line of {self.location!r} must be shorter than {LONGEST_LINE >> 20} MiB",
                    got="a longer one",
                    remedy="Check that the file is a text table.",
                )
        if held:
            yield held

    def line_at(self, place: int, length: int) -> str:
        """The text at a place that `lines` gave.

        Raises:
            SampleRejectedError: the file is not what it was, or cannot be read.
        """
        with sample_errors("the table"):
            file = self._files.get()
            file.seek(place)
            data = file.read(length)
            now = self._now(file)
        text = self.decode(data)
        if now != self.stat or len(data) != length or text is None:
            raise SampleRejectedError("the table must not change between planning and reading")
        return text

    def _now(self, file: IO[bytes]) -> tuple[int, int]:
        if protocol_of(self.location) is not None:
            # Asking the store for every row would double the requests: each process asked once, in `saved_text_file`.
            return self.stat
        status = os.fstat(file.fileno())
        return status.st_size, status.st_mtime_ns


def _open(location: str, stores: Stores) -> IO[bytes]:
    if protocol_of(location) is not None:
        return stores.open(location)
    try:
        return open(location, "rb")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the table {location!r} must be readable", got=str(error), remedy="Check the path."
        ) from error


def _find(held: bytes, end: bytes, searched: int, start: int) -> int:
    """Where the next line end begins, at a whole number of units from the start of the line; -1 for nowhere."""
    found = held.find(end, searched)
    while found >= 0 and (found - start) % len(end):
        found = held.find(end, found + 1)
    return found


def _encoding_of(start: bytes, location: str) -> tuple[int, Encoding]:
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise _no_text(location, "UTF-32")
    if start.startswith(codecs.BOM_UTF8):
        return 3, "utf-8"
    if start.startswith(codecs.BOM_UTF16_LE):
        return 2, "utf-16-le"
    if start.startswith(codecs.BOM_UTF16_BE):
        return 2, "utf-16-be"
    if start.startswith(b"\x1f\x8b"):
        raise _no_text(location, "gzip data")
    # In the header only: one row with such a byte is that row's fault.
    if b"\0" in start.partition(b"\n")[0]:
        raise _no_text(location, "zero bytes in it, as in UTF-16 without a byte order mark or in a binary file")
    return 0, "utf-8"


def _no_text(location: str, got: str) -> UsageError:
    return UsageError(f"the table {location!r} must be text", got=got, remedy="Write it as plain UTF-8.")


def text_facts(file: TextFile) -> dict[str, Any]:
    """What another process needs to open the same file; see `saved_text_file`."""
    return {"encoding": file.encoding, "stat": list(file.stat)}


def saved_text_file(location: str, stores: Stores, facts: dict[str, Any]) -> TextFile:
    """The file as it was listed.

    Raises:
        UsageError: it cannot be opened.
        SourceChangedError: its size or modification time is another.
    """
    file = TextFile(location, stores, facts["encoding"])
    if list(file.stat) != facts["stat"]:
        raise SourceChangedError(
            f"the table {location!r} must not change between planning and reading", remedy="Run the conversion again."
        )
    return file
