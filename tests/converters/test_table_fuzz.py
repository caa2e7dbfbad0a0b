"""Whatever a text table holds, every line is accounted for and only our own errors come out."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wellfed.converters.inputs import InputOptions
from wellfed.converters.inputs.table import TableInput
from wellfed.pipeline.errors import SampleRejectedError, WellfedError

PIECES = st.sampled_from(
    [
        *(b"a.jpg", b"cat", b",", b'"', b'""', b"\n", b"\r\n", b"\r", b"\t", b"\0", b"\xff", b"\xc3\xa9", b"\xfe\xff"),
        *(b"7", b"nan", b"../", b"/", b"://", b"nowhere", b"data:,", b"file://", b"{", b"}", b"[", b":", b"\\ud800"),
        b'{"path": "a.jpg", "label": "x"}',
    ]
)
TEXTS = st.lists(PIECES, max_size=40).map(b"".join)


def read_all(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.jpg").write_bytes(b"a")
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            table = TableInput.list(str(path), InputOptions())
        except WellfedError:
            return
        (Path(folder) / "saved").mkdir()
        table.save(Path(folder) / "saved")
        table = TableInput.load(str(path), Path(folder) / "saved")
        for row in range(len(table)):
            assert table.name(row)
            if row in table.refused:
                assert table.refused[row]
                continue
            try:
                assert table.read(row).image
            except SampleRejectedError:
                continue


@settings(max_examples=50, deadline=None)
@given(TEXTS)
@example(b'"')
@example(b"\n\0")
def test_any_csv(content: bytes):
    read_all("t.csv", b"path,label\n" + content)
    read_all("t.csv", content)


@settings(max_examples=30, deadline=None)
@given(TEXTS)
def test_any_csv_with_bytes(content: bytes):
    read_all("t.csv", b"bytes,label\n" + content)


@settings(max_examples=50, deadline=None)
@given(TEXTS)
def test_any_json_lines(content: bytes):
    read_all("t.jsonl", b'{"path": "a.jpg", "label": "x"}\n' + content)
    read_all("t.jsonl", content)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(["t.csv", "t.tsv", "t.jsonl", "t.txt", "t.parquet"]))
def test_any_bytes(content: bytes, name: str):
    read_all(name, content)


ROWS = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\0\r")), st.sampled_from("xyz")), min_size=1
)


@settings(max_examples=30, deadline=None)
@given(ROWS, st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
def test_what_the_csv_module_writes_comes_back(rows: list[tuple[str, str]], encoding: str):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        with open(path, "w", encoding=encoding, newline="") as file:
            writer = csv.writer(file)
            writer.writerows([("text", "label"), *rows])
        table = TableInput.list(str(path), InputOptions(columns=(("text", "text"),)))
        assert len(table) == len(rows)
        for row, (text, label) in enumerate(rows):
            assert table.class_names[table.labels[row]] == label
            if text:
                assert table.read(row).values == {"text": text}
            else:
                with pytest.raises(SampleRejectedError):
                    table.read(row)
