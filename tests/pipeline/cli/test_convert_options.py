"""Options of `wellfed convert` that are wrong, or would do nothing: each an error with rule, value and remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from PIL import Image

from wellfed.converters.inputs import InputOptions, kinds
from wellfed.converters.inputs.uses import FLAGS, USES


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    """A source of several kinds, by the kind."""
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name / "0.jpg")
    (tmp_path / "t.csv").write_text("path,label\nphotos/cat/0.jpg,cat\n")
    data = (tmp_path / "photos" / "cat" / "0.jpg").read_bytes()
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 20) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"cat/0", data)
    (tmp_path / "mnist").mkdir()
    head = b"\0\0\x08\x03" + np.array([1, 28, 28], ">i4").tobytes()
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte").write_bytes(head + bytes(784))
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(
        b"\0\0\x08\x01" + np.array([1], ">i4").tobytes() + b"\0"
    )
    return {
        "folder": str(tmp_path / "photos"),
        "table": str(tmp_path / "t.csv"),
        "lmdb": str(tmp_path / "db"),
        "mnist": str(tmp_path / "mnist"),
    }


# (source, options, what the message says)
WRONG: list[tuple[str, list[str], list[str]]] = [
    ("folder", ["--label-column", "label"], ["--label-column is for inputs of the kinds", "read as folder", "--input"]),
    ("folder", ["--image-column", "image"], ["--image-column is for inputs", "read as folder"]),
    ("folder", ["--column", "age:number"], ["--column is for inputs", "read as folder"]),
    ("folder", ["--root", "/"], ["--root is for inputs of the kinds hf, table", "read as folder"]),
    ("folder", ["--prefix"], ["--prefix is for inputs of the kinds binary, hf, tar, zip", "read as folder"]),
    ("table", ["--prefix"], ["--prefix is for inputs", "read as table"]),
    ("folder", ["--allow-pickle"], ["--allow-pickle is for inputs of the kinds lmdb", "read as folder"]),
    ("lmdb", ["--allow-pickle", "--label-regex", "^([a-z]+)"], ["--allow-pickle must have a use", "is a pickle"]),
    ("lmdb", ["--label-column", "y", "--classes", "cat"], ["--label-column must have a use", "'y'", "Leave"]),
    ("mnist", ["--label-column", "y"], ["--label-column must have a use", "idx files"]),
    ("folder", ["--encoding", "jpeg:90"], ["--encoding is for inputs", "read as folder"]),
    ("mnist", ["--encoding", "bmp"], ['must be "png" or "jpeg:QUALITY"', "bmp", "Write"]),
    ("folder", ["--source-split", "train"], ["--source-split is for inputs", "read as folder"]),
    ("mnist", ["--source-split", "train"], ["the split must be one that the source has", "train", "test"]),
    ("folder", ["--input", "folder", "--label-regex", "(a)"], ["--label-regex is for inputs", "read as folder"]),
    ("folder", ["--input", "flat"], ["needs a rule for labels", "--label-regex"]),
    ("folder", ["--input", "drawer"], ["must be one of stored, tar", "drawer", "Choose"]),
    ("table", ["--label-regex", "(a)", "--label-column", "label"], ["not from both", "'(a)'", "Leave one"]),
    ("folder", ["--label-regex", "("], ["must be a regular expression", "'('", "Mend"]),
    ("folder", ["--label-regex", "[a-z]+"], ["must have a group", "[a-z]+", "( )"]),
    ("folder", ["--label-regex", "(bird)"], ["must fit the paths", "cat/0.jpg"]),
    ("folder", ["--classes", "cat,dog,cat"], ["class names must differ", "'cat' twice", "--classes"]),
    ("folder", ["--classes", "cat,,dog"], ["--classes must be names between commas", "cat,,dog"]),
    ("table", ["--column", "age:number", "--column", "age:text"], ["further fields must differ", "'age' twice"]),
    ("table", ["--column", "age"], ["--column must be NAME:TYPE", "age", "Write"]),
    ("table", ["--column", "age:image"], ["--column must be NAME:TYPE", "age:image"]),
    ("table", ["--column", "age:number"], ["no column 'age' among 'path', 'label'"]),
    ("folder", ["--max-rejects", "some"], ["number from 0 on or a percentage", "some", "0.5%"]),
    ("folder", ["--max-rejects", "-1"], ["number from 0 on or a percentage", "-1"]),
    ("folder", ["--max-rejects", "101%"], ["number from 0 on or a percentage", "101%"]),
    ("folder", ["--max-rejects", "nan%"], ["number from 0 on or a percentage", "nan%"]),
    ("folder", ["--max-rejects", "3", "--on-error", "fail"], ["no use for a largest number", "3", "Leave one"]),
    ("folder", ["--shard-size", "0"], ["--shard-size must have a unit", "256MB"]),
    ("folder", ["--shard-size", "1"], ["--shard-size must have a unit", "1000samples"]),
    ("folder", ["--shard-size", "0B"], ["--shard-size must be a positive size", "256MB"]),
    ("folder", ["--shard-size", "0samples"], ["--shard-size must be at least 1 sample", "0samples"]),
    ("folder", ["--shard-size", "-5MB"], ["--shard-size must be a positive size", "-5MB"]),
    ("folder", ["--workers", "-1"], ["--workers must be auto or a whole number", "-1"]),
    ("folder", ["--workers", "1.5"], ["--workers must be auto or a whole number", "1.5"]),
    ("folder", ["--shuffle", "junk"], ["--shuffle must be a whole number", "junk", "Write"]),
    ("folder", ["--shuffle", "-1"], ["the shuffle seed must be from 0", "-1"]),
    ("folder", ["--shuffle", "99999999999999999999999"], ["the shuffle seed must be from 0 to 2**64 - 1"]),
    ("folder", ["--limit", "0"], ["the limit must be at least 1 sample", "0"]),
    ("folder", ["--limit", "few"], ["--limit must be a whole number", "few", "Write"]),
    ("folder", ["--split", "train"], ["--split must be names with shares", "train"]),
    ("folder", ["--split", "a=0.5,a=0.5"], ["different names", "'a'"]),
    ("folder", ["--split", "a=0.9,b=0.9"], ["add up to at most 1", "a=0.9, b=0.9"]),
    ("folder", ["--split", "a=nan"], ["above 0", "nan"]),
    ("folder", ["--split", "../a=1"], ["letters, digits", "../a"]),
    ("folder", ["--split", "a=0.9,b=0.1"], ["each part of a split must get at least one sample", "b=0.1", "larger"]),
    ("folder", ["--include", "*.png"], ["must fit --include and --exclude", "cat/0.jpg", "glob"]),
    ("folder", ["--exclude", "*"], ["must fit --include and --exclude", "cat/0.jpg"]),
    ("folder", ["--check", "twice"], ["--check", "twice"]),
    ("folder", ["--on-error", "ignore"], ["--on-error", "ignore"]),
]


@pytest.mark.parametrize(("source", "options", "words"), WRONG, ids=[" ".join([s, *o]) for s, o, _ in WRONG])
def test_wrong_or_useless_options_end_with_2_and_write_nothing(
    sources: dict[str, str],
    tmp_path: Path,
    wellfed: Callable[..., Any],
    source: str,
    options: list[str],
    words: list[str],
) -> None:
    ended = wellfed("convert", sources[source], tmp_path / "out", "--format", "webdataset", *options)
    assert ended.code == 2, ended.err
    assert [word for word in words if word not in ended.err] == [], ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "out").exists()


def test_every_kind_and_every_option_is_decided() -> None:
    assert set(USES) == set(kinds())
    options = {name for name in InputOptions.__dataclass_fields__ if name != "kind"}
    assert set(FLAGS) == options
    # No option is for nothing.
    assert {name for used in USES.values() for name in used} == options


def test_limit_is_of_each_part_of_a_split(tmp_path: Path, wellfed: Callable[..., Any]) -> None:
    for number in range(10):
        (tmp_path / "photos" / "cat").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), number).save(tmp_path / "photos" / "cat" / f"{number}.jpg")
    options = ("--split", "train=0.6,val=0.4", "--limit", 3, "--dry-run")
    ended = wellfed("convert", tmp_path / "photos", tmp_path / "out", "--format", "webdataset", *options)
    assert (ended.code, "train: 3 samples" in ended.out, "val: 3 samples" in ended.out) == (0, True, True)
