"""Our ustar files, read by Python's tarfile and by the tar command."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from pathlib import Path

import pytest

from wellfed.converters import writeback
from wellfed.converters.outputs.tar import TarWriter, header


def test_tarfile_and_tar_read_members_where_we_say_they_are(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    members = {
        "0000000000.jpg": b"j" * 513,
        "0000000000.cls": b"7",
        "0000000001.png": b"",
        "0000000001.cls": b"p" * 512,
    }
    with TarWriter(path) as tar:
        offsets = {name: tar.add(name, data) for name, data in members.items()}
    assert path.stat().st_size == tar.size == 512 * (1 + 2 + 1 + 1 + 1 + 1 + 1 + 2)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == tar.sha256
    with tarfile.open(path, "r:") as reader:
        seen = reader.getmembers()
        assert [each.name for each in seen] == list(members)
        assert {each.name: each.offset_data for each in seen} == offsets
        assert {(each.mtime, each.uid, each.gid, each.mode, each.type) for each in seen} == {(0, 0, 0, 0o644, b"0")}
        for name, data in members.items():
            assert reader.extractfile(name).read() == data  # type: ignore[union-attr]
    listed = subprocess.run(["tar", "tf", path], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == list(members)
    assert listed.stderr == ""


def test_header_is_the_one_that_tarfile_writes() -> None:
    info = tarfile.TarInfo("0000000012.jpg")
    info.size = 123456
    assert header("0000000012.jpg", 123456) == info.tobuf(tarfile.USTAR_FORMAT)


def test_header_refuses_what_plain_ustar_cannot_hold() -> None:
    for name, size in (("x" * 101, 1), ("a.jpg", 8**11), ("ü.jpg", 1)):
        with pytest.raises(ValueError):  # noqa: PT011 - UnicodeEncodeError is one
            header(name, size)


def test_failed_block_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with TarWriter(tmp_path / "x.tar") as tar:
            tar.add("a.jpg", b"1")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_tar_is_given_to_the_disk_while_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a tar of 20 MiB, and a record of what the disk is told to write
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(writeback, "_sync_file_range", lambda fd, start, size, flags: told.append((start, size)))
    with TarWriter(tmp_path / "a.tar") as tar:
        for number in range(20):
            tar.add(f"{number}.bin", bytes(1 << 20))
    # then it was told twice, each time of 8 MiB or little more, without gaps, and never beyond what was written
    assert len(told) == 2
    assert told[0][0] == 0
    assert told[1][0] == sum(told[0])
    assert all(8 << 20 <= size < 10 << 20 for _, size in told)
    assert sum(told[1]) <= (tmp_path / "a.tar").stat().st_size
