"""Each kind of damage is found and named."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest

from wellfed.converters import convert, verify
from wellfed.converters.progress import Progress
from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.formats import INDEX_NAME, open_index

Findings = set[tuple[str, int | None]]


def findings(folder: Path, *, deep: bool = False) -> Findings:
    return {(problem.file, problem.key) for problem in verify(folder, deep=deep).problems}


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def sign(folder: Path, name: str) -> None:
    """Make the manifest agree with a changed side file, as a careless tool might."""
    manifest = json.loads((folder / "wellfed.json").read_text())
    manifest["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "wellfed.json").write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory, module_photos: Path) -> Path:
    root = tmp_path_factory.mktemp("originals")
    convert(module_photos, root / "wds", output="webdataset", shard_bytes=20_000, workers=1)
    convert(module_photos, root / "lmdb", output="lmdb", workers=1)
    return root


@pytest.fixture
def wds(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / "wds", tmp_path / "wds"))


@pytest.fixture
def environment_folder(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / "lmdb", tmp_path / "lmdb"))


def index_of(folder: Path) -> np.ndarray:
    return np.array(open_index(folder / INDEX_NAME, fields=("image", "class", "json"), samples=12))


def test_whole_datasets_have_no_findings(wds: Path, environment_folder: Path) -> None:
    for folder, kind in ((wds, "webdataset"), (environment_folder, "lmdb")):
        report = verify(folder, deep=True)
        assert (report.ok, report.kind, report.samples, report.checked) == (True, kind, 12, 12)


def test_flipped_bit_names_shard_and_sample(wds: Path) -> None:
    row = index_of(wds)[6]
    shard = f"data-{int(row['shard']):06d}.tar"
    flip(wds / shard, int(row["offset_image"]) + 100)
    assert findings(wds) == {(shard, None), (shard, 6)}


def test_flipped_bit_in_a_tar_header_is_found(wds: Path) -> None:
    row = index_of(wds)[1]
    flip(wds / "data-000000.tar", int(row["offset_image"]) - 512)
    assert {("data-000000.tar", None), ("data-000000.tar", 1)} <= findings(wds)


def test_flipped_bit_in_lmdb_names_the_sample(environment_folder: Path, module_photos: Path) -> None:
    path = environment_folder / "data.mdb"
    image = (module_photos / "b" / "2.jpg").read_bytes()
    flip(path, path.read_bytes().index(image) + 500)
    assert findings(environment_folder) == {("data.mdb", None), ("data.mdb", 6)}


def test_lmdb_whose_pages_are_garbage_is_reported_and_does_not_kill(environment_folder: Path) -> None:
    path = environment_folder / "data.mdb"
    data = bytearray(path.read_bytes())
    data[2 * 4096 :] = b"\xa5" * (len(data) - 2 * 4096)
    path.write_bytes(data)
    assert ("data.mdb", None) in findings(environment_folder)


@pytest.mark.parametrize("keep", [0, 100, 4096, 20_000])
def test_cut_files_are_reported(wds: Path, environment_folder: Path, keep: int) -> None:
    for path in (wds / "data-000001.tar", environment_folder / "data.mdb"):
        path.write_bytes(path.read_bytes()[: min(keep, path.stat().st_size - 1)])
        assert (path.name, None) in findings(path.parent)


def test_lost_and_extra_files_are_named(wds: Path) -> None:
    (wds / "data-000001.tar").unlink()
    (wds / "data-000000.idx").unlink()
    (wds / "notes.txt").write_text("x")
    assert findings(wds) == {("data-000001.tar", None), ("data-000000.idx", None), ("notes.txt", None)}


def test_wrong_dali_line_names_the_sample_even_if_the_manifest_agrees(wds: Path) -> None:
    path = wds / "data-000000.idx"
    lines = path.read_text().split("\n")
    lines[2] = lines[2].replace("jpg ", "jpg 1", 1)
    path.write_text("\n".join(lines))
    assert findings(wds) == {("data-000000.idx", None), ("data-000000.idx", 1)}
    sign(wds, "data-000000.idx")
    assert findings(wds) == {("data-000000.idx", 1)}


def test_wrong_dali_count_is_found(wds: Path) -> None:
    path = wds / "data-000000.idx"
    path.write_text(path.read_text().replace("v1.2 ", "v1.2 1", 1))
    sign(wds, "data-000000.idx")
    assert findings(wds) == {("data-000000.idx", None)}


def test_wids_index_of_other_shards_is_found(wds: Path) -> None:
    index = json.loads((wds / "data.json").read_text())
    index["shardlist"][0]["nsamples"] += 1
    (wds / "data.json").write_text(json.dumps(index))
    sign(wds, "data.json")
    assert findings(wds) == {("data.json", None)}


def test_swapped_label_in_the_index_is_found(wds: Path) -> None:
    index = index_of(wds)
    index["label"][3] = 2
    np.save(wds / INDEX_NAME, index)
    sign(wds, INDEX_NAME)
    report = verify(wds)
    assert {(problem.file, problem.key) for problem in report.problems} == {("data-000000.tar", 3)}
    assert any("its cls is b'0', its label in the index 2" in problem.what for problem in report.problems)


def test_label_outside_the_classes_is_found(wds: Path) -> None:
    index = index_of(wds)
    index["label"][3] = 3
    np.save(wds / INDEX_NAME, index)
    sign(wds, INDEX_NAME)
    assert (INDEX_NAME, 3) in findings(wds)


def test_swapped_label_in_the_tar_is_found(wds: Path) -> None:
    row = index_of(wds)[0]
    path = wds / "data-000000.tar"
    data = bytearray(path.read_bytes())
    assert data[int(row["offset_class"]) : int(row["offset_class"]) + 1] == b"0"
    data[int(row["offset_class"])] = ord("1")
    path.write_bytes(data)
    assert findings(wds) == {("data-000000.tar", None), ("data-000000.tar", 0)}


def test_wrong_original_names_are_found(wds: Path) -> None:
    path = wds / "wellfed.names.bin"
    path.write_bytes(path.read_bytes().replace(b"a/1.jpg", b"a/9.jpg"))
    sign(wds, path.name)
    assert findings(wds) == {("data-000000.tar", 1)}


def test_rejects_that_do_not_add_up_are_found(wds: Path) -> None:
    path = wds / "rejects.jsonl"
    path.write_text('{"key": 3, "path": "a/3.jpg", "reason": "zero bytes"}\n')
    sign(wds, path.name)
    assert findings(wds) == {("rejects.jsonl", None), ("rejects.jsonl", 3)}
    path.write_text("{\n")
    sign(wds, path.name)
    assert findings(wds) == {("rejects.jsonl", None)}


def test_extra_and_missing_lmdb_entries_are_found(environment_folder: Path) -> None:
    environment = lmdb.open(str(environment_folder), map_size=1 << 24, lock=False)
    with environment, environment.begin(write=True) as transaction:
        transaction.put(b"0000000001.png", b"x")
        transaction.put(b"__len__", b"12")
        transaction.delete(b"0000000005.cls")
    environment.close()
    report = verify(environment_folder)
    words = " ".join(problem.what for problem in report.problems)
    assert "0000000001.png" in words
    assert "__len__" in words
    assert ("data.mdb", 5) in {(problem.file, problem.key) for problem in report.problems}


def test_damaged_index_and_manifest_are_findings(wds: Path) -> None:
    (wds / INDEX_NAME).write_bytes(b"x")
    assert (INDEX_NAME, None) in findings(wds)
    (wds / "wellfed.json").write_text("{")
    assert findings(wds) == {("wellfed.json", None)}


def test_deep_check_finds_an_index_that_contradicts_the_image(wds: Path) -> None:
    index = index_of(wds)
    index["width"][2] = 41
    np.save(wds / INDEX_NAME, index)
    sign(wds, INDEX_NAME)
    assert findings(wds) == set()
    assert findings(wds, deep=True) == {("data-000000.tar", 2)}


def test_folder_without_a_manifest_is_no_dataset(tmp_path: Path, module_photos: Path) -> None:
    for folder in (tmp_path / "missing", module_photos):
        with pytest.raises(UsageError, match=r"a folder with wellfed\.json"):
            verify(folder)


def test_progress_counts_samples_and_problems(wds: Path) -> None:
    flip(wds / "data-000000.tar", 600)
    seen: list[Progress] = []
    verify(wds, progress=seen.append)
    assert (seen[-1].stage, seen[-1].done, seen[-1].total, seen[-1].found_bad) == ("check", 12, 12, 2)


def test_report_is_json(wds: Path, make_jpeg: Callable[..., bytes]) -> None:
    (wds / "extra").touch()
    report = json.loads(json.dumps(verify(wds).to_dict()))
    assert report["ok"] is False
    assert report["problems"] == [{"file": "extra", "key": None, "what": "extra: the manifest does not list it"}]


def test_shards_are_compared_even_where_the_index_is_unreadable(wds: Path, environment_folder: Path) -> None:
    for folder, shard in ((wds, "data-000001.tar"), (environment_folder, "data.mdb")):
        (folder / INDEX_NAME).write_bytes(b"x")
        flip(folder / shard, 10_000)
        assert findings(folder) == {(INDEX_NAME, None), (shard, None)}


@pytest.mark.parametrize("column", ["offset_image", "size_image", "size_json", "shard", "key"])
def test_an_index_with_any_high_bit_flipped_is_found_without_harm(wds: Path, column: str) -> None:
    # given one row that points far outside, and a manifest that agrees
    whole = index_of(wds)
    for row in (0, 11):
        index = whole.copy()
        index[column][row] ^= 1 << (31 if column == "shard" else 62)
        np.save(wds / INDEX_NAME, index)
        sign(wds, INDEX_NAME)
        # then it is a finding, not a crash or an attempt to read so much
        assert findings(wds) != set()


def test_a_key_that_was_never_planned_is_found(wds: Path) -> None:
    index = index_of(wds)
    index["key"][11] = 12
    np.save(wds / INDEX_NAME, index)
    sign(wds, INDEX_NAME)
    assert (INDEX_NAME, None) in findings(wds)


def test_two_swapped_labels_are_found(wds: Path, environment_folder: Path) -> None:
    for folder in (wds, environment_folder):
        index = index_of(folder)
        index["label"][[0, 11]] = index["label"][[11, 0]]
        np.save(folder / INDEX_NAME, index)
        sign(folder, INDEX_NAME)
        assert {key for _, key in findings(folder)} == {0, 11}


def test_a_link_among_the_members_is_found(wds: Path) -> None:
    with tarfile.open(wds / "data-000000.tar", "a") as tar:
        link = tarfile.TarInfo("0000000000.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    words = [problem.what for problem in verify(wds).problems]
    assert "extra member '0000000000.txt'" in words


@pytest.mark.parametrize("kind", ["wds", "lmdb"])
def test_a_wrong_line_of_our_index_names_its_sample(originals: Path, tmp_path: Path, kind: str) -> None:
    # given two rows of our index that each point at the other's image, and a manifest that agrees
    folder = Path(shutil.copytree(originals / kind, tmp_path / kind))
    index = index_of(folder)
    for column in ("offset_image", "size_image", "xxh3_image"):
        index[column][[2, 3]] = index[column][[3, 2]]
    np.save(folder / INDEX_NAME, index)
    sign(folder, INDEX_NAME)
    assert {key for _, key in findings(folder)} == {2, 3}


def test_lost_and_extra_files_of_lmdb_are_named(environment_folder: Path) -> None:
    (environment_folder / "data.mdb").unlink()
    (environment_folder / "wellfed.index.npy.bak").write_text("x")
    assert findings(environment_folder) == {("data.mdb", None), ("wellfed.index.npy.bak", None)}


def test_a_member_of_a_size_that_no_file_has_is_a_finding(wds: Path) -> None:
    # given a shard whose first header says 2**86 bytes in GNU's base-256 form, with the right checksum
    shard = next(wds.rglob("*.tar"))
    content = bytearray(shard.read_bytes())
    content[124:136] = bytes([0x80]) + (1 << 86).to_bytes(11, "big")
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    shard.write_bytes(content)

    found = str(verify(wds).problems)
    assert "it must be a tar" in found
