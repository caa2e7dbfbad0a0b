"""`wellfed index`: shards of other tools load where they lie, untouched, and verify finds damage in them."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import webdataset
import wids

from wellfed.converters import reindex, verify
from wellfed.converters.inputs import InputOptions
from wellfed.converters.reindex import index_shards
from wellfed.pipeline.cli.main import main
from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.formats import Manifest, open_source
from wellfed.pipeline.formats.summary import summarize
from wellfed.pipeline.hardware import Fact

Entry = tuple[str, bytes]
MakeJpeg = Callable[..., bytes]


@pytest.fixture(autouse=True)
def one_core_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reindex, "usable_cores", lambda: Fact("usable cores", 1, "cores", "test"))


def write_tar(path: Path, entries: list[Entry]) -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in entries:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture
def shards(tmp_path: Path, make_jpeg: MakeJpeg) -> Path:
    """Two shards of three samples, names in the safe intersection; labels 0 and 2."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for shard in range(2):
        entries: list[Entry] = []
        for number in range(3):
            stem = f"{shard}-{number}"
            label = b"2" if number else b"0"
            entries += [(f"{stem}.jpg", make_jpeg(10 * shard + number)), (f"{stem}.cls", label), (f"{stem}.txt", b"hi")]
        write_tar(folder / f"part-{shard}.tar", entries)
    return folder


def digests_of_tars(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.tar*")}


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def problems(folder: Path) -> list[str]:
    return [str(problem) for problem in verify(folder, deep=True, workers=1).problems]


def test_shards_load_untouched(shards: Path, make_jpeg: MakeJpeg) -> None:
    before = digests_of_tars(shards)
    result = index_shards(str(shards / "part-{0..1}.tar"))
    assert (result.stored, result.rejected, result.found) == (6, 0, 6)
    assert (result.shards, result.dali_indexes, result.wids_index) == (2, 2, True)
    assert digests_of_tars(shards) == before
    source = open_source(shards)
    assert source.kind == "webdataset"
    assert [source.read(row) for row in range(6)] == [make_jpeg(seed) for seed in (0, 1, 2, 10, 11, 12)]
    assert source.index["label"].tolist() == [0, 2, 2, 0, 2, 2]
    assert source.class_names == ("0", "1", "2")
    assert source.name(4) == "1-1.jpg"
    manifest = Manifest.load(shards)
    assert manifest.options["indexed_in_place"] is True
    assert manifest.fields == ("image", "class", "text")
    summary = summarize(source)
    assert (summary["kind"], summary["samples"], summary["extensions"]) == ("webdataset", 6, {"jpg": 6})
    assert problems(shards) == []
    assert not (shards / ".wellfed-index").exists()


def test_dali_index_says_where_members_are(shards: Path) -> None:
    index_shards(str(shards))
    lines = (shards / "part-1.idx").read_text().splitlines()
    with tarfile.open(shards / "part-1.tar") as tar:
        members = [f"{m.name.partition('.')[2]} {m.offset_data} {m.size} {m.name}" for m in tar]
    assert lines == ["v1.2 3", *(" ".join(members[start : start + 3]) for start in (0, 3, 6))]


def test_wids_and_webdataset_read_the_same(shards: Path, tmp_path: Path) -> None:
    index_shards(str(shards))
    source = open_source(shards)
    own = [(source.read(row), int(source.index["label"][row])) for row in range(len(source))]
    dataset = wids.ShardListDataset(str(shards / "data.json"), cache_dir=str(tmp_path / "cache"), keep=True)
    dataset.transformations = []
    found = [(sample[".jpg"].read(), int(sample[".cls"].read())) for sample in map(dataset.__getitem__, range(6))]
    assert found == own
    stream = webdataset.WebDataset([str(shards / f"part-{shard}.tar") for shard in range(2)], shardshuffle=False)
    assert [(sample["jpg"], int(sample["cls"])) for sample in stream] == own


@pytest.mark.parametrize("name", ["with space", "sub/dir", "umlaut-ä", "d" * 90 + "/" + "n" * 90])
def test_names_read_otherwise_elsewhere_get_no_index(tmp_path: Path, make_jpeg: MakeJpeg, name: str) -> None:
    write_tar(tmp_path / "a.tar", [(f"{name}.jpg", make_jpeg(1)), (f"{name}.cls", b"0")])
    result = index_shards(str(tmp_path / "a.tar"))
    assert (result.stored, result.dali_indexes, result.wids_index) == (1, 0, False)
    assert problems(tmp_path) == []


def test_capital_extensions_get_no_index_of_theirs(tmp_path: Path, make_jpeg: MakeJpeg) -> None:
    write_tar(tmp_path / "a.tar", [("a.jpg", make_jpeg(1)), ("a.CLS", b"0")])
    assert index_shards(str(tmp_path / "a.tar")).dali_indexes == 0
    assert problems(tmp_path) == []


def test_a_rejected_sample_leaves_a_gap_and_no_wids_index(shards: Path) -> None:
    write_tar(shards / "part-2.tar", [("2-0.jpg", b"no image"), ("2-0.cls", b"1"), ("2-0.txt", b"hi")])
    with pytest.raises(SystemExit) as ended:
        main(["index", str(shards)])
    assert ended.value.code == 3
    assert "2-0.jpg" in (shards / "rejects.jsonl").read_text()
    manifest = Manifest.load(shards)
    assert (manifest.samples, manifest.source["rejected"], manifest.source["found"]) == (6, 1, 7)
    assert "data.json" not in manifest.files
    assert problems(shards) == []


def test_class_folders_without_label_members(tmp_path: Path, make_jpeg: MakeJpeg) -> None:
    write_tar(tmp_path / "a.tar", [("dog/1.jpg", make_jpeg(1)), ("cat/1.jpg", make_jpeg(2))])
    index_shards(str(tmp_path / "a.tar"))
    source = open_source(tmp_path)
    assert (source.class_names, source.index["label"].tolist()) == (("cat", "dog"), [1, 0])
    assert problems(tmp_path) == []


def test_compressed_tars_are_refused_with_the_command(shards: Path) -> None:
    tar = shards / "part-1.tar"
    (shards / "part-1.tar.gz").write_bytes(gzip.compress(tar.read_bytes()))
    tar.unlink()
    with pytest.raises(UsageError) as refused:
        index_shards(str(shards), options=InputOptions(label_column="cls"))
    assert "part-1.tar.gz" in str(refused.value)
    assert f"wellfed convert {shards} DST --format webdataset --label-column cls" in str(refused.value)
    assert sorted(os.listdir(shards)) == ["part-0.tar", "part-1.tar.gz"]


def test_members_apart_are_refused_with_names_and_the_command(tmp_path: Path, make_jpeg: MakeJpeg) -> None:
    write_tar(tmp_path / "a.tar", [("1.jpg", make_jpeg(1)), ("2.jpg", make_jpeg(2)), ("1.cls", b"0"), ("2.cls", b"0")])
    with pytest.raises(UsageError) as refused:
        index_shards(str(tmp_path / "a.tar"))
    assert "2 samples apart, such as 1.jpg, 2.jpg" in str(refused.value)
    assert f"wellfed convert {tmp_path / 'a.tar'} DST --format webdataset" in str(refused.value)
    assert os.listdir(tmp_path) == ["a.tar"]


def test_other_refusals(shards: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(shards, other)
    with pytest.raises(UsageError, match="one folder"):
        index_shards(f"{shards}/part-0.tar::{other}/part-1.tar")
    (other / "rejects.jsonl").write_text("of somebody else")
    with pytest.raises(UsageError, match="files of others"):
        index_shards(str(other))
    index_shards(str(shards))
    with pytest.raises(UsageError, match="--overwrite"):
        index_shards(str(shards))


def test_indexes_of_others_are_kept(shards: Path) -> None:
    (shards / "part-0.idx").write_text("theirs")
    result = index_shards(str(shards / "part-{0..1}.tar"))
    assert (result.dali_indexes, result.notes["idx_of_others_kept"]) == (1, 1)
    assert (shards / "part-0.idx").read_text() == "theirs"
    assert problems(shards) == []


def test_indexing_again_gives_the_same_files(shards: Path, digests: Callable[[Path], dict[str, str]]) -> None:
    index_shards(str(shards))
    first = digests(shards)
    index_shards(str(shards), overwrite=True)
    assert digests(shards) == first


def test_a_publication_cut_short_is_ended_by_the_next_run(
    shards: Path, digests: Callable[[Path], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shards.parent / "whole"
    shutil.copytree(shards, copy)
    index_shards(str(copy))
    moved = []

    def replace(source: Path, target: Path) -> None:
        if Path(target).parent == shards:
            moved.append(target)
            if len(moved) == 3:
                raise KeyboardInterrupt
        real(source, target)

    real = os.replace
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        index_shards(str(shards))
    monkeypatch.undo()
    assert not (shards / "wellfed.json").exists()
    index_shards(str(shards), workers=1)
    assert digests(shards) == digests(copy)


def test_verify_names_damaged_samples_and_wrong_indexes(shards: Path) -> None:
    index_shards(str(shards))
    index = np.load(shards / "wellfed.index.npy")
    damage(shards / "part-0.tar", int(index["offset_image"][1]) + 300)
    (shards / "part-1.idx").write_text((shards / "part-1.idx").read_text().replace(" 1-2.cls", " 1-9.cls"))
    (shards / "notes.txt").write_text("files of others may lie beside the shards")
    found = problems(shards)
    assert any("part-0.tar: its SHA-256" in each for each in found)
    assert any("part-0.tar, sample 0000000001: the bytes of its image" in each for each in found)
    assert any("part-1.idx, sample 0000000005" in each for each in found)
    assert not any("notes.txt" in each for each in found)


def test_verify_finds_a_swapped_label(shards: Path) -> None:
    index_shards(str(shards))
    index = np.load(shards / "wellfed.index.npy")
    index["label"][0] = 1
    np.save(shards / "wellfed.index.npy", index)
    assert any("part-0.tar, sample 0000000000: its cls is b'0'" in each for each in problems(shards))
