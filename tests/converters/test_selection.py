"""Which samples are converted and in which order: globs, shuffle, split, limit, shards by samples, most rejects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wellfed.converters import convert, verify
from wellfed.converters.inputs import InputOptions
from wellfed.converters.preview import preview
from wellfed.converters.request import Request, most_rejects
from wellfed.converters.selection import SelectionOptions
from wellfed.pipeline.errors import SampleRejectedError, UsageError
from wellfed.pipeline.formats import Manifest, open_source

ALL = [f"{name}/{number}.jpg" for name in "abc" for number in range(4)]


def stored(folder: Path) -> list[str]:
    source = open_source(folder)
    names = [source.name(row) for row in range(len(source))]
    source.close()
    return names


def test_include_and_exclude_fit_whole_paths(photos: Path, tmp_path: Path) -> None:
    chosen = SelectionOptions(include=("a/*", "*/3.jpg"), exclude=("*/0.jpg",))
    result = convert(photos, tmp_path / "out", output="webdataset", selection=chosen)
    assert stored(tmp_path / "out") == ["a/1.jpg", "a/2.jpg", "a/3.jpg", "b/3.jpg", "c/3.jpg"]
    assert (result.found, result.skipped) == (5, {"excluded": 7})
    assert Manifest.load(tmp_path / "out").options["include"] == ["a/*", "*/3.jpg"]
    with pytest.raises(UsageError, match="at least one path"):
        convert(photos, tmp_path / "no", output="webdataset", selection=SelectionOptions(include=("x/*",)))


@pytest.mark.parametrize("output", ["webdataset", "lmdb"])
def test_shuffle_is_a_permutation_that_its_seed_decides(
    photos: Path, tmp_path: Path, output: Any, digests: Any
) -> None:
    for number, (seed, workers) in enumerate(((1, 1), (1, 2), (2, 1))):
        options = SelectionOptions(shuffle=seed)
        convert(photos, tmp_path / str(number), output=output, shard_samples=5, selection=options, workers=workers)
    first, again, other = (stored(tmp_path / str(number)) for number in range(3))
    assert sorted(first) == sorted(other) == ALL
    assert first != ALL
    assert first != other
    assert digests(tmp_path / "0") == digests(tmp_path / "1")
    assert first == again
    source = open_source(tmp_path / "0")
    assert source.index["key"].tolist() == list(range(12))
    for row in range(12):
        assert source.read(row) == (photos / source.name(row)).read_bytes()
        assert "abc"[int(source.index["label"][row])] == source.name(row)[0]
    source.close()
    assert verify(tmp_path / "0", deep=True).problems == ()


def test_shards_of_samples_count_rejected_ones(photos: Path, tmp_path: Path) -> None:
    (photos / "a" / "1.jpg").write_bytes(b"no image")
    convert(photos, tmp_path / "out", output="webdataset", shard_samples=5)
    manifest = Manifest.load(tmp_path / "out")
    assert [shard.samples for shard in manifest.shards] == [4, 5, 2]
    assert manifest.options["shard_samples"] == 5


def test_split_is_by_class_with_one_class_list(photos: Path, tmp_path: Path) -> None:
    chosen = SelectionOptions(split=(("train", 0.75), ("val", 0.25)))
    result = convert(photos, tmp_path / "out", output="webdataset", selection=chosen)
    train, val = stored(tmp_path / "out" / "train"), stored(tmp_path / "out" / "val")
    assert sorted(train + val) == ALL
    assert [name[0] for name in val] == ["a", "b", "c"]
    assert len(train) == 9
    manifests = [Manifest.load(tmp_path / "out" / part) for part in ("train", "val")]
    assert {manifest.class_names for manifest in manifests} == {("a", "b", "c")}
    assert (result.stored, result.found, result.parts["val"].found) == (12, 12, 3)
    # A sample removed moves at most its neighbours in its own class.
    (photos / "a" / "0.jpg").unlink()
    convert(photos, tmp_path / "fewer", output="webdataset", selection=chosen)
    assert [name for name in stored(tmp_path / "fewer" / "val") if name[0] != "a"] == val[1:]


def test_a_split_continues_with_the_part_that_is_missing(photos: Path, tmp_path: Path, digests: Any) -> None:
    import shutil

    arguments: dict[str, Any] = {
        "output": "webdataset",
        "selection": SelectionOptions(split=(("train", 0.75), ("val", 0.25)), shuffle=4),
    }
    convert(photos, tmp_path / "out", **arguments)
    whole = digests(tmp_path / "out")
    with pytest.raises(UsageError, match="must not hold a dataset already"):
        convert(photos, tmp_path / "out", **arguments)
    shutil.rmtree(tmp_path / "out" / "val")
    assert convert(photos, tmp_path / "out", **arguments).resumed == 9
    assert digests(tmp_path / "out") == whole


@pytest.mark.parametrize("split", [(("a", 0.5), ("a", 0.5)), (("a", 0.9), ("b", 0.2)), (("../x", 1.0),), (("a", 0.0),)])
def test_impossible_splits_are_refused(split: Any) -> None:
    with pytest.raises(UsageError, match="split"):
        SelectionOptions(split=split)


def test_a_part_without_samples_is_refused_before_anything_is_written(photos: Path, tmp_path: Path) -> None:
    chosen = SelectionOptions(split=(("train", 0.99), ("val", 0.01)))
    with pytest.raises(UsageError, match="at least one sample"):
        convert(photos, tmp_path / "out", output="webdataset", selection=chosen)
    assert not (tmp_path / "out").exists()


def test_limit_takes_the_first_in_order(photos: Path, tmp_path: Path) -> None:
    result = convert(photos, tmp_path / "out", output="lmdb", selection=SelectionOptions(limit=5))
    assert stored(tmp_path / "out") == ALL[:5]
    assert result.skipped == {"beyond_limit": 7}


def test_too_many_rejects_end_the_run_and_a_higher_bound_continues_it(photos: Path, tmp_path: Path) -> None:
    for number in range(3):
        (photos / "b" / f"{number}.jpg").write_bytes(b"no image")
    arguments: dict[str, Any] = {"output": "webdataset", "shard_samples": 4}
    with pytest.raises(SampleRejectedError, match="at most 2 of 12"):
        convert(photos, tmp_path / "out", max_rejects=2, **arguments)
    assert not (tmp_path / "out" / "wellfed.json").exists()
    result = convert(photos, tmp_path / "out", max_rejects="25%", **arguments)
    assert (result.rejected, result.resumed >= 4) == (3, True)


def test_most_rejects_are_a_number_or_a_share() -> None:
    assert [most_rejects(given, 1000) for given in (None, 0, "7", "0.5%", "100%")] == [None, 0, 7, 5, 1000]
    for wrong in ("-1", "101%", "many", "1.5", ""):
        with pytest.raises(UsageError, match="largest number of rejects"):
            most_rejects(wrong, 10)


def test_preview_counts_and_estimates(photos: Path, tmp_path: Path) -> None:
    (photos / "a" / "0.jpg").write_bytes(b"")
    (photos / "b" / "0.jpg").write_bytes(b"text")
    planned = preview(Request(src=str(photos), dst=tmp_path / "out", output="webdataset", shard_samples=5))
    assert (planned.found, planned.refused, planned.shards, planned.classes) == (12, 1, 3, 3)
    assert planned.class_counts == {"a": 4, "b": 4, "c": 4}
    assert (planned.sampled, planned.sample_rejected) == (12, 2)
    assert planned.seconds is not None
    assert planned.seconds > 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("output", "image"), [("webdataset", "keep"), ("lmdb", "keep"), ("lmdb", "resize:8192")])
def test_a_preview_tells_the_result_from_the_most_disk_in_use(tmp_path: Path, output: Any, image: str) -> None:
    (tmp_path / "source" / "a").mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), np.uint8)
    for number in range(8):
        Image.fromarray(noise).save(tmp_path / "source" / "a" / f"{number}.png")
    tars = 8 * (tmp_path / "source" / "a" / "0.png").stat().st_size
    planned = preview(Request(src=tmp_path / "source", dst=tmp_path / "out", output=output, image=image, workers=1))
    convert(tmp_path / "source", tmp_path / "out", output=output, image=image, workers=1)
    held = sum(path.stat().st_size for path in (tmp_path / "out").iterdir() if path.is_file())
    assert 0.99 * held < planned.result_bytes < 1.5 * held
    if output == "lmdb" and image == "keep":
        # The images come from the files once more.
        assert planned.result_bytes < planned.bytes < planned.result_bytes + 0.5 * tars
    elif output == "lmdb":
        # Images that may have been changed lie in tars until it is whole.
        assert planned.result_bytes + tars < planned.bytes < planned.result_bytes + 1.5 * tars


def test_flat_folder_takes_the_class_from_the_path(photos: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for name in ALL:
        (flat / name.replace("/", "-")).write_bytes((photos / name).read_bytes())
    (flat / "readme").write_text("no label in this name")
    result = convert(flat, tmp_path / "out", output="webdataset", input=InputOptions(label_regex="^(?P<label>.)-"))
    assert (result.stored, result.rejected) == (12, 1)
    (line,) = (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    assert json.loads(line) == {"key": 12, "path": "readme", "reason": "the label rule does not fit the path"}
    for regex, words in (("(", "regular expression"), ("a", "must have a group"), ("^(x)", "must fit the paths")):
        with pytest.raises(UsageError, match=words):
            convert(flat, tmp_path / "no", output="webdataset", input=InputOptions(label_regex=regex))
