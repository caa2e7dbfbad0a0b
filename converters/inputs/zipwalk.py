"""The members of a zip from its central directory, and their bytes, in bounded memory.

Not zipfile: it keeps an object of about 1 KB for each member in memory, in every worker. What is written here is the
directory's layout alone; decompression is the standard library's. Read are zip64, stored, deflated, bzip2 and LZMA.
"""

from __future__ import annotations

import bz2
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from wellfed.pipeline.errors import SampleRejectedError, UsageError

from .members import FULL_FOLDER, NOT_REGULAR, ArchiveCutError, Capture, Member, shown, unsafe_reason

LARGEST_RATIO = 1100
"""Deflate reaches 1,032; a member that claims more is no image but a bomb."""
_HARMLESS = 1 << 24
"""Bytes up to which a member may be packed by any ratio."""

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s4B4HL2L5H2L")
_LOCAL = struct.Struct("<4s2B4HL2L2H")
_ENCRYPTED, _SIZES_FOLLOW, _UTF8 = 0x1, 0x8, 0x800
_LARGEST_COMMENT = 1 << 16
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)

Pread = Callable[[int, int], bytes]
"""(size, offset) to exactly that many bytes."""


def walk_zip(path: Path, capture: Capture) -> Iterator[Member]:
    """The members in the order of the central directory; `offset` is that of the local header.

    Raises:
        ArchiveCutError: it has no whole directory.
        UsageError: a member is encrypted.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            count, start, shift, stop = _directory(file, size)
        except ArchiveCutError:
            # What is there of a cut zip has its local headers still.
            yield from _walk_local(file, size, path)
            raise

        def pread(length: int, offset: int) -> bytes:
            return os.pread(file.fileno(), length, offset)

        file.seek(start)
        for _ in range(count):
            member, flags = _entry(file, shift, stop)
            _refuse_encrypted(path, member.name, flags)
            if member.offset + member.packed > size:
                member = member._replace(reason="a member must lie within the archive", packed=0)
            if member.reason is None and not member.folder and 0 < member.size <= capture(member.name):
                try:
                    place = {name: getattr(member, name) for name in ("offset", "size", "packed", "method", "crc")}
                    member = member._replace(data=read_member(pread, **place))
                except SampleRejectedError as error:
                    member = member._replace(reason=error.rule)
            yield member
        if file.tell() != stop:
            raise ArchiveCutError("its directory is not as long as it says")


def _refuse_encrypted(path: Path, name: bytes, flags: int) -> None:
    if flags & _ENCRYPTED:
        raise UsageError(
            "members of a zip must not be encrypted",
            got=f"{path}: {shown(name)!r}",
            remedy="Write the archive again without a password.",
        )


def _walk_local(file: IO[bytes], size: int, path: Path) -> Iterator[Member]:
    """The whole members of a zip without its directory, as far as their sizes stand before them."""
    offset = 0
    while True:
        file.seek(offset)
        header = file.read(_LOCAL.size)
        if len(header) < _LOCAL.size or header[:4] != b"PK\3\4":
            return
        _, _, _, flags, method, _, _, crc, packed, length, name_length, extra_length = _LOCAL.unpack(header)
        name, extra = file.read(name_length), file.read(extra_length)
        length, packed, _ = _wide(extra, length, packed, 0)
        stop = offset + _LOCAL.size + name_length + extra_length + packed
        if len(name) < name_length or flags & _SIZES_FOLLOW or stop > size:
            return
        _refuse_encrypted(path, name, flags)
        folder = name.endswith(b"/")
        reason = unsafe_reason(name)
        if reason is None:
            reason = _bomb(length, packed, method) if not folder else FULL_FOLDER if length else None
        yield Member(name, offset, length, folder, reason, None, packed, method, crc)
        offset = stop


def _directory(file: IO[bytes], size: int) -> tuple[int, int, int, int]:
    """Entries, first byte, what to add to each offset, and the byte after the directory."""
    tail_start = max(0, size - _END.size - _LARGEST_COMMENT)
    file.seek(tail_start)
    tail = file.read(size - tail_start)
    place = tail.rfind(b"PK\5\6")
    while place >= 0:
        if place + _END.size <= len(tail):
            fields = _END.unpack_from(tail, place)
            # A comment may hold the same four bytes.
            if place + _END.size + fields[7] == len(tail):
                break
        place = tail.rfind(b"PK\5\6", 0, place)
    if place < 0:
        raise ArchiveCutError("its directory is missing")
    _, disk, directory_disk, here, count, length, offset, _ = _END.unpack_from(tail, place)
    end = tail_start + place
    located = end - _LOCATOR.size
    if located >= 0 and (0xFFFFFFFF in (length, offset) or 0xFFFF in (here, count)):
        file.seek(located)
        found = file.read(_LOCATOR.size)
        if len(found) == _LOCATOR.size and found[:4] == b"PK\6\7":
            end = _LOCATOR.unpack(found)[2]
            file.seek(min(end, size))
            wide = file.read(_END64.size)
            if len(wide) < _END64.size or wide[:4] != b"PK\6\6":
                raise ArchiveCutError("its zip64 directory is missing")
            disk, directory_disk, here, count, length, offset = _END64.unpack(wide)[4:]
    if disk or directory_disk or here != count:
        raise ArchiveCutError("it is one part of several")
    start = end - length
    shift = start - offset  # data in front, as of a self-extracting archive
    if start < 0 or shift < 0 or count > length // _ENTRY.size:
        raise ArchiveCutError("its directory is damaged")
    return count, start, shift, end


def _entry(file: IO[bytes], shift: int, stop: int) -> tuple[Member, int]:
    block = file.read(_ENTRY.size)
    if len(block) < _ENTRY.size or block[:4] != b"PK\1\2" or file.tell() > stop:
        raise ArchiveCutError("its directory is damaged")
    (_, _, system, _, _, flags, method, _, _, crc, packed, size, *lengths, disk, _, attributes, offset) = _ENTRY.unpack(
        block
    )
    name_length, extra_length, comment_length = lengths
    name = file.read(name_length)
    extra = file.read(extra_length)
    file.seek(comment_length, os.SEEK_CUR)
    if len(name) < name_length or len(extra) < extra_length or file.tell() > stop:
        raise ArchiveCutError("its directory is damaged")
    size, packed, offset = _wide(extra, size, packed, offset)
    if disk and disk != 0xFFFF:
        raise ArchiveCutError("it is one part of several")
    if not flags & _UTF8 and not name.isascii():
        # The format's old code page; most tools write what they have, and mark UTF-8.
        name = _recoded(name)
    kind = attributes >> 28 if system == 3 else 0  # Unix: the upper half is st_mode
    folder = name.endswith(b"/") or kind == 0x4
    reason = unsafe_reason(name.replace(b"\\", b"/") if system == 0 else name)
    if reason is None and kind not in (0x0, 0x4, 0x8):
        reason = f"{NOT_REGULAR}; got {'a symbolic link' if kind == 0xA else 'a special file'}"
    if reason is None:
        reason = _bomb(size, packed, method) if not folder else FULL_FOLDER if size else None
    member = Member(name, offset + shift, size, folder, reason, None, packed, method, crc)
    return member, flags


def _wide(extra: bytes, size: int, packed: int, offset: int) -> tuple[int, int, int]:
    """The zip64 values, where the 32-bit ones say that there are some."""
    values = [size, packed, offset]
    wanted = [place for place, value in enumerate(values) if value == 0xFFFFFFFF]
    start = 0
    while wanted and start + 4 <= len(extra):
        tag, length = struct.unpack_from("<HH", extra, start)
        if tag == 1:
            if length < 8 * len(wanted) or start + 4 + 8 * len(wanted) > len(extra):
                raise ArchiveCutError("its directory is damaged")
            for number, place in enumerate(wanted):
                (values[place],) = struct.unpack_from("<Q", extra, start + 4 + 8 * number)
            break
        start += 4 + length
    if any(value >= 1 << 62 for value in values):
        raise ArchiveCutError("its directory is damaged")
    return values[0], values[1], values[2]


def _recoded(name: bytes) -> bytes:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return name.decode("cp437").encode("utf-8")
    return name


def _bomb(size: int, packed: int, method: int) -> str | None:
    if method not in _METHODS:
        return f"a member must be stored, deflated, or packed by bzip2 or LZMA; got method {method}"
    if method == zipfile.ZIP_STORED and size != packed:
        return "a stored member must be as large as it says"
    if size > _HARMLESS and size > packed * LARGEST_RATIO:
        return f"a member must not be a decompression bomb; got {size} bytes packed into {packed}"
    return None


def read_member(pread: Pread, *, offset: int, size: int, packed: int, method: int, crc: int) -> bytes:
    """A member's bytes, never more than its declared size.

    Raises:
        SampleRejectedError: its local header is not there, or it does not unpack to its declared size and CRC-32.
    """
    header = pread(_LOCAL.size, offset)
    if len(header) < _LOCAL.size or header[:4] != b"PK\3\4":
        raise SampleRejectedError("a member must have its header")
    *_, name_length, extra_length = _LOCAL.unpack(header)
    data = pread(packed, offset + _LOCAL.size + name_length + extra_length)
    if len(data) < packed:
        raise SampleRejectedError("a member must be whole")
    try:
        data = _unpacked(data, size, method)
    except (zlib.error, OSError, EOFError, lzma.LZMAError, ValueError, struct.error) as error:
        raise SampleRejectedError("a member must unpack", got=str(error)) from error
    if len(data) != size:
        raise SampleRejectedError("a member must unpack to its declared size")
    if zlib.crc32(data) != crc:
        raise SampleRejectedError("a member's CRC-32 must be the one in the directory")
    return data


def _unpacked(data: bytes, size: int, method: int) -> bytes:
    # One byte more than declared shows that there is more, and no more is unpacked.
    if method == zipfile.ZIP_STORED:
        return data
    if method == zipfile.ZIP_DEFLATED:
        return zlib.decompressobj(-15).decompress(data, size + 1)
    if method == zipfile.ZIP_BZIP2:
        return bz2.BZ2Decompressor().decompress(data, size + 1)
    return _lzma(data, size).decompress(data[4 + struct.unpack_from("<H", data, 2)[0] :], size + 1)


def _lzma(data: bytes, size: int) -> Any:
    """A decoder by the properties in front of the data: version, their length, lc/lp/pb, dictionary size."""
    if len(data) < 9:
        raise ValueError("no LZMA properties")
    packed, dictionary = struct.unpack_from("<BL", data, 4)
    filters = {
        "id": lzma.FILTER_LZMA1,
        # Allocated before the first byte, and nothing reaches further back than the member is long.
        "dict_size": max(4096, min(dictionary, size + 1)),
        "lc": packed % 9,
        "lp": packed // 9 % 5,
        "pb": packed // 45,
    }
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[filters])
