"""The bad-input table for CSV, JSON Lines and Parquet."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

GOOD = "good.jpg,cat\n"


@pytest.fixture
def folder(tmp_path: Path, image: Callable[..., bytes]) -> Path:
    for name in ("good.jpg", "other.jpg", "gr\u00fcn.jpg"):
        (tmp_path / name).write_bytes(image())
    return tmp_path


def write(folder: Path, name: str, content: str | bytes) -> Path:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
@pytest.mark.parametrize(
    "option", [(), ("--label-column", "breed"), ("--image-column", "photo"), ("--column", "a:text")]
)
def test_column_missing_is_an_error_naming_the_columns_there(
    folder: Path, bad_convert: Callable[..., Any], name: str, option: tuple[str, ...]
) -> None:
    # given a table whose label column is called otherwise, or all is well and the option names what is not there
    label = "kind" if not option else "label"
    row = {"path": "good.jpg", label: "cat", "age": "3"}
    if name == "t.csv":
        write(folder, name, f"path,{label},age\ngood.jpg,cat,3\n")
    elif name == "t.jsonl":
        write(folder, name, json.dumps(row) + "\n")
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), folder / name)
    ended = bad_convert(folder / name, *option)
    ended.assert_error(2, "path", label, "age", option[1].partition(":")[0] if option else "label")


def test_ragged_row_and_broken_quote_are_rejected_with_their_line(
    folder: Path, bad_convert: Callable[..., Any]
) -> None:
    lines = ["path,label", "good.jpg,cat", "good.jpg,cat,extra", "good.jpg", '"good.jpg,cat', "other.jpg,dog"]
    ended = bad_convert(write(folder, "t.csv", "\n".join(lines) + "\n"))
    ended.assert_counts(stored=2, rejected=3)
    assert [reason.split(":")[0] for reason in ended.rejects.values()] == ["line 3", "line 4", "line 5"]


def test_bad_json_line_is_rejected_with_its_line(folder: Path, bad_convert: Callable[..., Any]) -> None:
    good = json.dumps({"path": "good.jpg", "label": "cat"})
    ended = bad_convert(write(folder, "t.jsonl", f'{good}\n{{"path": "good.jpg", \n[1, 2]\n{good}\n'))
    ended.assert_counts(stored=2, rejected=2)
    assert [reason.split(":")[0] for reason in ended.rejects.values()] == ["line 2", "line 3"]


@pytest.mark.parametrize(
    ("encode", "note"),
    [
        (lambda text: codecs.BOM_UTF8 + text.encode(), "byte_order_mark"),
        (lambda text: text.encode("utf-16"), "utf16"),
        (lambda text: text.encode("latin-1"), "latin1"),
    ],
)
def test_bom_utf16_and_latin1_are_read_with_a_note(
    folder: Path, bad_convert: Callable[..., Any], encode: Callable[[str], bytes], note: str
) -> None:
    ended = bad_convert(write(folder, "t.csv", encode("path,label\ngr\u00fcn.jpg,gr\u00fcn\n")))
    ended.assert_counts(stored=1, rejected=0)
    assert ended.manifest["class_names"] == ["gr\u00fcn"]
    assert ended.notes[note] == 1


def test_utf16_without_a_mark_is_an_error(folder: Path, bad_convert: Callable[..., Any]) -> None:
    bad_convert(write(folder, "t.csv", ("path,label\n" + GOOD).encode("utf-16-le"))).assert_error(2, "t.csv")


def test_label_empty_nan_or_float_is_rejected(folder: Path, bad_convert: Callable[..., Any]) -> None:
    labels = ["0", "", "NaN", "1.5", "null"]
    rows = [f'{{"path": "good.jpg", "label": {label or json.dumps("")}}}' for label in labels]
    ended = bad_convert(write(folder, "t.jsonl", "\n".join(rows) + "\n"))
    assert ended.code == 3
    assert (len(ended.stored), ended.manifest["source"]["rejected"]) == (1, 4)
    reasons = [json.loads(line)["reason"] for line in (ended.folder / "rejects.jsonl").read_text().splitlines()]
    for reason, words in zip(reasons, ("empty", "not a number", "fraction", "missing"), strict=True):
        assert words in reason


def test_label_not_in_the_given_classes_is_rejected(folder: Path, bad_convert: Callable[..., Any]) -> None:
    table = write(folder, "t.csv", "path,label\n" + GOOD + "other.jpg,bird\n")
    ended = bad_convert(table, "--classes", "dog,cat")
    ended.assert_counts(stored=1, rejected=1)
    assert "'bird' is none of the given classes" in ended.rejects[b"other.jpg"]


def test_labels_of_mixed_types_are_an_error(folder: Path, bad_convert: Callable[..., Any]) -> None:
    bad_convert(write(folder, "t.csv", "path,label\n" + GOOD + "other.jpg,7\n")).assert_error(2, "text", "whole number")


def test_two_rows_for_one_key_are_both_kept_with_distinct_keys(folder: Path, bad_convert: Callable[..., Any]) -> None:
    ended = bad_convert(write(folder, "t.csv", "path,label\n" + GOOD + GOOD))
    ended.assert_counts(stored=2, rejected=0)
    assert ended.stored_names == [b"good.jpg", b"good.jpg"]
    assert list(ended.samples) == ["0000000000", "0000000001"]


def test_sample_without_an_image_or_a_label_is_rejected(folder: Path, bad_convert: Callable[..., Any]) -> None:
    ended = bad_convert(write(folder, "t.csv", "path,label\n" + GOOD + ",cat\nother.jpg,\nmissing.jpg,cat\n"))
    assert ended.code == 3
    assert (ended.stored_names, ended.manifest["source"]["rejected"]) == ([b"good.jpg"], 3)
    assert all(set(members) == {"jpg", "cls", "json"} and all(members.values()) for members in ended.samples.values())


def test_parquet_cut_short_is_an_error_naming_it(folder: Path, bad_convert: Callable[..., Any]) -> None:
    rows = [{"path": "good.jpg", "label": "cat"}] * 100
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "t.parquet")
    data = (folder / "t.parquet").read_bytes()
    (folder / "t.parquet").write_bytes(data[:-20])
    bad_convert(folder / "t.parquet").assert_error(2, "t.parquet")


def test_table_changed_between_plan_and_run_rejects_or_stops(
    folder: Path, bad_convert: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a file of a table that is written again after listing
    from wellfed.converters import run

    table = write(folder, "t.csv", "path,label\n" + GOOD + "other.jpg,dog\n")
    prepare = run.prepare

    def prepare_and_change(request: Any) -> Any:
        jobs = prepare(request)
        (folder / "other.jpg").write_bytes((folder / "good.jpg").read_bytes() + b"more")
        return jobs

    monkeypatch.setattr(run, "prepare", prepare_and_change)
    ended = bad_convert(table)
    ended.assert_counts(stored=1, rejected=1)
    assert "must not change" in ended.rejects[b"other.jpg"]
