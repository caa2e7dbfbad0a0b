"""Zips as input: the rules of tars, and what only zips have."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from wellfed.converters.inputs import InputOptions
from wellfed.converters.inputs.zip import ZipInput, matches
from wellfed.pipeline.errors import SampleRejectedError, UsageError

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


def write_zip(path: Path, entries: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return path


def listed(path: Path | str, **options: object) -> ZipInput:
    return ZipInput.list(str(path), InputOptions(**options))  # type: ignore[arg-type]


def names(source: ZipInput) -> list[bytes]:
    return [source.name(row) for row in range(len(source))]


SHARD = [("0001.jpg", b"first"), ("0001.cls", b"1"), ("0002.jpg", b"second" * 99), ("0002.cls", b"0")]


@pytest.mark.parametrize("method", METHODS)
def test_samples_of_each_compression(tmp_path: Path, method: int) -> None:
    path = write_zip(tmp_path / "a.zip", SHARD, method)
    source = listed(path)
    assert matches(str(path))
    assert (names(source), source.labels.tolist()) == ([b"0001.jpg", b"0002.jpg"], [1, 0])
    (tmp_path / "saved").mkdir()
    source.save(tmp_path / "saved")
    loaded = ZipInput.load(str(path), tmp_path / "saved")
    assert [loaded.read(row).image for row in (1, 0)] == [b"second" * 99, b"first"]


def test_class_folders_with_an_empty_one(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", [("dog/1.jpg", b"1"), ("cat/2.jpg", b"2"), ("__MACOSX/cat/._2.jpg", b"3")])
    with zipfile.ZipFile(path, "a") as archive:
        archive.mkdir("emu")
    source = listed(path)
    assert (source.class_names, source.labels.tolist()) == (("cat", "dog", "emu"), [1, 0])
    assert source.skipped == {"macosx": 1}


def test_dotted_keys_with_labels_are_no_class_folders(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", [("d/im.000.JPG", b"1"), ("d/im.000.cls", b"3")])
    with pytest.raises(UsageError, match=r"'d/im\.000\.cls'.*first dot"):
        listed(path)


def test_zip64_data_in_front_and_a_comment(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in SHARD:
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(data)
        archive.comment = b"a comment with PK\5\6 in it, as if it were the end of the archive"
    (tmp_path / "a.zip").write_bytes(b"#!/bin/sh\n" * 100 + buffer.getvalue())
    source = listed(tmp_path / "a.zip")
    assert [source.read(row).image for row in range(2)] == [b"first", b"second" * 99]


def test_names_of_other_code_pages(tmp_path: Path) -> None:
    # Not marked as UTF-8: zipfile writes CP437 for nobody, so the mark and the bytes are changed by hand.
    data = bytearray(write_zip(tmp_path / "a.zip", [("cat/x\xe9.jpg", b"1")]).read_bytes())
    for signature, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = data.find(signature)
        flags = struct.unpack_from("<H", data, start + place)[0]
        struct.pack_into("<H", data, start + place, flags & ~0x800)
    (tmp_path / "a.zip").write_bytes(data)
    assert names(listed(tmp_path / "a.zip")) == ["cat/xé.jpg".encode()]  # UTF-8 without its mark
    (tmp_path / "b.zip").write_bytes(data.replace("é".encode(), b"\x82_"))
    assert names(listed(tmp_path / "b.zip")) == ["cat/xé_.jpg".encode()]


def test_paths_that_lead_out_and_links_are_refused(tmp_path: Path) -> None:
    entries = [("cat/1.jpg", b"1"), ("/cat/2.jpg", b"2"), ("../cat/3.jpg", b"3"), ("cat/4.jpg", b"")]
    path = write_zip(tmp_path / "a.zip", entries)
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("cat/5.jpg")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "1.jpg")
    source = listed(path, label_regex="(cat)")
    assert source.refused == {
        1: "a member's path must not be absolute or lead out of the archive",
        2: "a member's path must not be absolute or lead out of the archive",
        3: "zero bytes",
        4: "a member must be a regular file; got a symbolic link",
    }


def test_an_encrypted_member_is_an_error(tmp_path: Path) -> None:
    data = bytearray(write_zip(tmp_path / "a.zip", SHARD).read_bytes())
    data[data.find(b"PK\1\2") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(UsageError, match=r"must not be encrypted.*0001\.jpg"):
        listed(tmp_path / "a.zip")


def test_a_bad_checksum_refuses_its_sample_alone(tmp_path: Path) -> None:
    data = write_zip(tmp_path / "a.zip", SHARD).read_bytes()
    (tmp_path / "a.zip").write_bytes(data.replace(b"first", b"fIrst", 1))
    source = listed(tmp_path / "a.zip")
    with pytest.raises(SampleRejectedError, match="CRC-32"):
        source.read(0)
    assert source.read(1).image == b"second" * 99


def test_a_label_with_a_bad_checksum_refuses_its_sample(tmp_path: Path) -> None:
    data = write_zip(tmp_path / "a.zip", [("a.jpg", b"x"), ("a.cls", b"cat"), ("b.jpg", b"x"), ("b.cls", b"dog")])
    data.write_bytes(data.read_bytes().replace(b"cat", b"cot", 1))
    assert listed(data).refused == {0: "a member's CRC-32 must be the one in the directory"}


@pytest.mark.parametrize("declared", [10, 5_000_000_000])
def test_bombs_are_bounded_by_the_declared_size(tmp_path: Path, declared: int) -> None:
    path = write_zip(tmp_path / "a.zip", [("cat/1.jpg", bytes(3_000_000)), ("cat/2.jpg", b"x")], zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    struct.pack_into("<L", data, data.find(b"PK\1\2") + 24, min(declared, 0xFFFFFFFE))
    path.write_bytes(data)
    source = listed(path)
    if declared == 10:
        with pytest.raises(SampleRejectedError, match="declared size"):
            source.read(0)
    else:
        assert "bomb" in source.refused[0]
    assert source.read(1).image == b"x"


@pytest.mark.parametrize("kept", [3, 2])
def test_a_zip_cut_short_names_the_member(tmp_path: Path, kept: int) -> None:
    data = write_zip(tmp_path / "a.zip", [(f"cat/{number}.jpg", b"0" * 500) for number in range(4)]).read_bytes()
    start = data.find(b"PK\3\4", kept * 500)
    (tmp_path / "a.zip").write_bytes(data[: start + 200])
    last = len(data[:start].split(b"PK\3\4")) - 2
    with pytest.raises(UsageError, match=rf"must be whole.*cat/{last}\.jpg"):
        listed(tmp_path / "a.zip")
    source = listed(tmp_path / "a.zip", prefix=True)
    assert names(source) == [f"cat/{number}.jpg".encode() for number in range(last + 1)]
    assert source.read(last).image == b"0" * 500


def test_what_is_no_zip(tmp_path: Path) -> None:
    for data in (b"", b"no zip" * 1000, b"PK\5\6" + bytes(18)):
        (tmp_path / "a.zip").write_bytes(data)
        with pytest.raises(UsageError):
            listed(tmp_path / "a.zip")


def test_an_offset_behind_the_end(tmp_path: Path) -> None:
    data = bytearray(write_zip(tmp_path / "a.zip", [("cat/1.jpg", b"1"), ("cat/2.jpg", b"2")]).read_bytes())
    place = data.find(b"PK\1\2")
    struct.pack_into("<L", data, place + 42, 1 << 30)
    (tmp_path / "a.zip").write_bytes(data)
    assert listed(tmp_path / "a.zip").refused == {0: "a member must lie within the archive"}
    assert zlib.crc32(listed(tmp_path / "a.zip").read(1).image or b"") == zlib.crc32(b"2")
