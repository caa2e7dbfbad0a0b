"""Parquet tables: types, images inside, large row groups, and files that are cut or damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wellfed.converters.inputs import InputOptions, table_parquet
from wellfed.converters.inputs.table import TableInput
from wellfed.pipeline.errors import MissingDependencyError, SampleRejectedError, SourceChangedError, UsageError


def listed(folder: Path, content: dict[str, Any], *, rows_a_group: int = 4, **options: Any) -> TableInput:
    """The columns as a Parquet file, listed here and opened as a worker opens it."""
    path = folder / "t.parquet"
    pq.write_table(pa.table(content), path, row_group_size=rows_a_group)
    (folder / "saved").mkdir(exist_ok=True)
    TableInput.list(str(path), InputOptions(**options)).save(folder / "saved")
    return TableInput.load(str(path), folder / "saved")


def test_paths(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(b"a")
    table = listed(tmp_path, {"path": ["a.jpg", None, "../x", "none.jpg"], "label": ["x", "y", "z", "x"]})
    assert table.read(0).image == b"a"
    assert table.class_names == ("x", "y", "z")
    assert dict(table.refused) == {
        1: "row 2: the image is missing",
        2: "row 3: the path must lie below the table's root",
        3: "unreadable: no such file or directory",
    }


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(3)])
def test_bytes(tmp_path: Path, kind: pa.DataType):
    images = [bytes([row]) * 3 for row in range(10)]
    table = listed(tmp_path, {"image": pa.array(images, kind), "label": list(range(10))})
    assert [table.read(row).image for row in (9, 0, 4, 3, 8)] == [images[row] for row in (9, 0, 4, 3, 8)]
    assert table.labels.tolist() == list(range(10))
    assert table.name(9) == b"row-000000009"
    assert all(size > 0 for size in table.sizes)


def test_sizes_are_about_those_of_the_images(tmp_path: Path):
    images = [np.random.default_rng(row).bytes(10_000) for row in range(8)]
    table = listed(tmp_path, {"image": images, "label": ["x"] * 8})
    assert table.sizes.tolist() == pytest.approx([10_000] * 8, rel=0.02)


def test_structs_as_hugging_face_writes_them(tmp_path: Path):
    (tmp_path / "b.jpg").write_bytes(b"from a file")
    images = [
        {"bytes": b"one", "path": "deep/a.jpg"},
        {"bytes": None, "path": "b.jpg"},
        {"bytes": b"two", "path": "/home/me/a.jpg"},
        {"bytes": None, "path": None},
        None,
        {"bytes": b"", "path": "x"},
    ]
    table = listed(tmp_path, {"image": images, "label": ["x"] * 6})
    assert [table.read(row).image for row in range(3)] == [b"one", b"from a file", b"two"]
    assert [table.name(row) for row in range(3)] == [b"deep/a.jpg", b"b.jpg", b"row-000000002"]
    for row in (3, 4, 5):
        with pytest.raises(SampleRejectedError, match=rf"row {row + 1}: the image is missing"):
            table.read(row)


@pytest.mark.parametrize(
    ("labels", "refused"),
    [
        (pa.array([1.0, 2.0]), {0: "the label is a fraction: 1.0", 1: "the label is a fraction: 2.0"}),
        (pa.array([None, 3], pa.int8()), {0: "the label is missing"}),
        (pa.array(["", "x"]), {0: "the label is empty"}),
        (pa.array(["x", "y"]).dictionary_encode(), {}),
    ],
)
def test_labels(tmp_path: Path, labels: pa.Array, refused: dict[int, str]):
    table = listed(tmp_path, {"image": [b"1", b"2"], "label": labels})
    assert dict(table.refused) == refused


def test_further_fields_keep_their_types(tmp_path: Path):
    columns = {
        "image": [b"1", b"2"],
        "label": [0, 1],
        "n": pa.array([1.5, None]),
        "a": pa.array([[1, 2], [3]], pa.list_(pa.float32())),
        "m": pa.array([[[1], [2]], [[1], [2, 3]]], pa.list_(pa.list_(pa.uint8()))),
        "j": pa.array([[1, 2], [3]]),
        "b": pa.array([b"x", b""]),
    }
    kinds = (("n", "number"), ("a", "array"), ("m", "array"), ("j", "json"), ("b", "bytes"))
    table = listed(tmp_path, columns, columns=kinds)
    values = table.read(0).values
    assert (values["n"], values["j"], values["b"]) == (1.5, [1, 2], b"x")
    assert (values["a"].dtype, values["a"].tolist()) == (np.float32, [1, 2])
    assert (values["m"].dtype, values["m"].tolist()) == (np.uint8, [[1], [2]])
    with pytest.raises(SampleRejectedError, match="row 2: the sample must have a value for 'n'"):
        table.read(1)
    assert listed(tmp_path, columns, columns=kinds[1:2]).read(1).values["a"].tolist() == [3]
    with pytest.raises(SampleRejectedError, match="row 2: the value for 'm'"):
        listed(tmp_path, columns, columns=kinds[2:3]).read(1)


def test_a_large_row_group_is_read_in_sequence_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_parquet, "_SMALL_GROUP", 0)
    images = [b"%d" % row for row in range(300)]
    table = listed(tmp_path, {"image": images, "label": ["x"] * 300}, rows_a_group=200)
    order = [*range(190, 260), 5, 4, 199, 200, 299, 0]
    assert [table.read(row).image for row in order] == [images[row] for row in order]


def test_a_missing_column_is_an_error_naming_those_there(tmp_path: Path):
    with pytest.raises(UsageError, match="'pixels', 'label'"):
        listed(tmp_path, {"pixels": [b""], "label": [0]})


def test_a_table_without_rows_is_an_error(tmp_path: Path):
    with pytest.raises(UsageError, match="must have rows"):
        listed(tmp_path, {"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())})


@pytest.mark.parametrize("kept", [0, 3, 4, 100, -1, -8, -200])
def test_a_file_cut_short_is_an_error_naming_it(tmp_path: Path, kept: int):
    listed(tmp_path, {"path": ["a.jpg"] * 100, "label": ["x"] * 100})
    path = tmp_path / "t.parquet"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UsageError, match=r"t\.parquet' must be whole"):
        TableInput.list(str(path), InputOptions())


def test_a_damaged_page_is_an_error_or_rejects_its_rows(tmp_path: Path):
    images = [bytes([row]) * 1000 for row in range(8)]
    table = listed(tmp_path, {"image": images, "label": ["x"] * 8}, rows_a_group=4)
    path = tmp_path / "t.parquet"
    data = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data[start : start + 60] = b"\xff" * 60
    path.write_bytes(data)
    TableInput.list(str(path), InputOptions()).save(tmp_path / "saved")

    table = TableInput.load(str(path), tmp_path / "saved")

    assert table.read(3).image == images[3]
    for row in (4, 7, 4):
        with pytest.raises(SampleRejectedError, match=f"row {row + 1}: the row must be readable"):
            table.read(row)
    assert table.read(0).image == images[0]


def test_a_file_that_changed_since_it_was_listed(tmp_path: Path):
    table = listed(tmp_path, {"image": [b"1"], "label": [0]})
    table.read(0)
    pq.write_table(pa.table({"image": [b"2", b"3"], "label": [0, 0]}), tmp_path / "t.parquet")
    with pytest.raises(SampleRejectedError, match="must not change"):
        table.read(0)
    with pytest.raises(SourceChangedError):
        TableInput.load(str(tmp_path / "t.parquet"), tmp_path / "saved").read(0)


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def absent(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    (tmp_path / "t.parquet").write_bytes(b"")
    monkeypatch.setattr(table_parquet.importlib, "import_module", absent)
    with pytest.raises(MissingDependencyError, match=r"wellfed\[parquet\]"):
        TableInput.list(str(tmp_path / "t.parquet"), InputOptions())
