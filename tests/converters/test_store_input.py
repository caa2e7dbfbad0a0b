"""Tables and images in an object store, against a real S3 server on the loopback."""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
from PIL import Image

from wellfed.converters.inputs import InputOptions
from wellfed.converters.inputs.store import StoreInput
from wellfed.converters.inputs.stores import Stores, without_query
from wellfed.converters.inputs.table import TableInput, matches
from wellfed.converters.run import convert
from wellfed.pipeline.errors import MissingDependencyError, SampleRejectedError, UsageError
from wellfed.pipeline.formats import open_source

pytest.importorskip("moto.server", reason="needs moto[server]")
s3fs = pytest.importorskip("s3fs", reason="needs s3fs")


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (4, 3), shade).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def bucket(s3_server: None, request: pytest.FixtureRequest) -> str:
    """An empty bucket."""
    name = f"b{abs(hash(request.node.name))}"
    client().mkdir(name)
    return name


def client() -> Any:
    """As Stores makes it, so that the tests share its connections: each new one reads botocore's tables for seconds."""
    return fsspec.filesystem("s3", use_listings_cache=False)


def put(bucket: str, path: str, data: bytes) -> str:
    client().pipe_file(f"{bucket}/{path}", data)
    return f"s3://{bucket}/{path}"


def listed(location: str, directory: Path, **options) -> TableInput:
    """Listed here, opened as a worker opens it."""
    TableInput.list(location, InputOptions(**options)).save(directory)
    return TableInput.load(location, directory)


def test_a_manifest_and_its_images_in_a_bucket(bucket: str, tmp_path: Path):
    put(bucket, "set/cats/a b.png", png(1))
    put(bucket, "set/cats/%41#?.png", png(2))
    location = put(bucket, "set/list.csv", b"path,label\ncats/a b.png,cat\ncats/%41#?.png,dog\ncats/none.png,dog\n")
    assert matches(location)

    table = listed(location, tmp_path)

    assert [table.name(row) for row in range(3)] == [b"cats/a b.png", b"cats/%41#?.png", b"cats/none.png"]
    assert table.read(0).image == png(1)
    assert table.read(1).image == png(2)
    assert table.sizes.tolist() == [len(png(1)), len(png(2)), 0]
    assert dict(table.refused) == {2: "the object must be readable; got no such object"}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_bytes_in_a_table_in_a_bucket(kind: str, bucket: str, tmp_path: Path):
    text = [base64.b64encode(png(shade)).decode() for shade in (7, 8)]
    if kind == "csv":
        data = f"bytes,label\n{text[0]},x\n{text[1]},y\n".encode()
    elif kind == "jsonl":
        data = f'{{"bytes":"{text[0]}","label":"x"}}\n{{"bytes":"{text[1]}","label":"y"}}\n'.encode()
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        buffer = io.BytesIO()
        parquet.write_table(pyarrow.table({"bytes": [png(7), png(8)], "label": ["x", "y"]}), buffer)
        data = buffer.getvalue()
    location = put(bucket, f"list.{kind}", data)

    table = listed(location, tmp_path)

    assert [table.read(row).image for row in (1, 0)] == [png(8), png(7)]
    assert table.labels.tolist() == [0, 1]


def test_workers_read_from_the_bucket(bucket: str, tmp_path: Path):
    put(bucket, "a.png", png(1))
    put(bucket, "b.png", png(2))
    location = put(bucket, "list.csv", b"path,label\na.png,cat\nb.png,dog\nc.png,dog\n")

    result = convert(location, tmp_path / "out", output="webdataset", workers=1)

    assert (result.found, result.stored, result.rejected) == (3, 2, 1)
    stored = open_source(tmp_path / "out")
    assert [stored.read(row) for row in range(2)] == [png(1), png(2)]
    stored.close()


def test_urls_in_a_local_manifest(bucket: str, tmp_path: Path):
    url = put(bucket, "x.png", png(3))
    manifest = tmp_path / "list.tsv"
    manifest.write_text(f"url\tlabel\n{url}\tcat\nnowhere://x\tcat\nsimplecache::{url}\tcat\n")
    (tmp_path / "saved").mkdir()

    table = listed(str(manifest), tmp_path / "saved")

    assert table.read(0).image == png(3)
    assert table.name(0) == url.encode()
    assert sorted(table.refused) == [1, 2]


def test_a_local_manifest_with_a_root_in_a_bucket(bucket: str, tmp_path: Path):
    put(bucket, "deep/x.png", png(3))
    manifest = tmp_path / "list.csv"
    manifest.write_text("path,label\nx.png,cat\n../x.png,cat\n/x.png,cat\n")
    (tmp_path / "saved").mkdir()

    table = listed(str(manifest), tmp_path / "saved", root=f"s3://{bucket}/deep")

    assert table.read(0).image == png(3)
    assert {row: reason.partition(": ")[0] for row, reason in table.refused.items()} == {1: "line 3", 2: "line 4"}


@pytest.mark.parametrize("other", [png(200), png(2) + b"!", b""], ids=["same size", "longer", "empty"])
def test_an_object_that_changed_since_it_was_listed_is_rejected(other: bytes, bucket: str, tmp_path: Path):
    put(bucket, "x.png", png(2))
    table = listed(put(bucket, "list.csv", b"path,label\nx.png,cat\n"), tmp_path)

    put(bucket, "x.png", other)

    with pytest.raises(SampleRejectedError):
        table.read(0)


def test_an_object_that_went_is_rejected(bucket: str, tmp_path: Path):
    url = put(bucket, "x.png", png(2))
    table = listed(put(bucket, "list.csv", b"path,label\nx.png,cat\n"), tmp_path)

    client().rm_file(url)

    with pytest.raises(SampleRejectedError, match="must be readable"):
        table.read(0)


def test_a_manifest_that_is_not_there_is_an_error(bucket: str):
    with pytest.raises(UsageError, match="must be readable"):
        TableInput.list(f"s3://{bucket}/none.csv", InputOptions())


def test_an_object_store_that_does_not_answer_is_an_error(bucket: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)

    with pytest.raises(UsageError):
        TableInput.list(f"s3://{bucket}/list.csv", InputOptions())
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_filesystem_is_made_anew_after_a_fork(bucket: str):
    url = put(bucket, "x.png", png(9))
    stores = Stores()
    facts = stores.facts([url])[0]
    assert stores.fetch(url, size=facts.size, stamp=facts.stamp) == png(9)

    child = os.fork()
    if not child:
        code = 1
        try:
            code = int(stores.fetch(url, size=facts.size, stamp=facts.stamp) != png(9))
        finally:
            os._exit(code)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_folder_of_class_folders_in_a_bucket(bucket: str, tmp_path: Path):
    put(bucket, "photos/dog/10.png", png(1))
    put(bucket, "photos/cat/deep/b.png", png(2))
    put(bucket, "photos/cat/a.png", png(3))
    put(bucket, "photos/cat/.hidden", b"x")
    put(bucket, "photos/cat/empty.png", b"")
    put(bucket, "photos/readme.txt", b"x")
    location = f"s3://{bucket}/photos"

    StoreInput.list(location, InputOptions()).save(tmp_path)
    folder = StoreInput.load(location, tmp_path)

    assert [folder.name(row) for row in range(4)] == [
        b"cat/a.png",
        b"cat/deep/b.png",
        b"cat/empty.png",
        b"dog/10.png",
    ]
    assert folder.class_names == ("cat", "dog")
    assert folder.labels.tolist() == [0, 0, 0, 1]
    assert dict(folder.refused) == {2: "zero bytes"}
    assert dict(folder.skipped) == {"hidden": 1, "outside_class_folders": 1}
    assert folder.read(3).image == png(1)
    assert folder.read(1).image == png(2)


def test_an_empty_prefix_is_an_error(bucket: str):
    with pytest.raises(UsageError, match="must hold images"):
        StoreInput.list(f"s3://{bucket}/nothing", InputOptions())


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    def absent(*args, **options):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.filesystem", absent)

    with pytest.raises(MissingDependencyError, match=r"wellfed\[s3\]"):
        Stores().system("s3://bucket/x")


def test_signed_urls_are_published_without_their_secrets():
    assert without_query("https://me:pw@host/a/b.jpg?X-Amz-Signature=abc#x") == "https://host/a/b.jpg"
    assert without_query("s3://bucket/a?b#c.jpg") == "s3://bucket/a?b#c.jpg"
