"""Conversion of an image folder: what is stored, what is rejected, and that equal input gives equal bytes."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from wellfed.converters import convert, verify
from wellfed.converters.inputs import InputOptions, list_input
from wellfed.converters.plan import OutputName
from wellfed.converters.progress import Progress
from wellfed.pipeline.errors import SampleRejectedError, SourceChangedError, UsageError
from wellfed.pipeline.formats import INDEX_NAME, Manifest, open_index, open_source

Digests = Callable[[Path], dict[str, str]]
OUTPUTS: tuple[OutputName, ...] = ("webdataset", "lmdb")


def rejects_in(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "rejects.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("output", OUTPUTS)
def test_source_gives_back_every_image_label_and_name(photos: Path, tmp_path: Path, output: OutputName) -> None:
    result = convert(photos, tmp_path / "out", output=output, shard_bytes=20_000)
    assert (result.stored, result.rejected, result.found) == (12, 0, 12)
    source = open_source(tmp_path / "out")
    assert source.kind == output
    assert source.class_names == ("a", "b", "c")
    assert [source.name(row) for row in range(12)] == [f"{c}/{n}.jpg" for c in "abc" for n in range(4)]
    for row in range(12):
        assert source.read(row) == (photos / source.name(row)).read_bytes()
    assert source.index["label"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert source.index["key"].tolist() == list(range(12))
    assert set(zip(source.index["width"].tolist(), source.index["height"].tolist(), strict=True)) == {(40, 30)}
    source.close()
    assert not (tmp_path / "out" / ".wellfed-work").exists()


@pytest.mark.parametrize("output", OUTPUTS)
def test_bytes_do_not_depend_on_workers_place_or_time(
    photos: Path, tmp_path: Path, output: OutputName, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "b" / "0.jpg").write_bytes(b"no image")
    convert(photos, tmp_path / "one", output=output, shard_bytes=20_000, workers=1)
    elsewhere = tmp_path / "elsewhere"
    photos.rename(elsewhere)
    os.utime(elsewhere / "a" / "0.jpg", (1, 1))
    monkeypatch.chdir(tmp_path)
    convert("elsewhere", "two", output=output, shard_bytes=20_000, workers=3)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_published_folders_hold_exactly_the_documented_files(photos: Path, tmp_path: Path) -> None:
    common = {"wellfed.json", "wellfed.index.npy", "wellfed.names.bin", "wellfed.names.npy", "rejects.jsonl"}
    convert(photos, tmp_path / "w", output="webdataset", shard_bytes=20_000)
    convert(photos, tmp_path / "l", output="lmdb")
    shards = {name for n in range(3) for name in (f"data-{n:06d}.tar", f"data-{n:06d}.idx")}
    assert set(os.listdir(tmp_path / "w")) == common | {"data.json"} | shards
    assert set(os.listdir(tmp_path / "l")) == common | {"data.mdb"}


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_sample_is_stored_or_rejected_with_its_reason(photos: Path, tmp_path: Path, output: OutputName) -> None:
    whole = (photos / "a" / "0.jpg").read_bytes()
    (photos / "a" / "0.jpg").write_bytes(b"")
    (photos / "a" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "b" / "notes.jpg").write_text("not an image")
    (photos / "c" / "link.jpg").symlink_to("nowhere.jpg")
    result = convert(photos, tmp_path / "out", output=output, shard_bytes=10_000)
    assert (result.stored, result.rejected, result.found) == (10, 4, 14)
    rejects = rejects_in(tmp_path / "out")
    assert [(each["key"], each["path"]) for each in rejects] == [
        (0, "a/0.jpg"),
        (1, "a/1.jpg"),
        (8, "b/notes.jpg"),
        (13, "c/link.jpg"),
    ]
    assert rejects[0]["reason"] == "zero bytes"
    assert "truncated" in str(rejects[1]["reason"])
    assert "image of a supported format" in str(rejects[2]["reason"])
    assert rejects[3]["reason"] == "broken symbolic link"
    assert str(tmp_path) not in (tmp_path / "out" / "rejects.jsonl").read_text()
    source = open_source(tmp_path / "out")
    assert source.index["key"].tolist() == [2, 3, 4, 5, 6, 7, 9, 10, 11, 12]
    source.close()
    assert verify(tmp_path / "out", deep=True).problems == ()


def test_shard_whose_samples_are_all_rejected_leaves_no_gap_in_the_shards(photos: Path, tmp_path: Path) -> None:
    for path in (photos / "b").iterdir():
        path.write_bytes(b"x" * 1500)
    convert(photos, tmp_path / "out", output="webdataset", shard_bytes=1)
    assert sorted(path.name for path in (tmp_path / "out").glob("*.tar")) == [f"data-{n:06d}.tar" for n in range(8)]
    assert verify(tmp_path / "out").problems == ()


def test_header_check_stores_what_only_decoding_finds(photos: Path, tmp_path: Path) -> None:
    whole = (photos / "a" / "1.jpg").read_bytes()
    (photos / "a" / "1.jpg").write_bytes(whole[:-200])
    assert convert(photos, tmp_path / "out", output="webdataset", check="header").rejected == 0
    report = verify(tmp_path / "out", deep=True)
    assert [(problem.file, problem.key) for problem in report.problems] == [("data-000000.tar", 1)]


def test_on_error_fail_stops_and_names_the_file(photos: Path, tmp_path: Path) -> None:
    (photos / "b" / "notes.jpg").write_text("not an image")
    with pytest.raises(SampleRejectedError, match=r"'b/notes\.jpg'"):
        convert(photos, tmp_path / "out", output="webdataset", on_error="fail")
    assert not (tmp_path / "out" / "wellfed.json").exists()


def test_extension_follows_content_and_notes_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    (root / "x").mkdir(parents=True)
    (root / "empty").mkdir()
    Image.new("L", (5, 4)).save(root / "x" / "1.jpeg", "JPEG")
    Image.new("RGBA", (5, 4)).save(root / "x" / "2.jpg", "PNG")
    Image.new("RGB", (5, 4)).save(root / "x" / "3.webp", "WEBP")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (5, 4)).save(root / "x" / "4.jpg", exif=exif)
    result = convert(root, tmp_path / "out", output="webdataset")
    assert dict(result.notes) == {
        "alpha": 1,
        "empty_class": 1,
        "exif_orientation": 1,
        "extension_differs": 1,
        "grayscale": 1,
    }
    source = open_source(tmp_path / "out")
    assert source.index["ext"].tolist() == [b"jpg", b"png", b"webp", b"jpg"]
    assert source.index["orientation"].tolist() == [1, 1, 1, 6]
    assert source.class_names == ("empty", "x")
    assert source.index["label"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("output", OUTPUTS)
def test_names_of_any_bytes_are_kept(tmp_path: Path, output: OutputName, make_jpeg: Callable[..., bytes]) -> None:
    names = [
        b"a b.c.jpg",
        b"line\nbreak.jpg",
        b"latin-\xe9.jpg",
        b'quote".jpg',
        b"x" * 200 + b".jpg",
        "ünï.JPG".encode(),
    ]
    root = tmp_path / "photos"
    (root / "c").mkdir(parents=True)
    for number, name in enumerate(names):
        with open(os.path.join(os.fsencode(root / "c"), name), "wb") as file:
            file.write(make_jpeg(number))
    with open(os.path.join(os.fsencode(root / "c"), b"zz-\xff.jpg"), "wb"):
        pass
    assert convert(root, tmp_path / "out", output=output).stored == 6
    source = open_source(tmp_path / "out")
    assert [os.fsencode(source.name(row)) for row in range(6)] == sorted(b"c/" + name for name in names)
    source.close()
    assert rejects_in(tmp_path / "out") == [{"key": 5, "name_base64": "Yy96ei3/LmpwZw==", "reason": "zero bytes"}]
    assert verify(tmp_path / "out").problems == ()


def test_file_that_changes_after_planning_is_rejected(photos: Path, tmp_path: Path) -> None:
    source = list_input(str(photos), InputOptions())
    (photos / "a" / "0.jpg").write_bytes(b"longer " * 1000)
    os.utime(photos / "a" / "1.jpg", (5, 5))
    (photos / "a" / "2.jpg").unlink()
    for row, reason in ((0, "must not change"), (1, "must not change"), (2, "No such file")):
        with pytest.raises(SampleRejectedError, match=reason):
            source.read(row)
    assert source.read(3).image == (photos / "a" / "3.jpg").read_bytes()


def test_source_of_nothing_but_rejects_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "photos" / "a").mkdir(parents=True)
    (tmp_path / "photos" / "a" / "x.jpg").write_text("text")
    with pytest.raises(UsageError, match="at least one image"):
        convert(tmp_path / "photos", tmp_path / "out", output="lmdb")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("make", ["missing", "file", "empty", "flat"])
def test_source_without_class_folders_writes_nothing(tmp_path: Path, make: str) -> None:
    root = tmp_path / "photos"
    if make == "file":
        root.write_text("x")
    elif make != "missing":
        root.mkdir()
    if make == "flat":
        Image.new("RGB", (2, 2)).save(root / "x.jpg")
    with pytest.raises(UsageError):
        convert(root, tmp_path / "out", output="webdataset")
    assert not (tmp_path / "out").exists()


def test_destinations_that_are_not_ours_are_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    (tmp_path / "plain").write_text("x")
    with pytest.raises(UsageError, match="must be writable"):
        convert(photos, tmp_path / "plain" / "out", output="webdataset")
    for name, overwrite in (("mine", False), ("mine", True), ("plain", True)):
        with pytest.raises(UsageError, match="destination must be"):
            convert(photos, tmp_path / name, output="webdataset", overwrite=overwrite)
    for inside in (photos, photos / "a" / "out", tmp_path):
        with pytest.raises(UsageError, match="must not lie inside each other"):
            convert(photos, inside, output="webdataset")
    assert os.listdir(tmp_path / "mine") == ["thesis.txt"]


def test_overwrite_replaces_a_dataset_and_only_then(photos: Path, tmp_path: Path, digests: Digests) -> None:
    out = tmp_path / "out"
    convert(photos, out, output="webdataset", shard_bytes=1)
    before = digests(out)
    with pytest.raises(UsageError, match="must not hold a dataset already"):
        convert(photos, out, output="lmdb")
    assert digests(out) == before
    convert(photos, out, output="lmdb", overwrite=True)
    convert(photos, tmp_path / "fresh", output="lmdb")
    assert digests(out) == digests(tmp_path / "fresh")


def test_arguments_out_of_range_are_refused(photos: Path, tmp_path: Path) -> None:
    for options in ({"output": "zarr"}, {"check": "no"}, {"on_error": "no"}, {"workers": 0}, {"shard_bytes": 0}):
        with pytest.raises(UsageError):
            convert(photos, tmp_path / "out", **{"output": "webdataset", **options})  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_unfinished_conversion_refuses_another_source_or_other_options(photos: Path, tmp_path: Path) -> None:
    (photos / "b" / "notes.jpg").write_text("not an image")
    out = tmp_path / "out"
    with pytest.raises(SampleRejectedError):
        convert(photos, out, output="webdataset", on_error="fail")
    with pytest.raises(UsageError, match="its own options"):
        convert(photos, out, output="lmdb")
    os.utime(photos / "a" / "0.jpg", (1, 1))
    with pytest.raises(SourceChangedError, match="must not change"):
        convert(photos, out, output="webdataset")
    assert convert(photos, out, output="webdataset", overwrite=True).rejected == 1


def test_manifest_says_how_the_dataset_was_made(photos: Path, tmp_path: Path) -> None:
    (photos / "a" / ".hidden").write_text("x")
    convert(photos, tmp_path / "out", output="webdataset", shard_bytes=1 << 20, check="header")
    manifest = Manifest.load(tmp_path / "out")
    assert manifest.options == {
        "check": "header",
        "image": "keep",
        "input": {"encoding": "png"},
        "shard_bytes": 1 << 20,
    }
    assert {name: manifest.source[name] for name in ("kind", "found", "rejected", "skipped")} == {
        "kind": "folder",
        "found": 12,
        "rejected": 0,
        "skipped": {"hidden": 1},
    }
    assert [(shard.name, shard.samples) for shard in manifest.shards] == [("data-000000.tar", 12)]
    index = open_index(tmp_path / "out" / INDEX_NAME, fields=("image", "class", "json"), samples=12)
    tar = (tmp_path / "out" / "data-000000.tar").read_bytes()
    start, size = int(index["offset_json"][5]), int(index["size_json"][5])
    assert json.load(io.BytesIO(tar[start : start + size])) == {"class": "b", "path": "b/1.jpg"}


def test_progress_ends_with_all_samples(photos: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    convert(photos, tmp_path / "out", output="lmdb", shard_bytes=20_000, progress=seen.append)
    last = {each.stage: (each.done, each.total, each.found_bad) for each in seen}
    assert last == {"pack": (12, 12, 0), "write": (12, 12, 0)}
