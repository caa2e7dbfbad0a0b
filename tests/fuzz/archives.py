"""Tars, plain and compressed, and zips, listed and read."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import random
import struct
import tarfile
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import zstandard

from wellfed.converters.inputs import InputOptions
from wellfed.converters.inputs.members import ArchiveCutError
from wellfed.converters.inputs.tar import TarInput
from wellfed.converters.inputs.tarwalk import PlainStream, walk_tar
from wellfed.converters.inputs.zip import ZipInput
from wellfed.converters.inputs.zipwalk import read_member, walk_zip
from wellfed.pipeline.errors import SampleRejectedError, UsageError

from .mutate import place_zip_directory, sum_tar
from .target import Case, Target


def a_tar(format: int, names: tuple[str, ...] = ("c/0", "c/1")) -> bytes:
    """Samples of three members, a folder, links and a label by the folder's name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        folder = tarfile.TarInfo("c")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for number, name in enumerate(names):
            for ext, data in (("jpg", b"image"), ("cls", b"%d" % number), ("json", b'{"a": 1}')):
                member = tarfile.TarInfo(f"{name}.{ext}")
                member.size, member.mtime = len(data), 1.5  # type: ignore[assignment]
                tar.addfile(member, io.BytesIO(data))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            link = tarfile.TarInfo(f"link{kind.decode()}")
            link.type, link.linkname = kind, "elsewhere"
            tar.addfile(link)
    return buffer.getvalue()


def sparse_tar() -> bytes:
    """A GNU sparse member with one more map behind its header, and an old tar without a magic."""
    member = tarfile.TarInfo("s.jpg")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 512
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[482] = 1
    old = bytearray(tarfile.TarInfo("old/").tobuf(tarfile.USTAR_FORMAT))
    old[257:265] = bytes(8)
    old[156] = 0
    old[148:156] = b" " * 8
    old[148:156] = b"%06o\0 " % sum(old)
    return sum_tar(bytes(header)) + bytes(512) + b"x" * 512 + bytes(old) + bytes(1024)


def tars() -> list[Case]:
    """Every format that tarfile writes, long names, and each compression."""
    gnu = a_tar(tarfile.GNU_FORMAT, ("long/" * 25 + "0",))
    big = bytearray(a_tar(tarfile.GNU_FORMAT, ("0",)))
    big[124 + 512 : 136 + 512] = b"\x80" + (5).to_bytes(11, "big")
    header = tarfile.TarInfo("x.jpg")
    header.pax_headers = {"size": "5", "path": "é.jpg", "GNU.sparse.major": "1"}
    header.size = 5
    return [
        ("a.tar", a_tar(tarfile.USTAR_FORMAT)),
        ("a.tar", a_tar(tarfile.USTAR_FORMAT, ("d" * 90 + "/" + "e" * 60,))),
        ("a.tar", gnu),
        ("a.tar", sum_tar(bytes(big))),
        ("a.tar", sparse_tar()),
        ("a.tar", header.tobuf(tarfile.PAX_FORMAT) + b"image" + bytes(507 + 1024)),
        ("a.tar", a_tar(tarfile.PAX_FORMAT, ("ä" * 60,))),
        ("a.tar.gz", gzip.compress(gnu)),
        ("a.tar.bz2", bz2.compress(gnu)),
        ("a.tar.zst", zstandard.compress(gnu)),
    ]


def a_zip(**options: bool) -> bytes:
    """A member by each method, a folder and a link."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.mkdir("c")
        for number, method in enumerate((0, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)):
            archive.writestr(f"c/{number}.jpg", b"image" * 30, method)
            archive.writestr(f"c/{number}.cls", b"%d" % number, method)
        link = zipfile.ZipInfo("link")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "elsewhere")
        archive.comment = b"PK\5\6 a comment"
    return buffer.getvalue()


def wide_zip() -> bytes:
    """Zip64, member and directory, and names in the old code page."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        with archive.open("c/0.jpg", "w", force_zip64=True) as member:
            member.write(b"image")
        archive.writestr("c/0.cls", b"0")
    data = buffer.getvalue()
    end = data.rfind(b"PK\5\6")
    start = data.find(b"PK\1\2")
    wide = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, end - start, start) + struct.pack(
        "<4sLQL", b"PK\6\7", 0, end, 1
    )
    record = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return data[:end] + wide + record


def old_zip() -> bytes:
    """A name outside ASCII without the mark of UTF-8."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("abc/0.jpg", b"image")
        archive.writestr("abc/0.cls", b"0")
    return buffer.getvalue().replace(b"abc", b"a\x84c")


def zips() -> list[Case]:
    """Zips of all the kinds that are read."""
    front = b"#!/bin/sh\n" + a_zip()
    marked = bytearray(a_zip())
    marked[6] |= 1
    place = marked.find(b"PK\1\2")
    marked[place + 8] |= 1
    return [
        ("a.zip", a_zip()),
        ("a.zip", wide_zip()),
        ("a.zip", old_zip()),
        ("a.zip", front),
        ("a.zip", bytes(marked)),
        ("a.zip", a_zip()[:300]),
    ]


def repair_tar(rng: random.Random, slot: str, data: bytes) -> bytes:
    """Most headers get right sums."""
    return sum_tar(data) if rng.random() < 0.8 else data


def repair_zip(rng: random.Random, slot: str, data: bytes) -> bytes:
    """Half of the directories are found where the end says."""
    return place_zip_directory(data) if rng.random() < 0.5 else data


def listed(kind: type[TarInput] | type[ZipInput], path: Path, data: bytes) -> None:
    """List as an input, with `prefix` or, as the bytes have it, without, and read every sample."""
    with suppress(UsageError):
        source = kind.list(str(path), InputOptions(prefix=zlib.crc32(data) % 2 == 0))
        for row in range(len(source)):
            assert source.name(row)
            if row not in source.refused:
                with suppress(SampleRejectedError):
                    assert source.read(row).image


def read_tar(slot: str, data: bytes, folder: Path) -> None:
    """Walk, list and read; whole members are those that tarfile finds at the same places."""
    path = folder / slot
    path.write_bytes(data)
    listed(TarInput, path, data)
    if slot != "a.tar":
        return
    with open(path, "rb") as file:
        try:
            members = list(walk_tar(PlainStream(file), lambda name: 64))
        except ArchiveCutError:
            return
    for member in members:
        assert member.offset + member.size <= len(data) or member.reason or member.folder
        assert member.data is None or member.data == data[member.offset : member.offset + member.size]
    try:
        with tarfile.open(path, "r:") as tar:
            found = {each.offset_data: each.size for each in tar if each.isreg() and not each.issparse()}
    except (tarfile.TarError, ValueError, OverflowError):
        return
    # tarfile ends without a word at a number that it cannot read: nothing is compared behind its last member.
    last = max(found, default=-1)
    ours = {
        each.offset: each.size for each in members if each.reason is None and not each.folder and each.offset <= last
    }
    assert ours.items() <= found.items(), ours.items() - found.items()
    assert found.items() <= {(each.offset, each.size) for each in members}, found


def read_zip(slot: str, data: bytes, folder: Path) -> None:
    """Walk, list and read; what is read has the sum that the directory holds."""
    path = folder / slot
    path.write_bytes(data)
    listed(ZipInput, path, data)
    with open(path, "rb") as file, suppress(ArchiveCutError):
        for member in walk_zip(path, lambda name: 64):
            if member.reason is not None or member.folder:
                continue
            with suppress(SampleRejectedError):
                value = read_member(
                    lambda size, offset: os.pread(file.fileno(), size, offset),
                    offset=member.offset,
                    size=member.size,
                    packed=member.packed,
                    method=member.method,
                    crc=member.crc,
                )
                assert (len(value), zlib.crc32(value)) == (member.size, member.crc)


TARGETS = (
    Target(
        name="tar",
        run=read_tar,
        seeds=tars,
        modules=("wellfed.converters.inputs.tarwalk",),
        words=(
            b"ustar\0",
            b"ustar  \0",
            b"L",
            b"K",
            b"x",
            b"g",
            b"S",
            b"\x80",
            b"\xff",
            b" path=a/b.jpg\n",
            b"11 size=5\n",
        ),
        repair=repair_tar,
    ),
    Target(
        name="zip",
        run=read_zip,
        seeds=zips,
        modules=("wellfed.converters.inputs.zipwalk",),
        words=(
            b"PK\1\2",
            b"PK\3\4",
            b"PK\5\6",
            b"PK\6\6",
            b"PK\6\7",
            b"\1\0\x10\0",
            b"\xff" * 4,
            b"\x08",
            b"\x0c",
            b"\x0e",
        ),
        repair=repair_zip,
    ),
)
