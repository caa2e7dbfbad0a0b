"""Tiny datasets written by hand with tarfile, lmdb and numpy: independent of the converters."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

# key (a rejected sample left the gap at 1), label, extension, name, image bytes
SAMPLES = [
    (0, 0, "jpg", b"cat/a.jpg", b"first" * 300),
    (2, 0, "png", b"cat/\xff b.png", b"second" * 200),
    (3, 1, "jpg", b"dog/c.jpg", b"third" * 500),
]

ROW = np.dtype(
    [
        ("key", "<u8"),
        ("shard", "<u4"),
        ("label", "<i8"),
        ("width", "<u4"),
        ("height", "<u4"),
        ("orientation", "u1"),
        ("mode", "u1"),
        ("ext", "S8"),
        ("offset_image", "<u8"),
        ("size_image", "<u8"),
        ("xxh3_image", "<u8"),
    ]
)


def _publish(directory: Path, kind: str, shards: list[dict[str, Any]], places: list[tuple[int, int]]) -> Path:
    rows = [
        (key, shard, label, 40 + key, 30, 1, 6, extension.encode(), offset, len(image), 0)
        for (key, label, extension, _, image), (shard, offset) in zip(SAMPLES, places, strict=True)
    ]
    np.save(directory / "wellfed.index.npy", np.array(rows, dtype=ROW))
    names = [name for _, _, _, name, _ in SAMPLES]
    (directory / "wellfed.names.bin").write_bytes(b"".join(names))
    np.save(directory / "wellfed.names.npy", np.array([0, 9, 9 + 11, 9 + 11 + 9], dtype="<u8"))
    for shard in shards:
        data = (directory / shard["name"]).read_bytes()
        shard.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    manifest = {
        "schema": "wellfed-dataset",
        "schema_version": 1,
        "kind": kind,
        "samples": 3,
        "class_names": ["cat", "dog"],
        "fields": ["image"],
        "shards": shards,
        "files": {},
        "options": {"image": "keep"},
        "source": {"kind": "folder", "name": "pets", "found": 4, "rejected": 1, "skipped": {}},
        "notes": {"grayscale": 1},
        "tool_version": "0.1.0",
    }
    (directory / "wellfed.json").write_text(json.dumps(manifest))
    return directory


@pytest.fixture
def samples() -> list[tuple[int, int, str, bytes, bytes]]:
    return SAMPLES


@pytest.fixture
def webdataset_folder(tmp_path: Path) -> Path:
    directory = tmp_path / "wds"
    directory.mkdir()
    places = []
    for shard, members in enumerate((SAMPLES[:2], SAMPLES[2:])):
        path = directory / f"pets-{shard:06d}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for key, _, extension, _, image in members:
                info = tarfile.TarInfo(f"{key:010d}.{extension}")
                info.size = len(image)
                tar.addfile(info, BytesIO(image))
        with tarfile.open(path) as tar:
            places += [(shard, info.offset_data) for info in tar.getmembers()]
    shards = [{"name": "pets-000000.tar", "samples": 2}, {"name": "pets-000001.tar", "samples": 1}]
    return _publish(directory, "webdataset", shards, places)


@pytest.fixture
def lmdb_folder(tmp_path: Path) -> Path:
    directory = tmp_path / "lmdb"
    directory.mkdir()
    environment = lmdb.open(str(directory), map_size=1 << 20, lock=False)
    with environment.begin(write=True) as transaction:
        for key, _, extension, _, image in SAMPLES:
            transaction.put(f"{key:010d}.{extension}".encode(), image)
    environment.close()
    return _publish(directory, "lmdb", [{"name": "data.mdb", "samples": 3}], [(0, 0)] * 3)


@pytest.fixture
def pets_folder(tmp_path: Path) -> Path:
    """The same samples as a folder of class folders; an empty file stands at planned number 1."""
    root = tmp_path / "pets"
    for _, _, _, name, image in [*SAMPLES, (1, 0, "jpg", b"cat/empty.jpg", b"")]:
        path = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(image)
    # Sorted by bytes: a.jpg, empty.jpg, \xff b.png; the gap in the keys is therefore 1, as in SAMPLES.
    return root


@pytest.fixture(params=["webdataset_folder", "lmdb_folder", "pets_folder"])
def any_folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["webdataset_folder", "lmdb_folder"])
def stored_folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture
def in_forked_child() -> Callable[[Callable[[], bytes]], bytes]:
    """Runs a function in a forked child and returns its bytes, or the repr of what it raised."""

    def run(function: Callable[[], bytes]) -> bytes:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                result = function()
            except BaseException as error:
                result = repr(error).encode()
            os.write(writer, result)
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as file:
            result = file.read()
        os.waitpid(child, 0)
        return result

    return run
