"""The bad-input table for folders of images: one folder of everything bad at once, and roots that are none."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image


def png(width: int, height: int) -> bytes:
    """A PNG header that claims this size, with next to no data."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory, convert_any: Callable[..., Any], image: Callable[..., bytes]) -> Any:
    """A folder of all that the table says of files, converted once."""
    base = tmp_path_factory.mktemp("bad")
    root = base / "photos"
    good = image()
    files: dict[bytes, bytes] = {
        b"cat/good.jpg": good,
        b"cat/zero.jpg": b"",
        b"cat/truncated.jpg": image(size=(200, 200))[:-2000],
        b"cat/corrupt.jpg": good[:20] + b"\xff" * 40,
        b"cat/text.jpg": b"this is text",
        b"cat/really-a-png.jpg": image("PNG"),
        b"cat/bomb.png": png(60_000, 60_000),
        b"cat/0xN.png": png(0, 7),
        b"cat/absurd.png": png(2**31 - 1, 2**31 - 1),
        b"cat/cmyk.jpg": image(mode="CMYK"),
        b"cat/deep.png": encoded_sixteen_bit(),
        b"cat/alpha.png": image("PNG", "RGBA"),
        b"cat/palette.png": image("PNG", "P"),
        b"cat/animated.gif": animated(),
        b"cat/turned.jpg": image(exif=exif(6)),
        b"cat/broken-exif.jpg": image(exif=exif(99)),
        b"cat/broken-xmp.jpg": with_segment(good, 0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta"),
        b"cat/broken-icc.jpg": with_segment(good, 0xE2, b"ICC_PROFILE\0\x01\x01garbage"),
        b"cat/.hidden.jpg": good,
        b"cat/._good.jpg": b"resource fork",
        b"cat/Thumbs.db": b"thumbnails",
        b"dog/same.jpg": good,
        b"dog/SAME.jpg": good,
        b"dog/same.jpeg": good,
        b"dog/with space.jpg": good,
        b"dog/with.many.dots.jpg": good,
        b"dog/new\nline.jpg": good,
        b"dog/quote\"'.jpg": good,
        b"dog/not-utf8-\xff\xe9.jpg": good,
        b"dog/" + b"n" * 120 + b".jpg": good,
        b"10/a.jpg": good,
        b"2/a.jpg": good,
        b".hidden-class/a.jpg": good,
    }
    for name, data in files.items():
        path = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    (root / "empty class").mkdir()
    os.symlink("..", root / "cat" / "loop")
    os.symlink("nowhere", root / "cat" / "broken-link.jpg")
    return convert_any(root, base / "out")


def encoded_sixteen_bit() -> bytes:
    buffer = io.BytesIO()
    Image.new("I;16", (8, 8), 40_000).save(buffer, "PNG")
    return buffer.getvalue()


def animated() -> bytes:
    frames = [Image.effect_noise((8, 8), 60).convert("P") for _ in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def with_segment(jpeg: bytes, marker: int, payload: bytes) -> bytes:
    return jpeg[:2] + bytes((0xFF, marker)) + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]


@pytest.mark.parametrize("what", ["missing", "empty", "no images", "empty classes", "a file", "text files only"])
def test_root_missing_empty_or_without_images_is_an_error(
    tmp_path: Path, bad_convert: Callable[..., Any], what: str
) -> None:
    root = tmp_path / "root"
    if what == "a file":
        root.write_bytes(b"x")
    elif what != "missing":
        (root / "cat").mkdir(parents=True) if what != "empty" else root.mkdir()
        if what == "no images":
            (root / "notes.txt").write_text("x")
        if what == "text files only":
            (root / "cat" / "notes.txt").write_text("x")
    words = {"missing": "must exist", "a file": "not a file"}.get(what, "must")
    bad_convert(root).assert_error(2, words, str(root) if what != "text files only" else "cat/notes.txt")


def test_everything_found_is_stored_or_rejected(bad: Any) -> None:
    bad.assert_counts(stored=22, rejected=9)


def test_empty_class_folder_is_kept_and_noted(bad: Any) -> None:
    assert "empty class" in bad.manifest["class_names"]
    assert bad.notes["empty_class"] == 1


def test_hidden_apple_double_and_thumbs_db_are_skipped_and_counted(bad: Any) -> None:
    assert bad.manifest["source"]["skipped"] == {"apple_double": 1, "hidden": 2, "thumbs_db": 1}
    assert not {b"cat/.hidden.jpg", b"cat/._good.jpg", b"cat/Thumbs.db"} & {*bad.stored_names, *bad.rejects}


def test_a_hidden_folder_is_no_class(bad: Any) -> None:
    assert bad.manifest["class_names"] == ["10", "2", "cat", "dog", "empty class"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (b"cat/loop", "symbolic link loop"),
        (b"cat/broken-link.jpg", "link"),
        (b"cat/zero.jpg", "zero bytes"),
        (b"cat/truncated.jpg", "trunc"),
        (b"cat/corrupt.jpg", "must"),
        (b"cat/text.jpg", "image of a supported format"),
        (b"cat/bomb.png", "at most"),
        (b"cat/0xN.png", "must"),
        (b"cat/absurd.png", "at most"),
    ],
)
def test_damaged_file_is_rejected_with_path_and_reason(bad: Any, name: bytes, words: str) -> None:
    assert words in bad.rejects[name]
    assert name not in bad.stored_names


def test_extension_differs_from_content_is_noted_and_the_right_one_stored(bad: Any) -> None:
    assert (b"cat/really-a-png.jpg", "cat", "png") in bad.stored
    assert bad.notes["extension_differs"] == 1


@pytest.mark.parametrize(
    ("name", "note", "count"),
    [
        (b"cat/cmyk.jpg", "cmyk", 1),
        (b"cat/deep.png", "sixteen_bit", 1),
        (b"cat/alpha.png", "alpha", 1),
        (b"cat/palette.png", "palette", 2),  # the GIF has one too
        (b"cat/animated.gif", "animated", 1),
        (b"cat/turned.jpg", "exif_orientation", 1),
        (b"cat/broken-exif.jpg", "broken_exif", 1),
        (b"cat/broken-xmp.jpg", "broken_xmp", 1),
        (b"cat/broken-icc.jpg", "broken_icc", 1),
    ],
)
def test_unusual_image_is_stored_and_noted(bad: Any, name: bytes, note: str, count: int) -> None:
    assert name in bad.stored_names
    assert bad.notes[note] == count


@pytest.mark.parametrize("name", [b"cat/broken-exif.jpg", b"cat/broken-xmp.jpg", b"cat/broken-icc.jpg"])
def test_broken_exif_xmp_or_icc_keeps_the_pixels(bad: Any, name: bytes) -> None:
    data = list(bad.samples.values())[bad.stored_names.index(name)]["jpg"]
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.convert("RGB").size == (16, 12)


def test_names_of_any_bytes_get_a_safe_key_and_are_kept_exactly(bad: Any) -> None:
    assert {
        b"dog/with space.jpg",
        b"dog/with.many.dots.jpg",
        b"dog/new\nline.jpg",
        b"dog/quote\"'.jpg",
        b"dog/not-utf8-\xff\xe9.jpg",
        b"dog/" + b"n" * 120 + b".jpg",
    } <= set(bad.stored_names)
    assert all(len(key) == 10 and key.isdigit() for key in bad.samples)


def test_names_equal_but_for_case_or_extension_are_kept_with_distinct_keys(bad: Any) -> None:
    same = [name for name in bad.stored_names if name.lower().startswith(b"dog/same.")]
    assert sorted(same) == [b"dog/SAME.jpg", b"dog/same.jpeg", b"dog/same.jpg"]
    assert len(bad.samples) == len(set(bad.stored_names))


def test_classes_10_and_2_have_one_order_as_text(bad: Any) -> None:
    # torchvision's ImageFolder sorts the same way: "10" before "2".
    assert bad.manifest["class_names"][:2] == ["10", "2"]
    labels = {name: members["cls"] for (name, _, _), members in zip(bad.stored, bad.samples.values(), strict=True)}
    assert (labels[b"10/a.jpg"], labels[b"2/a.jpg"]) == (b"0", b"1")


def test_unreadable_file_is_rejected(
    two_classes: Path, bad_convert: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests may run as root, who may read everything; so the system call is made to refuse.
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not os.fsencode(path).endswith(b"0.jpg") and access(path, mode)
    )
    ended = bad_convert(two_classes)
    ended.assert_counts(stored=2, rejected=2)
    assert ended.rejects == dict.fromkeys((b"cat/0.jpg", b"dog/0.jpg"), "unreadable: permission denied")
