"""Every type of field goes through both outputs, and from one to the other, and readers that are not ours decode it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import lmdb
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from wellfed.converters import convert, verify
from wellfed.converters.inputs import FieldType, InputOptions

webdataset = pytest.importorskip("webdataset")

CAPTIONS = ["eine Katze, ägyptisch", "", "line\nbreak"]
SCORES = [0.5, -3.0, 1e300]
BOXES = [[[1, 2, 3, 4]], [], [[5, 6, 7, 8], [0, 0, 1, 1]]]
BLOBS = [b"\x00\xff", b"", bytes(range(256))]
VECTORS = [[0.25, -1.0], [1.5], [3.0, 4.0, 5.0]]
LABELS = ["cat", "dog", "cat"]
COLUMNS: tuple[tuple[str, FieldType], ...] = (
    ("caption", "text"),
    ("score", "number"),
    ("boxes", "json"),
    ("blob", "bytes"),
    ("vector", "array"),
)


@pytest.fixture
def images(make_jpeg: Callable[..., bytes]) -> list[bytes]:
    return [make_jpeg(seed) for seed in range(3)]


@pytest.fixture
def table(tmp_path: Path, images: list[bytes]) -> Path:
    columns = {
        "bytes": images,
        "label": LABELS,
        "caption": CAPTIONS,
        "score": SCORES,
        "boxes": BOXES,
        "blob": BLOBS,
        "vector": pyarrow.array(VECTORS, pyarrow.list_(pyarrow.float32())),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "list.parquet")
    return tmp_path / "list.parquet"


def by_webdataset(folder: Path) -> list[dict[str, Any]]:
    """Decoded by webdataset's own rules for extensions."""
    urls = sorted(str(path) for path in folder.glob("*.tar"))
    return list(webdataset.WebDataset(urls, shardshuffle=False).decode())


def by_lmdb(folder: Path) -> list[dict[str, Any]]:
    """Decoded by numpy and json."""
    decoders: dict[str, Callable[[bytes], Any]] = {
        "cls": int,
        "txt": bytes.decode,
        "json": json.loads,
        "npy": lambda data: np.load(io.BytesIO(data), allow_pickle=False),
    }
    samples: dict[str, dict[str, Any]] = {}
    with lmdb.open(str(folder), readonly=True, lock=False) as environment, environment.begin() as transaction:
        for key, value in transaction.cursor():
            stem, _, extension = bytes(key).decode().partition(".")
            samples.setdefault(stem, {})[extension] = decoders.get(extension, bytes)(bytes(value))
    return list(samples.values())


def check(samples: list[dict[str, Any]], images: list[bytes]) -> None:
    assert len(samples) == 3
    for row, sample in enumerate(samples):
        assert sample["jpg"] == images[row]
        assert sample["cls"] == [0, 1, 0][row]
        assert sample["txt"] == CAPTIONS[row]
        assert sample["bin"] == BLOBS[row]
        assert sample["npy"].dtype == np.float32
        assert sample["npy"].tolist() == VECTORS[row]
        assert sample["json"]["class"] == LABELS[row]
        assert sample["json"]["fields"] == {"score": SCORES[row], "boxes": BOXES[row]}


READERS = {"webdataset": by_webdataset, "lmdb": by_lmdb}


@pytest.mark.parametrize("output", ["webdataset", "lmdb"])
def test_every_type_is_read_back(
    table: Path, images: list[bytes], tmp_path: Path, output: Literal["webdataset", "lmdb"]
) -> None:
    convert(table, tmp_path / "out", output=output, input=InputOptions(columns=COLUMNS))
    check(READERS[output](tmp_path / "out"), images)


@pytest.mark.parametrize("first", ["webdataset", pytest.param("lmdb", marks=pytest.mark.long)])
def test_from_one_output_to_the_other_and_back(
    table: Path, images: list[bytes], tmp_path: Path, first: Literal["webdataset", "lmdb"]
) -> None:
    second: Literal["webdataset", "lmdb"] = "lmdb" if first == "webdataset" else "webdataset"
    convert(table, tmp_path / "1", output=first, input=InputOptions(columns=COLUMNS))
    convert(tmp_path / "1", tmp_path / "2", output=second)
    convert(tmp_path / "2", tmp_path / "3", output=first)
    check(READERS[second](tmp_path / "2"), images)
    check(READERS[first](tmp_path / "3"), images)
    for folder in ("2", "3"):
        assert verify(tmp_path / folder, deep=True).problems == ()
