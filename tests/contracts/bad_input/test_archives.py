"""The bad-input table for tars, zips and the LMDB environments of other tools."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from wellfed.pipeline.errors import UsageError


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "") -> None:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = len(data), kind, target
    tar.addfile(member, io.BytesIO(data))


@pytest.fixture
def plain_tar(tmp_path: Path, image: Callable[..., bytes]) -> Path:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(4):
            add(tar, f"cat/{number}.jpg", image())
    return tmp_path / "a.tar"


@pytest.fixture
def plain_zip(tmp_path: Path, image: Callable[..., bytes]) -> Path:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(4):
            archive.writestr(f"cat/{number}.jpg", image())
    return tmp_path / "a.zip"


def test_absolute_or_parent_path_link_and_device_in_a_tar_are_rejected(
    tmp_path: Path, bad_convert: Callable[..., Any], image: Callable[..., bytes]
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, "cat/good.jpg", image())
        add(tar, "/etc/absolute.jpg", image())
        add(tar, "cat/../../above.jpg", image())
        add(tar, "cat/soft.jpg", kind=tarfile.SYMTYPE, target="/etc/passwd")
        add(tar, "cat/hard.jpg", kind=tarfile.LNKTYPE, target="cat/good.jpg")
        add(tar, "cat/device.jpg", kind=tarfile.CHRTYPE)
    ended = bad_convert(tmp_path / "a.tar")
    ended.assert_counts(stored=1, rejected=5)
    for name, words in {
        b"/etc/absolute.jpg": "absolute",
        b"cat/../../above.jpg": "lead out of the archive",
        b"cat/soft.jpg": "link",
        b"cat/hard.jpg": "link",
        b"cat/device.jpg": "device",
    }.items():
        assert words in ended.rejects[name]


def test_absolute_or_parent_path_and_link_in_a_zip_are_rejected(
    tmp_path: Path, bad_convert: Callable[..., Any], image: Callable[..., bytes]
) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("cat/good.jpg", image())
        archive.writestr("cat/../../above.jpg", image())
        archive.writestr("/etc/absolute.jpg", image())
        link = zipfile.ZipInfo("cat/soft.jpg")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    ended = bad_convert(tmp_path / "a.zip")
    ended.assert_counts(stored=1, rejected=3)
    assert ended.stored_names == [b"cat/good.jpg"]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archive_cut_short_is_an_error_naming_the_member(
    bad_convert: Callable[..., Any], plain_tar: Path, plain_zip: Path, kind: str
) -> None:
    cut(path := plain_tar if kind == "tar" else plain_zip)
    # A zip that was cut has lost its directory: its last whole member is what can be named.
    bad_convert(path).assert_error(2, "must be whole", "cat/2.jpg" if kind == "tar" else "cat/1.jpg", "--prefix")


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_prefix_of_an_archive_cut_short_is_taken_only_when_asked(
    bad_convert: Callable[..., Any], plain_tar: Path, plain_zip: Path, kind: str
) -> None:
    cut(path := plain_tar if kind == "tar" else plain_zip)
    ended = bad_convert(path, "--prefix")
    assert ended.code in (0, 3), ended.err
    assert ended.stored_names == [b"cat/0.jpg", b"cat/1.jpg"]


def cut(path: Path) -> None:
    """Inside the third member."""
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"cat/2.jpg") + (600 if path.suffix == ".tar" else 60)])


def test_encrypted_zip_is_an_error(bad_convert: Callable[..., Any], plain_zip: Path) -> None:
    data = bytearray(plain_zip.read_bytes())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        place = -1
        while (place := data.find(signature, place + 1)) >= 0:
            data[place + flags] |= 1
    plain_zip.write_bytes(data)
    bad_convert(plain_zip).assert_error(2, "encrypted", "cat/0.jpg")


def test_bad_crc_rejects_its_sample_alone(bad_convert: Callable[..., Any], plain_zip: Path) -> None:
    data = bytearray(plain_zip.read_bytes())
    data[data.index(b"cat/1.jpg") + 100] ^= 1
    plain_zip.write_bytes(data)
    ended = bad_convert(plain_zip)
    ended.assert_counts(stored=3, rejected=1)
    assert "CRC-32" in ended.rejects[b"cat/1.jpg"]


def test_two_members_of_one_name_are_both_kept(
    tmp_path: Path, bad_convert: Callable[..., Any], image: Callable[..., bytes]
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("cat/a.jpg", "cat/a.jpg", "cat/A.jpg"):
            add(tar, name, image())
    ended = bad_convert(tmp_path / "a.tar")
    ended.assert_counts(stored=3, rejected=0)
    assert len(set(ended.samples)) == 3


def test_partial_sample_is_rejected_never_yielded_empty(
    tmp_path: Path, bad_convert: Callable[..., Any], image: Callable[..., bytes]
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for key in ("a", "b", "c"):
            add(tar, f"{key}.jpg", image())
            add(tar, f"{key}.cls", b"0")
        add(tar, "no-image.cls", b"0")
        add(tar, "no-label.jpg", image())
    ended = bad_convert(tmp_path / "a.tar")
    ended.assert_counts(stored=3, rejected=2)
    assert all(members["jpg"] and members["cls"] for members in ended.samples.values())


@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_foreign_lmdb_cut_or_garbage_is_an_error_before_mapping_it(
    tmp_path: Path, bad_convert: Callable[..., Any], image: Callable[..., bytes], damage: str
) -> None:
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 22) as environment, environment.begin(write=True) as transaction:
        for number in range(40):
            transaction.put(b"cat/%d" % number, image())
    path = tmp_path / "db" / "data.mdb"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2] if damage == "cut" else b"\x5a" * size)
    ended = bad_convert(tmp_path / "db", "--input", "lmdb", "--label-regex", "^([a-z]+)/")
    ended.assert_error(2, "must be a whole LMDB data file", "data.mdb")


def test_archive_changed_between_plan_and_run_rejects_or_stops(
    bad_convert: Callable[..., Any], plain_zip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wellfed.converters import run

    prepare = run.prepare

    def prepare_and_change(request: Any) -> Any:
        jobs = prepare(request)
        plain_zip.write_bytes(plain_zip.read_bytes() + b"more")
        return jobs

    monkeypatch.setattr(run, "prepare", prepare_and_change)
    # All of its samples are rejected, so that there is no dataset.
    bad_convert(plain_zip).assert_error(2, "all rejected", "must not change")


def test_an_option_of_archives_for_a_cut_table_is_refused() -> None:
    from wellfed.converters.inputs import InputOptions, list_input

    with pytest.raises(UsageError, match="--prefix is for inputs of the kinds binary, hf, tar, zip"):
        list_input("x.csv", InputOptions(kind="table", prefix=True))
