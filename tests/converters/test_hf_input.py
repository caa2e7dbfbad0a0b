"""Hugging Face datasets as input, made by the `datasets` library itself."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from wellfed.converters.inputs import hf
from wellfed.converters.inputs.base import InputOptions
from wellfed.converters.inputs.hf import HfInput
from wellfed.pipeline.errors import SampleRejectedError, UsageError

datasets: Any = pytest.importorskip("datasets")
datasets.disable_progress_bars()

NAMES = ["zebra", "ape", "mole"]


def encoded(number: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


IMAGES = [encoded(number) for number in range(10)]


def made(rows: range = range(10), **extra) -> Any:
    """Images as structs with a path in every second row, labels as ClassLabel."""
    columns = {
        "image": [{"bytes": IMAGES[row], "path": f"pic {row}.png" if row % 2 else None} for row in rows],
        "label": [row % 3 for row in rows],
        **{name: [values[row] for row in rows] for name, (values, _) in extra.items()},
    }
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)}
    features |= {name: feature for name, (_, feature) in extra.items()}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def listed(location: Path, **options) -> HfInput:
    return HfInput.list(str(location), InputOptions(**options))


def check(found: HfInput, rows: range = range(10)) -> None:
    assert len(found) == len(rows)
    assert found.class_names == ("zebra", "ape", "mole")
    assert [int(label) for label in found.labels] == [row % 3 for row in rows]
    assert [found.read(place).image for place in range(len(rows))] == [IMAGES[row] for row in rows]
    # in any order, too
    assert found.read(0).image == IMAGES[rows[0]]
    assert found.name(0) == b"row-000000000"
    assert found.name(1) == f"pic {rows[1]}.png".encode()


def test_saved_dataset(tmp_path: Path) -> None:
    # given what save_to_disk wrote, in three files
    made().save_to_disk(tmp_path / "set", num_shards=3)
    # when it is found by itself and listed, then labels, names and bytes are those that were saved
    assert hf.matches(str(tmp_path / "set"))
    found = listed(tmp_path / "set")
    check(found)
    assert [int(size) for size in found.sizes] == [len(image) for image in IMAGES]
    assert found.fields == hf.USUAL_FIELDS


def test_saved_dataset_of_several_splits(tmp_path: Path) -> None:
    splits = {"train": made(range(7)), "test": made(range(4, 10))}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "set")
    assert hf.matches(str(tmp_path / "set"))
    with pytest.raises(UsageError, match="the splits train, test"):
        listed(tmp_path / "set")
    with pytest.raises(UsageError, match="It has train, test"):
        listed(tmp_path / "set", split_name="dev")
    check(listed(tmp_path / "set", split_name="test"), range(4, 10))
    check(listed(tmp_path / "set" / "train"), range(7))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_files_of_splits(tmp_path: Path, suffix: str) -> None:
    # given the files of a dataset's repository, or of the library's cache
    folder = tmp_path / "data"
    folder.mkdir()
    for name, rows in {"train-00000-of-00002": range(4), "train-00001-of-00002": range(4, 10)}.items():
        _write(made(rows), folder / f"{name}.{suffix}")
    _write(made(range(3)), folder / f"test-00000-of-00001.{suffix}")
    # when a split is listed, then it is the rows of its files in order
    assert hf.matches(str(tmp_path))
    check(listed(tmp_path, split_name="train"))
    assert len(listed(folder, split_name="test")) == 3
    with pytest.raises(UsageError, match="the splits test, train"):
        listed(tmp_path)


def _write(dataset: Any, path: Path) -> None:
    if path.suffix == ".parquet":
        dataset.to_parquet(path)
    else:
        table = dataset.data.table
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)


def test_single_parquet_file_in_several_row_groups(tmp_path: Path) -> None:
    made().to_parquet(tmp_path / "one.parquet", batch_size=4)
    assert pq.ParquetFile(tmp_path / "one.parquet").num_row_groups == 3
    assert hf.matches(str(tmp_path / "one.parquet"))
    found = listed(tmp_path / "one.parquet")
    check(found)
    for row in (9, 3, 5, 4, 8, 0):
        assert found.read(row).image == IMAGES[row]


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_feather_file(tmp_path: Path, compression: str | None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    table = made().data.table
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema, options=options) as writer,
    ):
        writer.write_table(table, max_chunksize=3)
    check(listed(tmp_path / "a.arrow"))


def test_plain_parquet_of_others_is_left_to_tables(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": IMAGES, "label": [0] * 10}), tmp_path / "a.parquet")
    assert not hf.matches(str(tmp_path / "a.parquet"))
    assert len(listed(tmp_path / "a.parquet")) == 10


def test_images_as_bytes_and_labels_as_text(tmp_path: Path) -> None:
    labels = ["b", "a", "b", "c", "a", "a", "a", "a", "a", "a"]
    datasets.Dataset.from_dict({"picture": IMAGES, "kind": labels}).save_to_disk(tmp_path / "set")
    with pytest.raises(UsageError, match="which column holds the image; got the columns picture, kind"):
        listed(tmp_path / "set")
    found = listed(tmp_path / "set", image_column="picture", label_column="kind")
    assert found.class_names == ("a", "b", "c")
    assert [int(label) for label in found.labels] == [1, 0, 1, 2, 0, 0, 0, 0, 0, 0]
    assert found.read(3).image == IMAGES[3]


def test_images_as_paths(tmp_path: Path) -> None:
    # given paths relative to the dataset, absolute ones, and some that lead nowhere
    (tmp_path / "set" / "in").mkdir(parents=True)
    for row in range(3):
        (tmp_path / "set" / "in" / f"{row}.png").write_bytes(IMAGES[row])
    (tmp_path / "set" / "empty.png").touch()
    paths = [
        "in/0.png",
        str(tmp_path / "set/in/1.png"),
        "gone.png",
        "https://example.org/a.png",
        "in",
        "empty.png",
        None,
    ]
    table = pa.table({"image": paths, "label": [0] * 7})
    pq.write_table(table, tmp_path / "set" / "a.parquet")
    # when it is listed, then what is there is read, and what is not is refused with the reason
    found = listed(tmp_path / "set")
    assert found.read(0).image == IMAGES[0]
    assert (found.read(1).image, found.name(1)) == (IMAGES[1], b"in/1.png")
    assert {row: reason.split(";")[0] for row, reason in found.refused.items()} == {
        2: "the image's file cannot be read: No such file or directory",
        3: "an image must be bytes or the path of a file, not a URL",
        4: "the image's path is no file",
        5: "the image is empty",
        6: "the sample has no image",
    }
    # and a file that changes afterwards is rejected
    (tmp_path / "set/in/0.png").write_bytes(IMAGES[0] + b"x")
    with pytest.raises(SampleRejectedError, match="must not change"):
        found.read(0)


def test_paths_from_a_given_root(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "0.png").write_bytes(IMAGES[0])
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    table = pa.table({"image": [{"bytes": None, "path": "0.png"}], "label": [2]}, schema=features.arrow_schema)
    pq.write_table(table, tmp_path / "a.parquet")
    found = listed(tmp_path / "a.parquet", root=str(tmp_path / "pictures"))
    assert (found.read(0).image, found.class_names[int(found.labels[0])]) == (IMAGES[0], "mole")


def test_parquet_mixing_bytes_and_paths(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(IMAGES[1])
    images = [{"bytes": IMAGES[0], "path": None}, {"bytes": None, "path": "1.png"}, {"bytes": None, "path": None}, None]
    pq.write_table(pa.table({"image": images, "label": [0, 1, 2, 3]}), tmp_path / "a.parquet")
    found = listed(tmp_path / "a.parquet")
    assert [found.read(row).image for row in range(2)] == IMAGES[:2]
    # a missing struct is seen when listing, missing bytes in one when reading
    assert dict(found.refused) == {3: "the sample has no image"}
    with pytest.raises(SampleRejectedError, match="the sample has no image"):
        found.read(2)


def test_parquet_of_plain_bytes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [*IMAGES[:3], None, b""], "label": [0, 1, 2, 0, 0]}), tmp_path / "a.parquet")
    found = listed(tmp_path / "a.parquet")
    assert [found.read(row).image for row in range(3)] == IMAGES[:3]
    # about 200 bytes each, of which listing has read none
    assert all(0 < size < 1000 for size in found.sizes)
    with pytest.raises(SampleRejectedError, match="the sample has no image"):
        found.read(3)
    assert found.read(4).image == b""  # rejected by the check of its header


def test_typed_fields(tmp_path: Path) -> None:
    boxes = [[[row, 1], [2, 3]] for row in range(10)]
    dataset = made(
        weight=([row / 4 for row in range(10)], datasets.Value("float32")),
        caption=([f"picture {row}" for row in range(10)], datasets.Value("string")),
        colour=([row % 2 for row in range(10)], datasets.ClassLabel(names=["red", "blue"])),
        box=(boxes, datasets.Array2D((2, 2), "int32")),
        tags=([[{"a": row}] for row in range(10)], datasets.List({"a": datasets.Value("int64")})),
        mask=([{"bytes": b"mask", "path": None}] * 10, datasets.Image()),
        raw=([b"\x00\xff"] * 10, datasets.Value("binary")),
        unused=([0] * 10, datasets.Value("int8")),
    )
    dataset.save_to_disk(tmp_path / "set")
    with pytest.raises(UsageError, match="further field column"):
        listed(tmp_path / "set", columns=(("weights", "number"),))
    columns: tuple[Any, ...] = (("weight", "number"), ("caption", "text"), ("colour", "text"), ("box", "array"))
    columns += (("tags", "json"), ("mask", "bytes"), ("raw", "bytes"))
    found = listed(tmp_path / "set", columns=columns)
    assert [(field.name, field.type) for field in found.fields][2:] == list(columns)
    assert found.notes["columns_left_out"] == 1
    values = dict(found.read(3).values)
    assert values.pop("box").tolist() == [[3, 1], [2, 3]]
    assert values == {
        "weight": 0.75,
        "caption": "picture 3",
        "colour": "blue",
        "tags": [{"a": 3}],
        "mask": b"mask",
        "raw": b"\x00\xff",
    }
    assert found.read(3).image == IMAGES[3]


def test_sample_without_a_declared_value_is_rejected(tmp_path: Path) -> None:
    weights = [1.0, None, float("nan"), *range(7)]
    made(weight=(weights, datasets.Value("float64"))).save_to_disk(tmp_path / "set")
    found = listed(tmp_path / "set", columns=(("weight", "number"),))
    assert found.read(0).values == {"weight": 1.0}
    with pytest.raises(SampleRejectedError, match="must have a value for 'weight'"):
        found.read(1)
    with pytest.raises(SampleRejectedError, match="'weight' must be number; got the number nan"):
        found.read(2)


def test_labels_that_are_none_are_refused(tmp_path: Path) -> None:
    table = pa.table({"image": IMAGES[:4], "label": pa.array([0, None, -1, 7])})
    features = datasets.Features({"image": datasets.Value("binary"), "label": datasets.ClassLabel(names=NAMES)})
    pq.write_table(table.replace_schema_metadata(features.arrow_schema.metadata), tmp_path / "a.parquet")
    found = listed(tmp_path / "a.parquet", image_column="image")
    assert dict(found.refused) == {
        1: "the label is missing",
        2: "the label -1 is below 0",
        3: "the label '7' is none of the given classes",
    }


@pytest.mark.parametrize(
    ("labels", "reason"),
    [([1.5, 0.0], "the label is a fraction"), ([float("nan")] * 2, "not a number"), (["", " "], "the label is empty")],
)
def test_labels_of_no_use_are_refused(tmp_path: Path, labels: list, reason: str) -> None:
    pq.write_table(pa.table({"image": IMAGES[:2], "label": labels}), tmp_path / "a.parquet")
    found = listed(tmp_path / "a.parquet")
    assert sorted(found.refused) == [0, 1]
    assert reason in found.refused[0]


def test_label_column_of_lists_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": IMAGES[:2], "label": [[0, 1], [1]]}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="one text or whole number a row"):
        listed(tmp_path / "a.parquet")


def test_given_classes_in_another_order_do_not_shift_labels(tmp_path: Path) -> None:
    made().save_to_disk(tmp_path / "set")
    found = listed(tmp_path / "set", classes=("ape", "mole", "zebra"))
    assert [found.class_names[label] for label in found.labels[:3]] == ["zebra", "ape", "mole"]


def test_a_class_that_is_absent_shifts_nothing(tmp_path: Path) -> None:
    made().filter(lambda row: row["label"] != 1).save_to_disk(tmp_path / "set")
    found = listed(tmp_path / "set")
    assert found.class_names == ("zebra", "ape", "mole")
    assert {int(label) for label in found.labels} == {0, 2}
    assert found.notes["empty_class"] == 1


@pytest.mark.parametrize("column", ["image", "label"])
def test_missing_columns_are_errors_naming_those_there(tmp_path: Path, column: str) -> None:
    made().save_to_disk(tmp_path / "set")
    with pytest.raises(UsageError, match=f"the {column} column must be one .* It has image, label"):
        listed(tmp_path / "set", **{f"{column}_column": "nothing"})


@pytest.mark.parametrize("kind", ["arrow", "parquet", "feather"])
@pytest.mark.parametrize("left", [0.0, 0.3, 0.98])
def test_files_cut_short_are_errors_naming_the_file(tmp_path: Path, kind: str, left: float) -> None:
    path = tmp_path / f"a.{kind}"
    if kind == "feather":
        import pyarrow.feather as feather

        feather.write_feather(made().data.table, path)
    else:
        _write(made(), path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * left)])
    with pytest.raises(UsageError, match=rf"a\.{kind} must be a whole Arrow or Parquet file"):
        listed(path)


def test_arrow_stream_cut_between_batches_is_an_error_and_its_prefix_is_taken_when_asked(tmp_path: Path) -> None:
    # given a stream in batches of two rows, cut in the fourth
    table = made().data.table
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        for start in range(0, 6, 2):
            writer.write_table(table.slice(start, 2))
        whole = sink.tell()
        writer.write_table(table.slice(6, 4))
    path = tmp_path / "a.arrow"
    for size in (whole, whole + 500):
        os.truncate(path, size) if size == whole + 500 else path.write_bytes(path.read_bytes()[: whole + 500])
        # when it is listed, then it is an error; with `prefix` the whole batches are taken
        with pytest.raises(UsageError, match=r"a\.arrow must be a whole"):
            listed(path)
        assert len(listed(path, prefix=True)) == 6
    assert [listed(path, prefix=True).read(row).image for row in range(6)] == IMAGES[:6]


def test_missing_data_file_of_a_saved_dataset_is_an_error(tmp_path: Path) -> None:
    made().save_to_disk(tmp_path / "set", num_shards=3)
    (tmp_path / "set" / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(UsageError, match=r"no data-00001-of-00003\.arrow"):
        listed(tmp_path / "set")


@pytest.mark.parametrize("name", ["../a.arrow", "/etc/passwd", "", None])
def test_data_files_outside_the_dataset_are_refused(tmp_path: Path, name: str | None) -> None:
    made().save_to_disk(tmp_path / "set")
    state = json.loads((tmp_path / "set" / "state.json").read_text())
    state["_data_files"] = [{"filename": name}]
    (tmp_path / "set" / "state.json").write_text(json.dumps(state))
    with pytest.raises(UsageError, match="must name files of its own folder"):
        listed(tmp_path / "set")


@pytest.mark.parametrize("text", ["", "[]", "{", "{}", '{"_data_files": 3}'])
def test_damaged_records_are_errors(tmp_path: Path, text: str) -> None:
    made().save_to_disk(tmp_path / "set")
    (tmp_path / "set" / "state.json").write_text(text)
    with pytest.raises(UsageError, match=r"state\.json must"):
        listed(tmp_path / "set")


@pytest.mark.parametrize("where", ["missing", "empty"])
def test_nothing_there_is_an_error(tmp_path: Path, where: str) -> None:
    (tmp_path / "empty").mkdir()
    assert not hf.matches(str(tmp_path / where))
    with pytest.raises(UsageError, match=r"must exist|must have Arrow or Parquet files"):
        listed(tmp_path / where)


def test_dataset_without_rows_is_an_error(tmp_path: Path) -> None:
    made(range(0)).save_to_disk(tmp_path / "set")
    with pytest.raises(UsageError, match="at least one row"):
        listed(tmp_path / "set")


def test_files_of_different_columns_are_an_error(tmp_path: Path) -> None:
    _write(made(range(2)), tmp_path / "a.parquet")
    pq.write_table(pa.table({"image": IMAGES[:2], "label": ["a", "b"]}), tmp_path / "b.parquet")
    with pytest.raises(UsageError, match=r"b\.parquet, which differs from a\.parquet"):
        listed(tmp_path)


def test_file_that_changed_after_planning_is_rejected(tmp_path: Path) -> None:
    made().save_to_disk(tmp_path / "set")
    found = listed(tmp_path / "set")
    path = tmp_path / "set" / "data-00000-of-00001.arrow"
    assert found.read(0).image == IMAGES[0]
    os.utime(path, ns=(1, 1))
    with pytest.raises(SampleRejectedError, match=r"must not change .*; got 'data-00000-of-00001\.arrow'"):
        found.read(1)
    assert listed(tmp_path / "set").state != found.state
    assert listed(tmp_path / "set").fingerprint == found.fingerprint


def test_saved_listing_reads_the_same(tmp_path: Path) -> None:
    made().save_to_disk(tmp_path / "set")
    found = listed(tmp_path / "set")
    (tmp_path / "saved").mkdir()
    found.save(tmp_path / "saved")
    again = HfInput.load(str(tmp_path / "set"), tmp_path / "saved")
    check(again)
    assert again.state == found.state


@pytest.mark.parametrize("kind", ["arrow", "parquet", "feather"])
def test_flipped_bits_never_crash(tmp_path: Path, kind: str) -> None:
    # given a small file
    path = tmp_path / f"a.{kind}"
    if kind == "feather":
        import pyarrow.feather as feather

        feather.write_feather(made(range(3)).data.table, path, compression="uncompressed")
    else:
        _write(made(range(3)), path)
    whole = path.read_bytes()
    rng = np.random.default_rng(6)
    for _ in range(150):
        # when a few of its bytes are damaged
        data = bytearray(whole)
        for place in rng.integers(0, len(data), 3):
            data[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        # then it is listed and read, or an error says what is wrong
        try:
            found = listed(path)
        except UsageError:
            continue
        for row in range(len(found)):
            if row in found.refused:
                continue
            try:
                assert isinstance(found.read(row).image, bytes)
            except SampleRejectedError:
                continue
