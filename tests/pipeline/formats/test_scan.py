from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.formats.scan import FolderScan, scan_folder


def _put(root: Path, name: bytes | str, content: bytes = b"x") -> None:
    path = os.path.join(os.fsencode(root), os.fsencode(name))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def _names(scan: FolderScan) -> list[bytes]:
    return [scan.name_bytes(row) for row in range(len(scan))]


def test_planned_order_is_by_class_as_text_then_path_bytes(tmp_path: Path) -> None:
    for name in ("2/b.jpg", "10/z.jpg", "10/a/q.png", "10/a.jpg", "B/x", "a/x", "é/x", "2/B.jpg", "10/a-b.jpg"):
        _put(tmp_path, name, name.encode())
    scan = scan_folder(tmp_path)
    assert scan.class_names == ("10", "2", "B", "a", "é")
    assert _names(scan) == [
        b"10/a-b.jpg",
        b"10/a.jpg",
        b"10/a/q.png",
        b"10/z.jpg",
        b"2/B.jpg",
        b"2/b.jpg",
        b"B/x",
        b"a/x",
        "é/x".encode(),
    ]
    assert scan.labels.tolist() == [0, 0, 0, 0, 1, 1, 2, 3, 4]
    assert scan.sizes.tolist() == [10, 8, 10, 8, 7, 7, 3, 3, 4]
    assert (scan.mtimes_ns > 0).all()
    assert (scan.offsets.dtype, scan.labels.dtype, scan.sizes.dtype, scan.mtimes_ns.dtype) == tuple(
        map(np.dtype, ("<u8", "<i8", "<u8", "<i8"))
    )
    assert (scan.reasons, scan.skipped, scan.notes) == ({}, {}, {})


def test_names_are_kept_exactly_whatever_their_bytes(tmp_path: Path) -> None:
    odd = [
        b"c/a\nb.jpg",
        b"c/deep/" + b"n" * 200 + b".jpg",
        b"c/quote'\".jpg",
        b"c/space and.dots.tar.jpg",
        b"c/\xe9t\xe9.jpg",
        b"\xff class/x.jpg",
    ]
    for name in odd:
        _put(tmp_path, name)
    scan = scan_folder(tmp_path)
    assert _names(scan) == odd
    assert scan.class_names == ("c", "\udcff class")


def test_what_tools_leave_behind_is_skipped_and_counted(tmp_path: Path) -> None:
    for name in (
        "cat/a.jpg",
        "cat/.hidden.jpg",
        "cat/.git/objects/aa.jpg",
        "cat/._a.jpg",
        "cat/Thumbs.db",
        "cat/deep/thumbs.db",
        "cat/desktop.ini",
        "cat/Desktop.ini",
        "__MACOSX/cat/b.jpg",
        ".ipynb_checkpoints/c.jpg",
        "README.txt",
    ):
        _put(tmp_path, name)
    scan = scan_folder(tmp_path)
    assert scan.class_names == ("cat",)
    assert _names(scan) == [b"cat/a.jpg"]
    assert scan.skipped == {
        "apple_double": 1,
        "desktop_ini": 2,
        "hidden": 3,
        "macosx": 1,
        "outside_class_folders": 1,
        "thumbs_db": 2,
    }


def test_the_extension_decides_nothing(tmp_path: Path) -> None:
    for name in ("c/a.txt", "c/b", "c/c.JPEG"):
        _put(tmp_path, name)
    assert _names(scan_folder(tmp_path)) == [b"c/a.txt", b"c/b", b"c/c.JPEG"]


def test_an_empty_class_keeps_its_label_and_is_noted(tmp_path: Path) -> None:
    _put(tmp_path, "b/x.jpg")
    (tmp_path / "a").mkdir()
    _put(tmp_path, "c/.hidden")
    scan = scan_folder(tmp_path)
    assert scan.class_names == ("a", "b", "c")
    assert scan.labels.tolist() == [1]
    assert scan.notes == {"empty_class": 2}


def test_what_cannot_be_a_sample_is_a_row_with_its_reason(tmp_path: Path) -> None:
    _put(tmp_path, "cat/a.jpg")
    _put(tmp_path, "cat/empty.jpg", b"")
    (tmp_path / "cat" / "broken.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "cat" / "self.jpg").symlink_to("self.jpg")
    (tmp_path / "cat" / "up").symlink_to("..")
    (tmp_path / "cat" / "here").symlink_to(".")
    os.mkfifo(tmp_path / "cat" / "pipe.jpg")
    scan = scan_folder(tmp_path)
    assert {scan.name_bytes(row): reason for row, reason in scan.reasons.items()} == {
        b"cat/broken.jpg": "broken symbolic link",
        b"cat/empty.jpg": "zero bytes",
        b"cat/here": "symbolic link loop",
        b"cat/pipe.jpg": "not a regular file",
        b"cat/self.jpg": "symbolic link loop",
        b"cat/up": "symbolic link loop",
    }
    # Rejected rows take part in the numbering, so what is good keeps its key when they are mended.
    assert _names(scan).index(b"cat/a.jpg") == 0
    assert len(scan) == 7


def test_links_to_files_and_folders_elsewhere_are_followed(tmp_path: Path) -> None:
    _put(tmp_path, "disk/cats/a.jpg", b"abc")
    root = tmp_path / "root"
    (root / "dog").mkdir(parents=True)
    (root / "cat").symlink_to(tmp_path / "disk" / "cats")
    (root / "dog" / "linked.jpg").symlink_to(tmp_path / "disk" / "cats" / "a.jpg")
    (root / "dog" / "twice").symlink_to(tmp_path / "disk" / "cats")
    scan = scan_folder(root)
    assert _names(scan) == [b"cat/a.jpg", b"dog/linked.jpg", b"dog/twice/a.jpg"]
    assert scan.sizes.tolist() == [3, 3, 3]
    assert not scan.reasons
    link = tmp_path / "link-to-root"
    link.symlink_to(root)
    assert scan_folder(link).fingerprint == scan.fingerprint


def test_a_class_link_that_leads_nowhere_shifts_no_label(tmp_path: Path) -> None:
    _put(tmp_path, "a/x.jpg")
    _put(tmp_path, "c/x.jpg")
    (tmp_path / "b").symlink_to("/mnt/not-mounted/b")
    scan = scan_folder(tmp_path)
    assert scan.class_names == ("a", "b", "c")
    assert _names(scan) == [b"a/x.jpg", b"b", b"c/x.jpg"]
    assert scan.labels.tolist() == [0, 1, 2]
    assert scan.reasons == {1: "broken symbolic link"}


def test_a_class_link_to_the_root_ends(tmp_path: Path) -> None:
    _put(tmp_path, "a/x.jpg")
    (tmp_path / "loop").symlink_to(".")
    scan = scan_folder(tmp_path)
    assert scan.reasons == {1: "symbolic link loop"}


def test_unreadable_files_and_folders_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests may run as root, who may read everything; so the system calls are made to refuse.
    _put(tmp_path, "a/locked.jpg")
    _put(tmp_path, "a/locked/x.jpg")
    _put(tmp_path, "a/open.jpg")
    access, scandir = os.access, os.scandir

    def refuse(path: bytes) -> Any:
        if path.endswith(b"locked"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith(b"locked.jpg") and access(path, mode))
    monkeypatch.setattr(os, "scandir", refuse)
    scan = scan_folder(tmp_path)
    assert _names(scan) == [b"a/locked.jpg", b"a/locked", b"a/open.jpg"]
    assert scan.reasons == {0: "unreadable: permission denied", 1: "unreadable: permission denied"}


def test_the_fingerprint_follows_names_sizes_and_classes_not_times(tmp_path: Path) -> None:
    root = tmp_path / "one"
    _put(root, "a/x.jpg", b"12")
    _put(root, "b/y.jpg", b"3")
    scan = scan_folder(root)
    copy = Path(shutil.copytree(root, tmp_path / "two"))
    os.utime(copy / "a" / "x.jpg", (1, 1))
    assert scan_folder(copy).fingerprint == scan.fingerprint
    (copy / "c").mkdir()
    with_class = scan_folder(copy).fingerprint
    (copy / "c").rmdir()
    _put(copy, "a/x.jpg", b"123")
    longer = scan_folder(copy).fingerprint
    _put(copy, "a/x.jpg", b"12")
    os.rename(copy / "a" / "x.jpg", copy / "a" / "z.jpg")
    renamed = scan_folder(copy).fingerprint
    assert len({scan.fingerprint, with_class, longer, renamed}) == 4


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda root: root.rmdir(), "must exist"),
        (lambda root: (root.rmdir(), root.write_text("x")), "not a file"),
        (lambda root: None, "is empty"),
        (lambda root: _put(root, "a.jpg"), "1 files directly in it"),
        (lambda root: ((root / "cat").mkdir(), (root / "a.jpg").write_bytes(b"x")), "none in 1 folders"),
        (lambda root: _put(root, ".git/a"), "no files in them"),
        (lambda root: (root / "cat").mkdir(), "1 class folders and no files"),
        (lambda root: (root.rmdir(), root.symlink_to(root)), "must be readable"),
    ],
)
def test_a_root_without_images_says_what_is_there_and_what_is_expected(
    tmp_path: Path, build: object, message: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    build(root)  # type: ignore[operator]
    with pytest.raises(UsageError) as caught:
        scan_folder(root)
    assert message in str(caught.value)
    assert str(root) in str(caught.value)
    assert caught.value.remedy


def test_the_real_sample_has_an_image_for_each_of_250_classes(shared_data: Path) -> None:
    scan = scan_folder(shared_data / "imagenet-sample")
    assert len(scan) == len(scan.class_names) == 250
    assert scan.labels.tolist() == list(range(250))
    assert not scan.reasons
