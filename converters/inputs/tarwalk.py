"""Walk a tar, header by header, from any stream, in bounded memory.

Not tarfile: it ends silently at a damaged header or a missing end mark, keeps every member in memory, and reads
extended headers of any size. Read alike are old V7, ustar, GNU (long names, base-256 sizes) and PAX (path, size).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Protocol

from ..outputs.tar import BLOCK, padded
from .members import FULL_FOLDER, NOT_REGULAR, ArchiveCutError, Capture, Member, unsafe_reason

_LARGEST_EXTRA = 1 << 20
"""Bytes of an extended header: path names are shorter by far."""
_CHUNK = 1 << 20
_ZERO = bytes(BLOCK)
_LARGEST = (1 << 63) - 1


class Stream(Protocol):
    """Bytes read forward. `read` is short only at the end; both raise ArchiveCutError where decompression fails."""

    position: int

    def read(self, size: int) -> bytes: ...

    def skip(self, size: int) -> int:
        """Pass over bytes; returns how many there were."""
        ...


class PlainStream:
    """A regular file, skipped through by its size."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self.position = 0

    def read(self, size: int) -> bytes:
        """Up to `size` bytes."""
        data = self._file.read(size)
        self.position += len(data)
        return data

    def skip(self, size: int) -> int:
        """Move forward, at most to the end."""
        passed = min(size, self._size - self.position)
        self.position += passed
        self._file.seek(self.position)
        return passed


def walk_tar(stream: Stream, capture: Capture = lambda name: 0) -> Iterator[Member]:
    """The members of a tar in their order.

    Raises:
        ArchiveCutError: it ends before its end mark, a header is damaged, or something follows the end mark.
    """
    name: bytes | None = None
    size: int | None = None
    sparse = False
    while True:
        block = stream.read(BLOCK)
        if len(block) < BLOCK:
            raise ArchiveCutError("it ends without its end mark")
        if block == _ZERO:
            break
        kind = block[156:157]
        stored = _stored_size(block)
        if kind in (b"L", b"K", b"x", b"g", b"X"):
            extra = _extra(stream, stored)
            if kind == b"L":
                name = extra.split(b"\0", 1)[0]
            elif kind in (b"x", b"X"):
                fields = _pax(extra)
                name, size = fields.get(b"path", name), _pax_size(fields)
                sparse = any(key.startswith(b"GNU.sparse.") for key in fields)
            continue
        if name is None:
            name = _stored_name(block)
        member = _member(block, kind, name, stored if size is None else size, sparse)
        if kind == b"S":
            _pass_sparse_maps(stream, block)
        offset = stream.position
        data = None
        if member.reason is None and not member.folder and 0 < member.size <= capture(member.name):
            data = _exactly(stream, member.size, name)
            _pass(stream, padded(member.size) - member.size, name)
        else:
            _pass(stream, padded(member.size), name)
        yield member._replace(offset=offset, data=data)
        name, size, sparse = None, None, False
    if name is not None or size is not None:
        raise ArchiveCutError("an extended header without its member")
    while rest := stream.read(_CHUNK):
        if rest.count(0) != len(rest):
            raise ArchiveCutError("more data follows its end mark (several tars in one file?)")


def _member(block: bytes, kind: bytes, name: bytes, size: int, sparse: bool) -> Member:
    # Old tars have no type for folders, only a name that ends in a slash.
    if kind == b"5" or (kind in (b"0", b"\0", b"7") and name.endswith(b"/")):
        # A folder's own size says how much room it has, not that data follows.
        held = 0 if kind == b"5" else size
        return Member(name, 0, held, folder=True, reason=unsafe_reason(name) or (FULL_FOLDER if held else None))
    if kind not in (b"0", b"\0", b"7"):
        # Links, devices and pipes have no data, whatever their header says.
        held = 0 if kind in (b"1", b"2", b"3", b"4", b"6") else size
        return Member(name, 0, held, reason=f"{NOT_REGULAR}; got {_kind_name(kind)}")
    reason = unsafe_reason(name)
    if reason is None and sparse:
        reason = f"{NOT_REGULAR}; got a sparse file"
    return Member(name, 0, size, reason=reason)


def _kind_name(kind: bytes) -> str:
    known = {
        b"1": "a hard link",
        b"2": "a symbolic link",
        b"3": "a character device",
        b"4": "a block device",
        b"6": "a pipe",
        b"S": "a sparse file",
    }
    return known.get(kind, f"type {kind.decode('latin-1')!r}")


def _stored_size(block: bytes) -> int:
    """The size field of a header whose checksum holds."""
    found = _number(block[148:156])
    # The checksum counts its own eight bytes as spaces.
    unsigned = sum(block) - sum(block[148:156]) + 8 * 0x20
    if found != unsigned:
        # Some old tars summed signed bytes.
        rest = block[:148] + block[156:]
        if found != unsigned - 256 * sum(byte > 127 for byte in rest):
            raise ArchiveCutError("a damaged header")
    return _number(block[124:136])


def _number(field: bytes) -> int:
    if field[0] == 0x80:
        value = int.from_bytes(field[1:], "big")
    else:
        text = field.split(b"\0", 1)[0].strip()
        if text.translate(None, b"01234567"):
            raise ArchiveCutError("a damaged header")
        value = int(text or b"0", 8)
    if value > _LARGEST:
        raise ArchiveCutError("a damaged header")
    return value


def _stored_name(block: bytes) -> bytes:
    name = block[:100].split(b"\0", 1)[0]
    # GNU's own format keeps times where ustar has the prefix.
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _extra(stream: Stream, size: int) -> bytes:
    if size > _LARGEST_EXTRA:
        raise ArchiveCutError(f"an extended header of {size} bytes")
    data = stream.read(padded(size))
    if len(data) < padded(size):
        raise ArchiveCutError("it ends inside an extended header")
    return data[:size]


def _pax(extra: bytes) -> dict[bytes, bytes]:
    """Records "LENGTH KEY=VALUE\\n"."""
    fields: dict[bytes, bytes] = {}
    start = 0
    while start < len(extra) and extra[start]:
        space = extra.find(b" ", start, start + 20)
        digits = extra[start:space]
        if space < 0 or not digits.isdigit():
            raise ArchiveCutError("a damaged extended header")
        stop = start + int(digits)
        key, equals, value = extra[space + 1 : stop - 1].partition(b"=")
        if stop > len(extra) or stop <= space + 1 or not equals or extra[stop - 1 : stop] != b"\n":
            raise ArchiveCutError("a damaged extended header")
        fields[key] = value
        start = stop
    return fields


def _pax_size(fields: dict[bytes, bytes]) -> int | None:
    text = fields.get(b"size")
    if text is None:
        return None
    if not text.isdigit() or len(text) > 19 or int(text) > _LARGEST:
        raise ArchiveCutError("a damaged extended header")
    return int(text)


def _pass_sparse_maps(stream: Stream, block: bytes) -> None:
    more = block[482]
    while more:
        following = stream.read(BLOCK)
        if len(following) < BLOCK:
            raise ArchiveCutError("it ends inside an extended header")
        more = following[504]


def _exactly(stream: Stream, size: int, name: bytes) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise _inside(name)
    return data


def _pass(stream: Stream, size: int, name: bytes) -> None:
    if stream.skip(size) < size:
        raise _inside(name)


def _inside(name: bytes) -> ArchiveCutError:
    return ArchiveCutError(f"it ends inside the member {name.decode('utf-8', 'backslashreplace')[:200]!r}")
