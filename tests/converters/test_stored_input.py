"""LMDB and WebDataset into each other: the same samples, keys, labels, names and rejects, to the byte."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest

from wellfed.converters import convert, verify
from wellfed.converters.inputs import InputOptions, list_input
from wellfed.converters.reindex import index_shards
from wellfed.pipeline.errors import DamagedDatasetError, UsageError
from wellfed.pipeline.formats import INDEX_NAME, Manifest, open_source

UNTOUCHED = (INDEX_NAME, "wellfed.names.bin", "wellfed.names.npy", "rejects.jsonl")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory, module_photos: Path) -> Path:
    """`photos` with two files that are no images and a name that is not UTF-8, as `wds` in small shards and `lmdb`."""

    root = tmp_path_factory.mktemp("stored")
    photos = Path(shutil.copytree(module_photos, root / "photos"))
    (photos / "a" / "00.jpg").write_text("no image")
    (photos / "c" / "9.jpg").write_bytes(b"")
    os.rename(photos / "b" / "2.jpg", bytes(photos / "b") + b"/\xff 2.jpg")
    convert(photos, root / "wds", output="webdataset", shard_bytes=20_000, workers=1)
    convert(root / "wds", root / "lmdb", output="lmdb", shard_bytes=20_000, workers=1)
    return root


def members(folder: Path) -> dict[str, bytes]:
    """Every member of every tar, by Python's own reader."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                found[member.name] = file.read()
    return found


def entries(folder: Path) -> dict[str, bytes]:
    """Every entry of the environment, by plain lmdb."""
    with lmdb.open(str(folder), readonly=True, lock=False) as environment, environment.begin() as transaction:
        return {key.decode(): value for key, value in transaction.cursor()}


def test_lmdb_made_of_webdataset_holds_the_same_entries(originals: Path) -> None:
    # given 14 files, the first and the last of which were rejected
    assert [Manifest.load(originals / name).source["rejected"] for name in ("wds", "lmdb")] == [2, 2]
    # then every member, key and all, is an entry
    assert entries(originals / "lmdb") == members(originals / "wds")
    for name in UNTOUCHED[1:]:
        assert (originals / "lmdb" / name).read_bytes() == (originals / "wds" / name).read_bytes()
    assert verify(originals / "lmdb", deep=True).problems == ()


def test_there_and_back_again_gives_the_same_shards_and_index(originals: Path, tmp_path: Path) -> None:
    convert(originals / "lmdb", tmp_path / "back", output="webdataset", shard_bytes=20_000, workers=1)
    before, after = Manifest.load(originals / "wds"), Manifest.load(tmp_path / "back")
    assert (after.shards, after.class_names, after.samples, after.fingerprint) == (
        before.shards,
        before.class_names,
        before.samples,
        before.fingerprint,
    )
    assert after.notes == before.notes
    for shard in before.shards:
        assert (tmp_path / "back" / shard.name).read_bytes() == (originals / "wds" / shard.name).read_bytes()
    for name in UNTOUCHED:
        assert (tmp_path / "back" / name).read_bytes() == (originals / "wds" / name).read_bytes()


def test_both_kinds_have_one_fingerprint_as_a_source(originals: Path) -> None:
    listed = [list_input(str(originals / name), InputOptions()) for name in ("wds", "lmdb")]
    assert [each.kind for each in listed] == ["stored", "stored"]
    assert listed[0].fingerprint == listed[1].fingerprint


def test_rejected_samples_keep_their_names_and_reasons(originals: Path) -> None:
    source = list_input(str(originals / "wds"), InputOptions())
    assert len(source) == 14
    assert [source.name(row) for row in source.refused] == [b"a/00.jpg", b"c/9.jpg"]
    assert source.name(8) == b"b/\xff 2.jpg"


def test_changed_bytes_are_rejected_and_a_lost_shard_is_an_error(originals: Path, tmp_path: Path) -> None:

    folder = Path(shutil.copytree(originals / "wds", tmp_path / "wds"))
    row = open_source(folder).index[5]
    path = folder / f"data-{int(row['shard']):06d}.tar"
    data = bytearray(path.read_bytes())
    data[int(row["offset_image"]) + 20] ^= 1
    path.write_bytes(data)
    result = convert(folder, tmp_path / "lmdb", output="lmdb", workers=1)
    assert (result.stored, result.rejected) == (11, 3)
    assert "bytes of its image must be those that were stored" in (tmp_path / "lmdb" / "rejects.jsonl").read_text()
    path.unlink()
    with pytest.raises(DamagedDatasetError, match=path.name):
        list_input(str(folder), InputOptions())


def test_given_classes_take_the_place_of_the_datasets(originals: Path) -> None:
    source = list_input(str(originals / "wds"), InputOptions(classes=("c", "b")))
    assert source.class_names == ("c", "b")
    assert np.array(source.labels).tolist() == [-1, -1, -1, -1, -1, 1, 1, 1, 1, 0, 0, 0, 0, -1]


def test_options_that_choose_labels_are_refused(originals: Path) -> None:
    with pytest.raises(UsageError, match="--label-regex is for inputs of the kinds"):
        list_input(str(originals / "wds"), InputOptions(label_regex="(a)"))


def test_every_type_of_field_survives_both_ways(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> None:
    # given a tar whose samples have a text, an array, bytes, and a json of their own with a number
    array = io.BytesIO()
    np.save(array, np.arange(6, dtype=np.float32).reshape(2, 3))
    (tmp_path / "foreign").mkdir()
    with tarfile.open(tmp_path / "foreign" / "x.tar", "w") as tar:
        for number in range(3):
            values = {
                "jpg": make_jpeg(number),
                "cls": b"%d" % (number % 2),
                "txt": "größer".encode(),
                "npy": array.getvalue(),
                "bin": bytes([0, number]),
                "json": json.dumps({"Score": number / 2, "more": [1, None]}).encode(),
            }
            for extension, value in values.items():
                member = tarfile.TarInfo(f"k{number}.{extension}")
                member.size = len(value)
                tar.addfile(member, io.BytesIO(value))
    convert(tmp_path / "foreign", tmp_path / "wds", output="webdataset", workers=1)
    # when it goes to LMDB and back
    convert(tmp_path / "wds", tmp_path / "lmdb", output="lmdb", workers=1)
    convert(tmp_path / "lmdb", tmp_path / "back", output="webdataset", workers=1)
    # then every field is there, under its type, to the byte
    before, after = Manifest.load(tmp_path / "wds"), Manifest.load(tmp_path / "back")
    assert len(before.fields) > 5
    assert (after.fields, after.field_types, after.shards) == (before.fields, before.field_types, before.shards)
    assert entries(tmp_path / "lmdb") == members(tmp_path / "wds")
    assert entries(tmp_path / "lmdb")["0000000001.txt"].decode() == "größer"


def test_tars_that_were_indexed_in_place_are_read_as_tars(originals: Path, tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    shutil.copy(originals / "wds" / "data-000000.tar", tmp_path / "tars")
    index_shards(str(tmp_path / "tars"), workers=1)
    # their json members are another tool's, and would be lost as a dataset of ours
    with pytest.raises(UsageError, match=r"read as tars.*Give --input tar"):
        list_input(str(tmp_path / "tars"), InputOptions())
    with tarfile.open(tmp_path / "tars" / "data-000000.tar") as tar:
        images = [name for name in tar.getnames() if name.endswith(".jpg")]
    assert len(images) > 1
    assert len(list_input(str(tmp_path / "tars"), InputOptions(kind="tar"))) == len(images)
