"""Tables without images: token arrays, texts and numbers go through both outputs, and readers not ours decode them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any, Literal

import lmdb
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from wellfed.converters import convert, verify
from wellfed.converters.inputs import FieldType, InputOptions
from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.formats import open_source
from wellfed.pipeline.formats.summary import summarize

webdataset = pytest.importorskip("webdataset")

Output = Literal["webdataset", "lmdb"]
COLUMNS: tuple[tuple[str, FieldType], ...] = (("text", "text"), ("tokens", "array"), ("n", "number"))
OPTIONS = InputOptions(columns=COLUMNS)
ROWS: list[dict[str, Any]] = [
    {"text": f"Satz {row}, schön", "tokens": list(range(row % 5)), "n": row / 2} for row in range(23)
]


@pytest.fixture(params=["jsonl", "parquet"])
def sentences(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"t.{request.param}"
    if request.param == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        return path
    columns = {
        "text": [row["text"] for row in ROWS],
        "tokens": pyarrow.array([row["tokens"] for row in ROWS], pyarrow.list_(pyarrow.int64())),
        "n": [row["n"] for row in ROWS],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=7)
    return path


def by_webdataset(folder: Path) -> list[dict[str, Any]]:
    urls = sorted(str(path) for path in folder.glob("*.tar"))
    return list(webdataset.WebDataset(urls, shardshuffle=False).decode())


def by_lmdb(folder: Path) -> list[dict[str, Any]]:
    samples: dict[str, dict[str, Any]] = {}
    with lmdb.open(str(folder), readonly=True, lock=False) as environment, environment.begin() as transaction:
        for key, value in transaction.cursor():
            stem, _, extension = bytes(key).decode().partition(".")
            samples.setdefault(stem, {})[extension] = bytes(value)
    return [
        {
            "cls": int(sample["cls"]),
            "txt": sample["txt"].decode(),
            "npy": np.load(io.BytesIO(sample["npy"])),
            "json": json.loads(sample["json"]),
        }
        for sample in samples.values()
    ]


READERS = {"webdataset": by_webdataset, "lmdb": by_lmdb}


def check(folder: Path, output: Output) -> None:
    samples = READERS[output](folder)
    assert len(samples) == 23
    for sample, row in zip(samples, ROWS, strict=True):
        assert set(sample) - {"__key__", "__url__", "__local_path__"} == {"cls", "txt", "npy", "json"}
        assert sample["cls"] == 0
        assert sample["txt"] == row["text"]
        assert sample["npy"].tolist() == row["tokens"]
        assert sample["json"]["fields"] == {"n": row["n"]}
        assert sample["json"]["class"] == "all"
    assert verify(folder, deep=True).problems == ()


@pytest.mark.parametrize("output", ["webdataset", "lmdb"])
def test_every_field_is_read_back(sentences: Path, tmp_path: Path, output: Output) -> None:
    convert(sentences, tmp_path / "out", output=output, input=OPTIONS, workers=1)

    check(tmp_path / "out", output)
    source = open_source(tmp_path / "out")
    assert source.class_names == ("all",)
    with pytest.raises(UsageError, match="class, text, tokens, json; got 'image'"):
        source.read(0)
    assert summarize(source)["image_bytes"] is None
    assert summarize(source)["not_measured"] == "the dataset has no images"
    source.close()


def test_from_one_output_to_the_other_and_back_gives_the_same_bytes(sentences: Path, tmp_path: Path) -> None:
    convert(sentences, tmp_path / "1", output="webdataset", input=OPTIONS, workers=1)
    convert(tmp_path / "1", tmp_path / "2", output="lmdb", workers=1)
    convert(tmp_path / "2", tmp_path / "3", output="webdataset", workers=1)

    check(tmp_path / "2", "lmdb")
    check(tmp_path / "3", "webdataset")
    for name in ("wellfed-000000.tar", "wellfed-000000.idx"):
        first, third = (next((tmp_path / folder).glob(f"*{name[7:]}")) for folder in ("1", "3"))
        assert first.read_bytes() == third.read_bytes()


def test_labels_are_taken_where_there_are_any(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("text,label\nhello,greeting\nbye,farewell\nhi,greeting\n")
    options = InputOptions(columns=(("text", "text"),))
    convert(table, tmp_path / "out", output="lmdb", input=options, workers=1)

    source = open_source(tmp_path / "out")
    assert source.class_names == ("farewell", "greeting")
    assert source.index["label"].tolist() == [1, 0, 1]
    source.close()


def test_shards_are_planned_by_the_rows_bytes(tmp_path: Path) -> None:
    # given rows of some 6,000 bytes, of which six and their small members fit into 60 kB
    table = tmp_path / "t.jsonl"
    table.write_text("".join(json.dumps({"text": chr(97 + row) * 6000}) + "\n" for row in range(12)))
    options = InputOptions(columns=(("text", "text"),))
    convert(table, tmp_path / "out", output="webdataset", input=options, workers=1, shard_bytes=60_000)

    sizes = [path.stat().st_size for path in sorted((tmp_path / "out").glob("*.tar"))]
    assert len(sizes) == 2
    for path in (tmp_path / "out").glob("*.tar"):
        with tarfile.open(path) as tar:
            assert len([name for name in tar.getnames() if name.endswith(".txt")]) == 6


def test_rows_that_lack_a_value_are_rejected(tmp_path: Path) -> None:
    table = tmp_path / "t.jsonl"
    table.write_text('{"text": "a"}\n{"text": null}\n{"text": "c"}\n')
    result = convert(
        table, tmp_path / "out", output="webdataset", input=InputOptions(columns=(("text", "text"),)), workers=1
    )

    assert (result.stored, result.rejected) == (2, 1)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (COLUMNS, {"image": "resize:64"}, "the image option is for sources with images"),
        ((), {}, "must have a column for the image"),
    ],
)
def test_what_needs_images_is_refused(
    sentences: Path, tmp_path: Path, columns: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        convert(sentences, tmp_path / "out", output="lmdb", input=InputOptions(columns=columns), **options)
