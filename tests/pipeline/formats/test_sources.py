"""One contract for every kind of Source, then what each kind owes on damaged data."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from wellfed.pipeline.errors import DamagedDatasetError, SchemaVersionError, UsageError
from wellfed.pipeline.formats import Mix, RepeatedSource, Source, index_dtype, open_source
from wellfed.pipeline.formats.lmdb import check_mappable
from wellfed.pipeline.formats.reading import ReadMemory, read_rows


def _edit(directory: Path, **changes: Any) -> None:
    path = directory / "wellfed.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_every_kind_gives_the_same_rows(any_folder: Path, samples: list) -> None:
    source = open_source(any_folder)
    assert isinstance(source, Source)
    assert len(source) == 3
    assert source.class_names == ("cat", "dog")
    assert source.location == str(any_folder)
    assert source.index.dtype == index_dtype(["image"])
    assert source.index["key"].tolist() == [0, 2, 3]
    assert source.index["label"].tolist() == [0, 0, 1]
    assert source.index["ext"].tolist() == [b"jpg", b"png", b"jpg"]
    for row, (_, _, _, name, image) in enumerate(samples):
        assert source.read(row) == image
        assert source.name(row).encode("utf-8", "surrogateescape") == name
    source.close()
    source.close()
    assert source.read(1) == samples[1][4]


@pytest.mark.parametrize("row", [-1, 3, 1 << 40])
def test_a_row_outside_the_dataset_is_an_index_error(any_folder: Path, row: int) -> None:
    source = open_source(any_folder)
    with pytest.raises(IndexError):
        source.read(row)
    with pytest.raises(IndexError):
        source.name(row)


def test_many_rows_are_those_of_one_after_the_other(any_folder: Path, samples: list) -> None:
    source = RepeatedSource(open_source(any_folder), 2)
    rows = np.array([2, 0, 5, 1, 2, 4])
    assert [bytes(data) for data in read_rows(source, rows)] == [samples[row % 3][4] for row in rows]
    assert list(read_rows(source, rows[:0])) == []

    # and so from a mix, whose rows 3 to 5 are the second dataset's
    mix = Mix([(any_folder, 1), (RepeatedSource(open_source(any_folder), 1), 1)])
    assert [bytes(data) for data in read_rows(mix, rows)] == [samples[row % 3][4] for row in rows]
    with pytest.raises(IndexError):
        read_rows(mix, np.array([0, 6]))
    mix.close()


@pytest.mark.parametrize("rows", [[0, 3], [-1, 2], [1 << 40]])
def test_many_rows_of_which_one_is_outside_are_an_index_error(any_folder: Path, rows: list[int]) -> None:
    for source in (open_source(any_folder), RepeatedSource(open_source(any_folder), 1)):
        with pytest.raises(IndexError):
            read_rows(source, np.array(rows))


def test_memory_that_rows_were_read_into_is_used_again_once_no_view_of_it_is_left(
    webdataset_folder: Path, samples: list
) -> None:
    # given one view that is kept of each of many reads
    source = open_source(webdataset_folder)
    kept = [read_rows(source, np.array([row, 2 - row]))[0] for row in (0, 1, 2) for _ in range(20)]

    # then no later read wrote over it
    assert [bytes(data) for data in kept] == [samples[row][4] for row in (0, 1, 2) for _ in range(20)]

    # and what nobody holds is lent again
    memory = ReadMemory()
    first = memory.take(100_000)
    address = np.frombuffer(first, dtype=np.uint8).ctypes.data
    part = first[10:20]
    del first
    assert np.frombuffer(memory.take(100_000), dtype=np.uint8).ctypes.data != address
    del part
    assert address in [np.frombuffer(memory.take(120_000), dtype=np.uint8).ctypes.data for _ in range(2)]


def test_numpy_rows_are_rows(any_folder: Path, samples: list) -> None:
    assert open_source(any_folder).read(np.int64(2)) == samples[2][4]  # type: ignore[arg-type]


def test_pickles_small_and_reads_in_a_fresh_process(any_folder: Path, samples: list, tmp_path: Path) -> None:
    source = open_source(any_folder)
    source.read(0)
    pickled = pickle.dumps(source)
    assert len(pickled) < 1000
    code = (
        "import pickle,sys; s = pickle.load(sys.stdin.buffer); sys.stdout.buffer.write(s.read(2) + s.name(2).encode())"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        input=pickled,
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )
    assert child.stdout == samples[2][4] + b"dog/c.jpg", child.stderr.decode()


def test_a_relative_path_survives_a_change_of_folder(
    any_folder: Path, samples: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(any_folder.parent)
    source = open_source(any_folder.name)
    monkeypatch.chdir("/")
    assert source.location == any_folder.name
    assert source.read(0) == samples[0][4]
    assert pickle.loads(pickle.dumps(source)).read(0) == samples[0][4]


def test_a_forked_child_reads_after_its_parent(any_folder: Path, samples: list, in_forked_child: Callable) -> None:
    source, other = open_source(any_folder), open_source(any_folder)
    assert source.read(0) == other.read(0) == samples[0][4]
    assert in_forked_child(lambda: source.read(2) + other.read(1)) == samples[2][4] + samples[1][4]
    assert in_forked_child(lambda: in_forked_child(lambda: other.read(2))) == samples[2][4]
    assert source.read(1) == samples[1][4]


def test_a_fork_while_another_thread_reads(any_folder: Path, samples: list, in_forked_child: Callable) -> None:
    source = open_source(any_folder)
    with ThreadPoolExecutor(2) as pool:
        reads = pool.map(source.read, [0, 1, 2] * 500)
        for _ in range(10):
            assert in_forked_child(lambda: source.read(1)) == samples[1][4]
        assert list(reads) == [sample[4] for sample in samples] * 500


def test_threads_read_at_once(any_folder: Path, samples: list) -> None:
    source = open_source(any_folder)
    rows = [0, 1, 2, 2, 1, 0] * 100
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(source.read, rows)) == [samples[row][4] for row in rows]
    source.close()


def test_closing_one_of_two_sources_leaves_the_other_reading(any_folder: Path, samples: list) -> None:
    first, second = open_source(any_folder), open_source(any_folder)
    assert first.read(0) == second.read(0)
    first.close()
    assert second.read(2) == samples[2][4]


def test_a_copy_elsewhere_has_the_same_fingerprint_and_a_change_another(any_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(any_folder, tmp_path / "elsewhere"))
    source, same = open_source(any_folder), open_source(copy)
    assert source.fingerprint == same.fingerprint
    if source.kind == "folder":
        (copy / "dog" / "c.jpg").write_bytes(b"other")
    else:
        _edit(copy, class_names=["cat", "wolf"])
    assert open_source(copy).fingerprint != source.fingerprint


def test_a_dataset_replaced_under_a_worker_is_an_error(any_folder: Path) -> None:
    source = open_source(any_folder)
    pickled = pickle.dumps(source)
    if source.kind == "folder":
        (any_folder / "dog" / "new.jpg").write_bytes(b"x")
    else:
        _edit(any_folder, class_names=["cat", "wolf"])
    with pytest.raises(DamagedDatasetError, match="must not change"):
        pickle.loads(pickled)


def test_the_documented_fingerprint_is_over_shards_and_class_names(webdataset_folder: Path) -> None:
    shards = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(webdataset_folder.glob("*.tar"))]
    names = hashlib.sha256(b"3:cat3:dog").digest()
    expected = hashlib.sha256(f"{shards[0]}\n{shards[1]}\n".encode() + names).hexdigest()
    assert open_source(webdataset_folder).fingerprint == expected


# ---- damage


@pytest.mark.parametrize("damage", ["cut", "longer", "missing", "folder"])
def test_a_damaged_shard_names_shard_and_row(stored_folder: Path, damage: str) -> None:
    source = open_source(stored_folder)
    shard = "data.mdb" if source.kind == "lmdb" else "pets-000001.tar"
    path = stored_folder / shard
    if damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif damage == "longer":
        path.write_bytes(path.read_bytes() + b"\0" * 512)
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()
    with pytest.raises(DamagedDatasetError, match="row 2") as caught:
        source.read(2)
    assert shard in str(caught.value)
    assert str(stored_folder) in str(caught.value)
    with pytest.raises(DamagedDatasetError, match="row 2") as caught:
        read_rows(source, np.array([2, 0]))
    assert shard in str(caught.value)


def test_a_shard_cut_while_open_names_shard_and_row(webdataset_folder: Path) -> None:
    source = open_source(webdataset_folder)
    source.read(2)
    os.truncate(webdataset_folder / "pets-000001.tar", 600)
    with pytest.raises(DamagedDatasetError, match=r"pets-000001\.tar.*row 2"):
        source.read(2)
    with pytest.raises(DamagedDatasetError, match=r"pets-000001\.tar.*row 2"):
        read_rows(source, np.array([0, 2]))


def test_a_truncated_lmdb_whose_manifest_agrees_is_found_before_mapping(lmdb_folder: Path) -> None:
    path = lmdb_folder / "data.mdb"
    os.truncate(path, 8192)
    shard = {"name": "data.mdb", "samples": 3, "size": 8192, "sha256": "0" * 64}
    _edit(lmdb_folder, shards=[shard])
    source = open_source(lmdb_folder)
    with pytest.raises(DamagedDatasetError, match=r"data\.mdb.*row 0") as caught:
        source.read(0)
    assert "pages of 4096 bytes" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b"garbage" * 2000, bytes(range(7, 107))])
def test_a_file_that_is_no_lmdb_is_never_mapped(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.mdb"
    path.write_bytes(content)
    with pytest.raises(DamagedDatasetError, match="must be an LMDB data file"):
        check_mappable(path)


def test_a_whole_lmdb_is_mappable_up_to_its_last_page(lmdb_folder: Path) -> None:
    path = lmdb_folder / "data.mdb"
    check_mappable(path)
    environment = lmdb.open(str(lmdb_folder), readonly=True, lock=False)
    last_page = environment.info()["last_pgno"]
    environment.close()
    os.truncate(path, (last_page + 1) * 4096)
    check_mappable(path)
    os.truncate(path, (last_page + 1) * 4096 - 1)
    with pytest.raises(DamagedDatasetError, match=f"must hold the {last_page + 1} pages"):
        check_mappable(path)


def test_a_key_missing_from_an_lmdb_names_it(lmdb_folder: Path) -> None:
    index = np.load(lmdb_folder / "wellfed.index.npy")
    index["key"][1] = 1
    np.save(lmdb_folder / "wellfed.index.npy", index)
    with pytest.raises(DamagedDatasetError, match=r"0000000001\.png"):
        open_source(lmdb_folder).read(1)


def test_an_lmdb_open_elsewhere_in_the_process_says_so(lmdb_folder: Path) -> None:
    environment = lmdb.open(str(lmdb_folder), readonly=True, lock=False)
    source = open_source(lmdb_folder)
    with pytest.raises(UsageError, match="only once"):
        source.read(0)
    environment.close()
    assert len(source.read(0)) == 1500


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("label", 2),
        ("label", -1),
        ("shard", 2),
        ("offset_image", 1 << 20),
        ("size_image", 1 << 40),
        ("offset_image", (1 << 64) - 1),
        ("size_image", (1 << 64) - 1),
    ],
)
def test_an_index_that_points_outside_is_refused(webdataset_folder: Path, column: str, value: int) -> None:
    index = np.load(webdataset_folder / "wellfed.index.npy")
    index[column][1] = value
    np.save(webdataset_folder / "wellfed.index.npy", index)
    with pytest.raises(DamagedDatasetError, match="row 1 does not"):
        open_source(webdataset_folder)


def test_an_index_cut_short_missing_or_unordered_is_refused(stored_folder: Path) -> None:
    path = stored_folder / "wellfed.index.npy"
    whole = path.read_bytes()
    for size in (0, 50, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedDatasetError, match=r"wellfed\.index\.npy"):
            open_source(stored_folder)
    path.unlink()
    with pytest.raises(DamagedDatasetError, match=r"wellfed\.index\.npy"):
        open_source(stored_folder)
    path.write_bytes(whole)
    index = np.load(path)
    for rows in (index[::-1], index[:2], np.zeros(3), index["key"]):
        np.save(path, rows)
        with pytest.raises(DamagedDatasetError, match=r"wellfed\.index\.npy"):
            open_source(stored_folder)


def test_names_cut_short_are_refused_when_asked_for(stored_folder: Path) -> None:
    blob = stored_folder / "wellfed.names.bin"
    blob.write_bytes(blob.read_bytes()[:-1])
    source = open_source(stored_folder)
    assert source.read(0) == b"first" * 300
    with pytest.raises(DamagedDatasetError, match="names"):
        source.name(0)


def test_a_newer_schema_says_upgrade(stored_folder: Path) -> None:
    _edit(stored_folder, schema_version=2)
    with pytest.raises(SchemaVersionError, match="Upgrade wellfed"):
        open_source(stored_folder)


def test_the_kind_decides_the_reader_and_a_wrong_one_is_refused(lmdb_folder: Path) -> None:
    _edit(lmdb_folder, shards=[{"name": "other.mdb", "samples": 3, "size": 9000, "sha256": "0" * 64}])
    with pytest.raises(DamagedDatasetError, match=r"data\.mdb"):
        open_source(lmdb_folder)


def test_a_manifest_of_other_fields_than_the_index_is_refused(stored_folder: Path) -> None:
    _edit(stored_folder, fields=["json"])
    with pytest.raises(DamagedDatasetError, match="of the manifest's fields"):
        open_source(stored_folder)


def test_shards_without_a_manifest_say_what_to_do(stored_folder: Path) -> None:
    (stored_folder / "wellfed.json").unlink()
    with pytest.raises(UsageError, match="running it again"):
        open_source(stored_folder)


def test_a_dangling_manifest_is_damage_not_a_folder_of_images(stored_folder: Path) -> None:
    (stored_folder / "wellfed.json").unlink()
    (stored_folder / "wellfed.json").symlink_to("nowhere")
    with pytest.raises(DamagedDatasetError, match=r"wellfed\.json"):
        open_source(stored_folder)


@pytest.mark.parametrize("path", ["", "a\0b", "/does/not/exist", "nowhere://bucket/key"])
def test_a_path_that_is_none_is_a_usage_error(path: str) -> None:
    with pytest.raises(UsageError):
        open_source(path)


def test_a_file_of_a_folder_that_changed_names_it(pets_folder: Path) -> None:
    source = open_source(pets_folder)
    (pets_folder / "dog" / "c.jpg").write_bytes(b"short")
    with pytest.raises(DamagedDatasetError, match=r"dog/c\.jpg.*row 2"):
        source.read(2)
    (pets_folder / "dog" / "c.jpg").unlink()
    with pytest.raises(DamagedDatasetError, match="No such file"):
        source.read(2)


def test_a_folder_with_nothing_readable_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.jpg").touch()
    with pytest.raises(UsageError, match="zero bytes"):
        open_source(tmp_path)


def test_more_shards_than_may_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wellfed.pipeline.formats import webdataset

    monkeypatch.setattr(webdataset, "OPEN_SHARDS", 2)
    shards = webdataset._OpenShards()
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_text(path.name)

    def opened(number: int) -> webdataset.OpenFile:
        return webdataset.OpenFile(paths[number])

    held = shards.file(0, opened)
    for number in range(1, 5):
        shards.file(number, opened)
    assert len(shards._files) == 2
    # The first was let go of, but stays open for as long as somebody reads from it.
    assert os.pread(held.descriptor, 9, 0) == b"0"
    descriptor = held.descriptor
    del held
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
