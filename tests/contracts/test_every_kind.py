"""The same images as each kind of input: tools that are not ours read the same bytes and labels from what we wrote.

Twelve small images always; 250 photographs where they are (`make test-long`). MNIST and CIFAR files hold pixels, not
encoded images, so their bytes have no original to equal.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import lmdb
import pyarrow
import pyarrow.parquet
import pytest
import webdataset

from wellfed.converters import convert
from wellfed.converters.inputs import InputOptions

Image = tuple[str, str, bytes]
"""Class name, file name, encoded bytes."""
Source = tuple[str, InputOptions]
"""Location and options."""
Seen = Counter[tuple[str, str]]
"""Class name and SHA-256 of the image."""

OUTPUTS = ["webdataset", pytest.param("lmdb", marks=pytest.mark.long)]
"""LMDB is assembled from the same staged samples, whatever the input."""
HOLD_PIXELS = {"binary:cifar", "binary:mnist"}
FURTHER_WAYS = (
    "table:tsv",
    "table:jsonl-paths",
    "table:parquet-paths",
    "table:csv-root",
    "tar:plain",
    "tar:gz-samples",
    "tar:zst",
    "hf:arrow",
    "store:s3",
)


def seen(images: Sequence[tuple[str, bytes]]) -> Seen:
    return Counter((class_name, hashlib.sha256(data).hexdigest()) for class_name, data in images)


@pytest.fixture(scope="module", params=["twelve", pytest.param("photographs", marks=pytest.mark.long)])
def images(request: pytest.FixtureRequest) -> Sequence[Image]:
    if request.param == "twelve":
        return request.getfixturevalue("twelve_images")
    folder = request.getfixturevalue("shared_data") / "imagenet-sample"
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    assert len(paths) == 250
    return [(path.parent.name, f"{number:03d}.jpg", path.read_bytes()) for number, path in enumerate(paths)]


@pytest.fixture(scope="module")
def store(s3_server: None) -> Any:
    """The file system to fill the S3 server by."""
    return pytest.importorskip("s3fs").S3FileSystem(use_listings_cache=False)


def write_folder(directory: Path, images: Sequence[Image]) -> None:
    for class_name, name, data in images:
        (directory / class_name).mkdir(exist_ok=True, parents=True)
        (directory / class_name / name).write_bytes(data)


def write_table(way: str, directory: Path, images: Sequence[Image]) -> Source:
    """Tables of paths; the images lie beside the table, or below a root of their own."""
    root = directory / "elsewhere" if way == "csv-root" else directory
    write_folder(root, images)
    rows = [(f"{class_name}/{name}", class_name) for class_name, name, _ in images]
    if way == "tsv":
        text = "path\tlabel\n" + "".join(f"{path}\t{label}\n" for path, label in rows)
    elif way == "csv-root":
        text = "path,label\n" + "".join(f'"{path}",{label}\n' for path, label in rows)
    elif way == "jsonl-paths":
        text = "".join(json.dumps({"path": path, "label": label}) + "\n" for path, label in rows)
    else:
        columns = {"path": [path for path, _ in rows], "label": [label for _, label in rows]}
        pyarrow.parquet.write_table(pyarrow.table(columns), directory / "list.parquet")
        return str(directory / "list.parquet"), InputOptions()
    table = directory / {"tsv": "list.tsv", "csv-root": "list.csv", "jsonl-paths": "list.jsonl"}[way]
    table.write_text(text)
    return str(table), InputOptions(root=str(root) if way == "csv-root" else None)


def write_tar(way: str, directory: Path, images: Sequence[Image]) -> Source:
    """Class folders in one tar, or WebDataset samples in a compressed one."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz" if way == "gz-samples" else "w") as tar:
        for class_name, name, data in images:
            if way == "gz-samples":
                members = {name: data, f"{Path(name).stem}.cls": class_name.encode()}
            else:
                members = {f"{class_name}/{name}": data}
            for member_name, content in members.items():
                member = tarfile.TarInfo(member_name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    packed = buffer.getvalue()
    path = directory / {"plain": "photos.tar", "gz-samples": "photos.tar.gz", "zst": "photos.tar.zst"}[way]
    if way == "zst":
        packed = pytest.importorskip("zstandard").ZstdCompressor().compress(packed)
    path.write_bytes(packed)
    return str(path), InputOptions()


def write_arrow(directory: Path, images: Sequence[Image]) -> Source:
    """An Arrow stream file as `datasets` keeps in its cache."""
    datasets = pytest.importorskip("datasets")
    names = sorted({class_name for class_name, _, _ in images})
    columns = {
        "image": [{"bytes": data, "path": name} for _, name, data in images],
        "label": [names.index(class_name) for class_name, _, _ in images],
    }
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    table = datasets.Dataset.from_dict(columns, features=features).data.table
    with (
        pyarrow.OSFile(str(directory / "photos.arrow"), "wb") as sink,
        pyarrow.ipc.new_stream(sink, table.schema) as to,
    ):
        to.write_table(table)
    return str(directory / "photos.arrow"), InputOptions()


def further_source(way: str, directory: Path, images: Sequence[Image], request: pytest.FixtureRequest) -> Source:
    kind, _, how = way.partition(":")
    if kind == "table":
        return write_table(how, directory, images)
    if kind == "tar":
        return write_tar(how, directory, images)
    if kind == "hf":
        return write_arrow(directory, images)
    client, bucket = request.getfixturevalue("store"), f"photos-{len(images)}"
    if not client.exists(bucket):
        client.mkdir(bucket)
        client.pipe({f"{bucket}/{class_name}/{name}": data for class_name, name, data in images})
    return f"s3://{bucket}", InputOptions()


def by_webdataset(folder: Path, class_names: Sequence[str]) -> Seen:
    urls = sorted(str(path) for path in folder.glob("*.tar"))
    images = []
    for sample in webdataset.WebDataset(urls, shardshuffle=False):
        # Keys and members beside the image: what is left is the image.
        (extension,) = set(sample) - {"__key__", "__url__", "__local_path__", "cls", "txt", "json", "npy"}
        assert json.loads(sample["json"])["class"] == class_names[int(sample["cls"])]
        images.append((class_names[int(sample["cls"])], sample[extension]))
    return seen(images)


def by_lmdb(folder: Path, class_names: Sequence[str]) -> Seen:
    found: dict[str, dict[str, bytes]] = {}
    with lmdb.open(str(folder), readonly=True, lock=False) as environment, environment.begin() as transaction:
        for key, value in transaction.cursor():
            stem, _, extension = bytes(key).decode().partition(".")
            found.setdefault(stem, {})[extension] = bytes(value)
    images = []
    for sample in found.values():
        (extension,) = set(sample) - {"cls", "txt", "json", "npy"}
        assert json.loads(sample["json"])["class"] == class_names[int(sample["cls"])]
        images.append((class_names[int(sample["cls"])], sample[extension]))
    return seen(images)


def check(source: Source, expected: Seen, directory: Path, output: Literal["webdataset", "lmdb"]) -> None:
    location, options = source
    result = convert(location, directory / "out", output=output, shard_bytes=8_000_000, workers=1, input=options)
    assert (result.found, result.stored, result.rejected) == (expected.total(), expected.total(), 0)
    class_names = json.loads((directory / "out" / "wellfed.json").read_text())["class_names"]
    read = by_webdataset if output == "webdataset" else by_lmdb
    assert read(directory / "out", class_names) == expected


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("way", FURTHER_WAYS)
def test_further_ways(
    way: str, output: Any, images: Sequence[Image], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "source").mkdir()
    source = further_source(way, tmp_path / "source", images, request)
    check(source, seen([(class_name, data) for class_name, _, data in images]), tmp_path, output)


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_kind(
    input_kind: str, output: Any, images: Sequence[Image], input_builders: Mapping[str, Any], tmp_path: Path
) -> None:
    if input_kind in HOLD_PIXELS:
        pytest.skip("holds pixels: there are no encoded bytes to keep")
    (tmp_path / "source").mkdir()
    built = input_builders[input_kind](tmp_path / "source", images)
    expected = [(class_name, data) for class_name, _, data in images] if built.images is None else built.images
    check((built.location, built.options), seen(expected), tmp_path, output)
