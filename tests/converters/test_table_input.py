"""Tables written by hand: what is found, what is refused and why, and what is an error."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from wellfed.converters.inputs import InputOptions
from wellfed.converters.inputs.table import TableInput
from wellfed.pipeline.errors import SampleRejectedError, SourceChangedError, UsageError

IMAGE = b"image bytes"
TEXT = base64.b64encode(IMAGE).decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.jpg", "b.jpg", "c.jpg", "d e.jpg", "empty.jpg"):
        (tmp_path / name).write_bytes(b"" if name == "empty.jpg" else name.encode())
    (tmp_path / "café.jpg").write_bytes(b"coffee")
    (tmp_path / "saved").mkdir()
    return tmp_path


def listed(folder: Path, name: str, content: bytes | str, **options: Any) -> TableInput:
    """The table, listed here and opened as a worker opens it."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    TableInput.list(str(path), InputOptions(**options)).save(folder / "saved")
    return TableInput.load(str(path), folder / "saved")


def names(table: TableInput) -> list[bytes]:
    return [table.name(row) for row in range(len(table))]


def test_rows_in_order_with_classes_sorted_as_text(folder: Path):
    table = listed(folder, "t.csv", 'path,label\nb.jpg,dog\n"a.jpg",cat\n"d e.jpg","a ""big"" dog, one"\n')
    assert names(table) == [b"b.jpg", b"a.jpg", b"d e.jpg"]
    assert table.class_names == ('a "big" dog, one', "cat", "dog")
    assert table.labels.tolist() == [2, 1, 0]
    assert table.sizes.tolist() == [5, 5, 7]
    assert [table.read(row).image for row in range(3)] == [b"b.jpg", b"a.jpg", b"d e.jpg"]


def test_tab_separated(folder: Path):
    table = listed(folder, "t.tsv", "label\tpath\ncat\ta.jpg\ndog, big\td e.jpg\n")
    assert (names(table), table.class_names) == ([b"a.jpg", b"d e.jpg"], ("cat", "dog, big"))


def test_two_rows_for_one_file_are_two_samples(folder: Path):
    table = listed(folder, "t.csv", "path,label\na.jpg,cat\na.jpg,cat\na.jpg,dog\n")
    assert names(table) == [b"a.jpg"] * 3
    assert table.labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("option", "column", "named"),
    [("image_column", "picture", "image"), ("label_column", "animal", "label"), ("columns", "age", "field")],
)
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_missing_column_is_an_error_naming_those_there(folder: Path, option: str, column: str, named: str, name: str):
    content = "path,label\na.jpg,cat\n" if name == "t.csv" else '{"path": "a.jpg", "label": "cat"}\n'
    value: Any = ((column, "number"),) if option == "columns" else column
    with pytest.raises(UsageError, match=rf"column for the {named}.*{column}.*'path', 'label'"):
        listed(folder, name, content, **{option: value})


def test_columns_that_may_be_meant_are_not_guessed(folder: Path):
    with pytest.raises(UsageError, match="'file', 'url'"):
        listed(folder, "t.csv", "file,url,label\na.jpg,s3://a/b,cat\n")
    assert names(listed(folder, "t.csv", "file,url,label\na.jpg,s3://a/b,cat\n", image_column="file")) == [b"a.jpg"]


def test_ragged_rows_and_broken_quotes_are_refused_with_their_lines(folder: Path):
    content = 'path,label\na.jpg,cat\nb.jpg\nb.jpg,dog,more\n"b.jpg,dog\nb.jpg,dog\n"b"x,dog\n\nc.jpg,cat\n'
    table = listed(folder, "t.csv", content)
    assert names(table)[0] == b"a.jpg"
    assert {row: reason.partition(":")[0] for row, reason in table.refused.items()} == {
        1: "line 3",
        2: "line 4",
        3: "line 5",
        5: "line 7",
    }
    assert table.refused[1] == "line 3: the row must have 2 cells, not 1"
    assert names(table)[3:] == [b"row-000000003", b"b.jpg", b"row-000000005", b"c.jpg"]
    assert dict(table.skipped) == {"blank_lines": 1}


def test_a_quote_that_is_never_closed_costs_one_row_of_many(folder: Path):
    table = listed(folder, "t.csv", 'path,label\n"a.jpg,cat\n' + "b.jpg,dog\n" * 3000)
    assert len(table) == 3001
    assert list(table.refused) == [0]


def test_a_cell_may_hold_line_ends(folder: Path):
    table = listed(
        folder, "t.csv", 'path,label,text\na.jpg,cat,"one\r\ntwo"\nb.jpg,dog,x\n', columns=(("text", "text"),)
    )
    assert [table.read(row).values for row in range(2)] == [{"text": "one\r\ntwo"}, {"text": "x"}]


def test_bad_json_lines_are_refused_with_their_lines(folder: Path):
    lines = [
        '{"path": "a.jpg", "label": "cat"}',
        '{"path": "a.jpg", "label": }',
        '["a.jpg", "cat"]',
        "",
        '{"path": "b.jpg"}',
        '{"label": "cat"}',
        '{"path": 3, "label": "cat"}',
        "[" * 100_000,
        '{"path": "a.jpg", "label": ' + "1" * 5000 + "}",
        '{"path": "\\ud800", "label": "cat"}',
        '{"path": "a.jpg", "label": "\\ud800"}',
    ]
    table = listed(folder, "t.jsonl", "\n".join(lines).encode() + b'\n{"path": "\xff", "label": "cat"}')
    reasons = dict(table.refused)
    assert sorted(reasons) == list(range(1, 11))
    assert reasons[1] == "line 2: the line is no JSON: Expecting value at column 28"
    assert reasons[2] == "line 3: the line must be a JSON object, not list"
    assert reasons[3] == "the label is missing"
    assert reasons[4] == "line 6: the image is missing"
    assert reasons[5] == "line 7: the image must be a path, a URL or bytes, not int"
    assert [reasons[row].partition(":")[0] for row in range(6, 11)] == [f"line {line}" for line in range(8, 13)]
    assert dict(table.skipped) == {"blank_lines": 1}


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("", "the label is empty"),
        ("nan", "the label is not a number: nan"),
        ("NaN", "the label is not a number: nan"),
        ("1.5", "the label is a fraction: 1.5"),
        ("3.0", "the label is a fraction: 3.0"),
        ("1e3", "the label is a fraction: 1000.0"),
        ("-1", "the label -1 is below 0"),
    ],
)
def test_labels_of_a_csv_that_are_refused(folder: Path, label: str, reason: str):
    table = listed(folder, "t.csv", f"path,label\na.jpg,{label}\nb.jpg,2\n")
    assert dict(table.refused) == {0: reason}
    assert table.labels.tolist() == [-1, 2]
    assert table.class_names == ("0", "1", "2")


@pytest.mark.parametrize("label", ["null", "NaN", "1.0", "true", '""', '["cat"]'])
def test_labels_of_json_lines_that_are_refused(folder: Path, label: str):
    good = '{"path": "b.jpg", "label": 1}\n'
    table = listed(folder, "t.jsonl", f'{{"path": "a.jpg", "label": {label}}}\n{good}')
    assert list(table.refused) == [0]


def test_mixed_labels_are_an_error(folder: Path):
    with pytest.raises(UsageError, match="all text or all whole numbers"):
        listed(folder, "t.csv", "path,label\na.jpg,cat\nb.jpg,2\n")
    with pytest.raises(UsageError, match="all text or all whole numbers"):
        listed(folder, "t.jsonl", '{"path": "a.jpg", "label": "2"}\n{"path": "b.jpg", "label": 2}\n')


def test_given_classes(folder: Path):
    content = "path,label\na.jpg,10\nb.jpg,2\nc.jpg,3\n"
    table = listed(folder, "t.csv", content, classes=("10", "2"))
    assert table.labels.tolist() == [0, 1, -1]
    assert dict(table.refused) == {2: "the label '3' is none of the given classes"}

    table = listed(folder, "t.csv", "path,label\na.jpg,1\nb.jpg,0\n", classes=("cat", "dog"))
    assert (table.labels.tolist(), table.class_names) == ([1, 0], ("cat", "dog"))


def test_labels_with_leading_zeros_are_names(folder: Path):
    table = listed(folder, "t.csv", "path,label\na.jpg,010\nb.jpg,002\n")
    assert table.class_names == ("002", "010")


def test_a_class_of_which_all_images_are_refused_keeps_its_index(folder: Path):
    table = listed(folder, "t.csv", "path,label\nnone.jpg,bird\na.jpg,cat\n")
    assert table.class_names == ("bird", "cat")
    assert table.labels.tolist() == [0, 1]


def test_the_class_from_the_path(folder: Path):
    table = listed(folder, "t.csv", "path\na.jpg\nb.jpg\ncafé.jpg\n", label_regex=r"^([ab])\.")
    assert table.class_names == ("a", "b")
    assert dict(table.refused) == {2: "line 4: the label rule does not fit the path"}


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("path,label\ncafé.jpg,thé\n".encode("utf-8-sig"), {"byte_order_mark": 1}),
        ("path,label\r\ncafé.jpg,thé\r\n".encode("utf-16"), {"utf16": 1}),
        ("path,label\ncafé.jpg,thé\n".encode("utf-16-be").join([b"\xfe\xff", b""]), {"utf16": 1}),
        ("path,label\ncafé.jpg,thé\n".encode("latin-1"), {"latin1": 1}),
        ("path,label\ncafé.jpg,thé\n".encode(), {}),
    ],
    ids=["byte order mark", "UTF-16", "UTF-16 big endian", "Latin-1", "UTF-8"],
)
def test_encodings(folder: Path, content: bytes, note: dict[str, int]):
    table = listed(folder, "t.csv", content, columns=(("label", "text"),))
    assert dict(table.notes) == note
    assert dict(table.refused) == {}
    assert names(table) == ["café.jpg".encode()]
    assert table.class_names == ("thé",)
    assert table.read(0).image == b"coffee"
    assert table.read(0).values == {"label": "thé"}


def test_utf16_json_lines_whose_letters_hold_a_line_end_byte(folder: Path):
    # U+0A0A and U+010A have the byte 0A in either half.
    line = '{"path": "a.jpg", "label": "\u0a0a\u010a\u0a00"}\n'
    for encoding in ("utf-16-le", "utf-16-be"):
        table = listed(folder, "t.jsonl", ("\ufeff" + line * 2).encode(encoding))
        assert (len(table), table.class_names, dict(table.refused)) == (2, ("\u0a0a\u010a\u0a00",), {})


def test_one_broken_line_of_a_utf8_table_is_refused_and_the_others_stay(folder: Path):
    table = listed(folder, "t.csv", b"path,label\n\xff.jpg,cat\n" + "café.jpg,thé\n".encode())
    assert dict(table.refused) == {0: "line 2: the line is not of the table's encoding"}
    assert table.read(1).image == b"coffee"


def test_file_names_that_are_latin1_bytes_themselves(folder: Path):
    (folder / os.fsdecode(b"\xe9t\xe9.jpg")).write_bytes(b"summer")
    table = listed(folder, "t.csv", b"path,label\n\xe9t\xe9.jpg,cat\ncaf\xe9.jpg,cat\n")
    assert names(table) == [b"\xe9t\xe9.jpg", "café.jpg".encode()]
    assert [table.read(row).image for row in range(2)] == [b"summer", b"coffee"]


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"path,label\n", b"\x1f\x8b\x08rest", "path,label\n".encode("utf-16-le"), "p\n".encode("utf-32")],
    ids=["empty", "blank", "header only", "gzip", "UTF-16 without mark", "UTF-32"],
)
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.txt"])
def test_what_is_no_table_is_an_error(folder: Path, content: bytes, name: str):
    with pytest.raises(UsageError):
        listed(folder, name, content)


def test_absolute_and_parent_paths_must_stay_below_the_root(folder: Path):
    (folder.parent / "outside.jpg").write_bytes(b"outside")
    inside = folder / "sub"
    inside.mkdir()
    (inside / "x.jpg").write_bytes(b"x")
    rows = [
        f"{inside}/x.jpg",
        "sub/../sub/x.jpg",
        "../outside.jpg",
        "/etc/passwd",
        f"file://{inside}/x.jpg",
        "sub",
        ".",
        "file:///a%00b",
    ]
    table = listed(folder, "t.csv", "path,label\n" + "".join(f"{row},cat\n" for row in rows))
    assert names(table)[:2] == [b"sub/x.jpg", b"sub/../sub/x.jpg"]
    assert names(table)[4] == b"sub/x.jpg"
    assert [table.read(row).image for row in (0, 1, 4)] == [b"x"] * 3
    outside = "the path must lie below the table's root"
    assert {row: reason.split(": ")[-1] for row, reason in table.refused.items()} == {
        2: outside,
        3: outside,
        5: "not a regular file",
        6: outside,
        7: "the path must not hold a zero byte",
    }
    # Nor does what is published hold them.
    assert names(table)[2:4] == [b"row-000000002", b"row-000000003"]


def test_a_root_of_its_own(folder: Path):
    (folder / "images").mkdir()
    (folder / "images" / "x.jpg").write_bytes(b"x")
    table = listed(folder, "t.csv", "path,label\nx.jpg,cat\n", root=str(folder / "images"))
    assert table.read(0).image == b"x"


def test_files_that_cannot_be_samples(folder: Path):
    (folder / "broken.jpg").symlink_to("nowhere")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    os.mkfifo(folder / "pipe.jpg")
    rows = ["empty.jpg", "none.jpg", "broken.jpg", "pipe.jpg", "loop.jpg", ""]
    table = listed(folder, "t.csv", "path,label\n" + "".join(f"{row},cat\n" for row in rows) + "a\0b.jpg,cat\n")
    assert dict(table.refused) == {
        0: "zero bytes",
        1: "unreadable: no such file or directory",
        2: "broken symbolic link",
        3: "not a regular file",
        4: "symbolic link loop",
        5: "line 7: the image is missing",
        6: "line 8: the path must not hold a zero byte",
    }


def test_a_file_that_changed_since_it_was_listed_is_rejected(folder: Path):
    table = listed(folder, "t.csv", "path,label\na.jpg,cat\nb.jpg,cat\nc.jpg,dog\n")
    (folder / "a.jpg").write_bytes(b"A.jpg")
    os.utime(folder / "a.jpg", ns=(1, 1))
    (folder / "b.jpg").write_bytes(b"longer than before")
    (folder / "c.jpg").unlink()
    for row in range(3):
        with pytest.raises(SampleRejectedError):
            table.read(row)


def test_a_table_that_changed_since_it_was_listed(folder: Path):
    content = f"bytes,label\n{TEXT},cat\n"
    open_before = listed(folder, "t.csv", content)
    assert open_before.read(0).image == IMAGE
    with open(folder / "t.csv", "a") as file:
        file.write(f"{TEXT},dog\n")
    with pytest.raises(SampleRejectedError, match="must not change"):
        open_before.read(0)
    with pytest.raises(SourceChangedError):
        TableInput.load(str(folder / "t.csv"), folder / "saved").read(0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", f"image_bytes,label\n{TEXT},cat\n"),
        ("t.csv", f'image,label\n"data:image/jpeg;base64,{TEXT}",cat\n'),
        ("t.jsonl", json.dumps({"image_base64": TEXT, "label": "cat"})),
        ("t.jsonl", json.dumps({"image": {"bytes": TEXT, "path": "x/a.jpg"}, "label": "cat"})),
    ],
)
def test_bytes_in_a_text_table(folder: Path, name: str, content: str):
    table = listed(folder, name, content)
    assert table.read(0).image == IMAGE
    assert table.sizes.tolist() == [len(IMAGE)]


def test_an_image_in_base64_larger_than_a_csv_cell_usually_may_be(folder: Path):
    image = bytes(range(256)) * 1000
    table = listed(folder, "t.csv", f"bytes,label\n{base64.b64encode(image).decode()},cat\n")
    assert table.read(0).image == image


def test_broken_base64_is_rejected_with_its_line(folder: Path):
    table = listed(folder, "t.csv", "bytes,label\n???,cat\nabc,cat\n,cat\n")
    for row in range(2):
        with pytest.raises(SampleRejectedError, match=f"line {row + 2}: the text must be Base64"):
            table.read(row)
    assert dict(table.refused) == {2: "line 4: the image is missing"}


FIELDS = (("n", "number"), ("t", "text"), ("j", "json"), ("a", "array"), ("b", "bytes"))


def test_further_fields_of_a_csv(folder: Path):
    content = 'path,label,n,t,j,a,b\na.jpg,cat,1.5,hello,"{""k"": [1]}","[[1, 2], [3, 4]]",aGk=\n'
    values = dict(listed(folder, "t.csv", content, columns=FIELDS).read(0).values)
    assert values.pop("a").tolist() == [[1, 2], [3, 4]]
    assert values == {"n": 1.5, "t": "hello", "j": {"k": [1]}, "b": b"hi"}


def test_further_fields_of_json_lines(folder: Path):
    row = {"path": "a.jpg", "label": 0, "n": 7, "t": "", "j": [None], "a": [0.5], "b": "aGk="}
    values = dict(listed(folder, "t.jsonl", json.dumps(row), columns=FIELDS).read(0).values)
    assert values.pop("a").tolist() == [0.5]
    assert values == {"n": 7, "t": "", "j": [None], "b": b"hi"}


@pytest.mark.parametrize(
    ("name", "cell"),
    [("n", ""), ("n", "x"), ("n", "nan"), ("n", "inf"), ("t", ""), ("j", "{"), ("a", "[[1],[2,3]]"), ("b", "?")],
)
def test_a_sample_without_a_declared_value_is_rejected(folder: Path, name: str, cell: str):
    table = listed(folder, "t.csv", f'path,label,{name}\na.jpg,cat,"{cell}"\n', columns=((name, dict(FIELDS)[name]),))
    with pytest.raises(SampleRejectedError, match=f"line 2: .*{'Base64' if name == 'b' else name}"):
        table.read(0)


def test_rows_without_images(folder: Path):
    table = listed(folder, "t.csv", "text,label\nhello,cat\n", columns=(("text", "text"),))
    assert [field.name for field in table.fields] == ["class", "text"]
    assert table.read(0).image is None
    assert table.read(0).values == {"text": "hello"}


@pytest.mark.parametrize("column", [("image", "bytes"), ("text", "image"), ("text", "class")])
def test_further_columns_must_be_of_their_own(folder: Path, column: tuple[str, str]):
    with pytest.raises(UsageError, match="name and a type of its own"):
        listed(folder, "t.csv", "image,text,label\na.jpg,x,cat\n", columns=(column,))


def test_a_column_that_is_there_twice_is_an_error(folder: Path):
    with pytest.raises(UsageError, match="twice"):
        listed(folder, "t.csv", "path,label,label\na.jpg,cat,dog\n", label_column="label")


def test_the_fingerprint_is_that_of_the_content_wherever_it_lies(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
):
    other = tmp_path_factory.mktemp("other")
    (other / "saved").mkdir()
    (other / "a.jpg").write_bytes(b"a.jpg")
    content = "path,label,n\na.jpg,cat,1\n"
    one, two = listed(folder, "t.csv", content), listed(other, "t.csv", content)
    assert one.fingerprint == two.fingerprint
    assert one.state != two.state
    assert listed(other, "t.csv", content.replace(",1", ",2")).fingerprint != one.fingerprint
