"""The images that every loader backend and every input must read alike, in each kind of storage."""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickle
import struct
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import lmdb
import numpy as np
import pytest
from PIL import Image

from wellfed.converters.inputs import InputOptions
from wellfed.converters.run import convert


def photo(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Smooth blobs with a little detail: decoders must not differ by what JPEG does to noise."""
    coarse = Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    detail = rng.integers(-6, 7, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(coarse).astype(int) + detail, 0, 255).astype(np.uint8))


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 images of mixed sizes in 3 classes; among them grayscale, progressive, PNG, rotated by EXIF, and CMYK."""
    root = tmp_path_factory.mktemp("images") / "photos"
    rng = np.random.default_rng(5)
    for number in range(23):
        folder = root / ("bird", "cat", "dog")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        image = photo(rng, int(rng.integers(50, 150)), int(rng.integers(50, 150)))
        path = folder / f"photo {number:02d}.jpg"
        if number == 4:
            image.convert("L").save(path, quality=90)
        elif number == 7:
            image.save(path, quality=90, progressive=True)
        elif number == 10:
            image.save(path.with_suffix(".png"))
        elif number == 13:
            exif = Image.Exif()
            exif[0x0112] = 6
            image.save(path, quality=90, exif=exif)
        elif number == 16:
            image.convert("CMYK").save(path, quality=90)
        else:
            image.save(path, quality=90)
    return root


@pytest.fixture(scope="session")
def datasets(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same images in each kind of storage."""
    made = {"folder": image_folder}
    for kind in ("webdataset", "lmdb"):
        made[kind] = tmp_path_factory.mktemp(kind) / "photos"
        convert(image_folder, made[kind], output=kind, workers=1)
    return made


# Inputs: one builder for each kind, which puts the same twelve images where that kind of input finds them.

LabelledImage = tuple[str, str, bytes]
"""Class name, file name and encoded bytes."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a builder made.

    Attributes:
        location, options: for `list_input`.
        images: (class name, encoded bytes) of each sample that must come out; None for those that were given.
        detected: the kind is found without being told.
    """

    location: str
    options: InputOptions = field(default_factory=InputOptions)
    images: Sequence[tuple[str, bytes]] | None = None
    detected: bool = True


Builder = Callable[[Path, Sequence[LabelledImage]], Built]
BUILDERS: dict[str, Builder] = {}


def builds(kind: str) -> Callable[[Builder], Builder]:
    """Register the builder of a kind of input: (an empty folder, the images) to what it made.

    A kind that is written in several ways has a builder for each, "KIND:WAY".
    """

    def register(builder: Builder) -> Builder:
        BUILDERS[kind] = builder
        return builder

    return register


@builds("folder")
def build_folder(directory: Path, images: Sequence[LabelledImage]) -> Built:
    for class_name, name, data in images:
        (directory / class_name).mkdir(exist_ok=True, parents=True)
        (directory / class_name / name).write_bytes(data)
    return Built(location=str(directory))


@builds("flat")
def build_flat(directory: Path, images: Sequence[LabelledImage]) -> Built:
    for class_name, name, data in images:
        (directory / f"{class_name}_{name}").write_bytes(data)
    return Built(location=str(directory), options=InputOptions(label_regex=r"^([a-z0-9]+)_"))


@builds("table:csv")
def build_csv(directory: Path, images: Sequence[LabelledImage]) -> Built:
    lines = ["path,label"]
    for class_name, name, data in images:
        (directory / name).write_bytes(data)
        lines.append(f"{name},{class_name}")
    (directory / "list.csv").write_text("\n".join(lines))
    return Built(location=str(directory / "list.csv"))


@builds("table:jsonl")
def build_json_lines(directory: Path, images: Sequence[LabelledImage]) -> Built:
    lines = [{"bytes": base64.b64encode(data).decode(), "label": class_name} for class_name, _, data in images]
    (directory / "list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Built(location=str(directory / "list.jsonl"))


@builds("table:parquet")
def build_parquet(directory: Path, images: Sequence[LabelledImage]) -> Built:
    # Here, because GPU machines that run the loader's contract may not have it.
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "image": [{"bytes": data, "path": name} for _, name, data in images],
        "label": [class_name for class_name, _, _ in images],
    }
    parquet.write_table(pyarrow.table(columns), directory / "list.parquet", row_group_size=5)
    return Built(location=str(directory / "list.parquet"))


def _add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


@builds("tar:shards")
def build_shards(directory: Path, images: Sequence[LabelledImage]) -> Built:
    """WebDataset samples with text, JSON and an array, over two plain tars."""
    array = io.BytesIO()
    np.save(array, np.arange(3))
    for shard in range(2):
        with tarfile.open(directory / f"part-{shard}.tar", "w") as tar:
            for class_name, name, data in images[shard * len(images) // 2 : (shard + 1) * len(images) // 2]:
                stem = name.partition(".")[0]
                _add_member(tar, name, data)
                _add_member(tar, f"{stem}.cls", class_name.encode())
                _add_member(tar, f"{stem}.txt", b"a caption")
                _add_member(tar, f"{stem}.json", b'{"score": 0.5}')
                _add_member(tar, f"{stem}.npy", array.getvalue())
    return Built(location=str(directory / "part-{0..1}.tar"))


@builds("tar:folders")
def build_packed_folders(directory: Path, images: Sequence[LabelledImage]) -> Built:
    """Class folders in one compressed tar."""
    with tarfile.open(directory / "photos.tar.gz", "w:gz") as tar:
        for class_name, name, data in images:
            _add_member(tar, f"./{class_name}/{name}", data)
    return Built(location=str(directory / "photos.tar.gz"))


@builds("zip")
def build_zip(directory: Path, images: Sequence[LabelledImage]) -> Built:
    """Class folders in a zip, deflated and stored in turn."""
    with zipfile.ZipFile(directory / "photos.zip", "w") as archive:
        for number, (class_name, name, data) in enumerate(images):
            archive.writestr(f"{class_name}/{name}", data, zipfile.ZIP_DEFLATED if number % 2 else zipfile.ZIP_STORED)
    return Built(location=str(directory / "photos.zip"))


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Nothing: requests are not part of a test's output."""


@builds("store")
def build_web_folder(directory: Path, images: Sequence[LabelledImage]) -> Built:
    """Behind a web server that lives as long as the tests; S3 has tests of its own."""
    built = build_folder(directory, images)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_QuietHandler, directory=built.location))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return Built(location=f"http://127.0.0.1:{server.server_port}")


@builds("hf:saved")
def build_saved_dataset(directory: Path, images: Sequence[LabelledImage]) -> Built:
    _hf_dataset(images).save_to_disk(directory / "set", num_shards=2)
    return Built(location=str(directory / "set"))


@builds("hf:parquet")
def build_hub_files(directory: Path, images: Sequence[LabelledImage]) -> Built:
    (directory / "data").mkdir()
    _hf_dataset(images).to_parquet(directory / "data" / "train-00000-of-00001.parquet", batch_size=5)
    return Built(location=str(directory))


def _hf_dataset(images: Sequence[LabelledImage]) -> Any:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    names = _class_names(images)
    columns = {
        "image": [{"bytes": data, "path": name} for _, name, data in images],
        "label": [names.index(class_name) for class_name, _, _ in images],
    }
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


_TORCH_MODULE = """
import pathlib
from torch.utils.data import Dataset

class Pictures(Dataset):
    def __init__(self):
        self.classes = sorted(folder.name for folder in pathlib.Path(__file__).parent.iterdir() if folder.is_dir())
        self.paths = sorted(pathlib.Path(__file__).parent.glob("*/*.*g"), key=lambda path: path.name)
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, row):
        return self.paths[row].read_bytes(), self.classes.index(self.paths[row].parent.name)
"""


@builds("torch")
def build_torch_dataset(directory: Path, images: Sequence[LabelledImage]) -> Built:
    build_folder(directory, images)
    module = f"contract_pictures_{len(images)}"
    (directory / f"{module}.py").write_text(_TORCH_MODULE)
    sys.path.append(str(directory))
    return Built(location=f"{module}:Pictures")


@builds("binary:cifar")
def build_cifar(directory: Path, images: Sequence[LabelledImage]) -> Built:
    names = _class_names(images)
    pixels, expected = _pixels(images, "RGB", (32, 32))
    folder = directory / "cifar-10-batches-py"
    folder.mkdir()
    rows = np.stack([each.transpose(2, 0, 1).reshape(-1) for each in pixels])
    batch = {"data": rows, "labels": [names.index(class_name) for class_name, _, _ in images]}
    (folder / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    return Built(location=str(directory), images=expected)


@builds("binary:mnist")
def build_mnist(directory: Path, images: Sequence[LabelledImage]) -> Built:
    pixels, expected = _pixels(images, "L", (28, 28))
    digits = [number % 10 for number in range(len(images))]
    header = struct.pack(">IIII", 0x0803, len(images), 28, 28)
    (directory / "train-images-idx3-ubyte").write_bytes(header + np.stack(pixels).tobytes())
    header = struct.pack(">II", 0x0801, len(images))
    (directory / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + bytes(digits)))
    return Built(
        location=str(directory), images=[(str(digit), data) for digit, (_, data) in zip(digits, expected, strict=True)]
    )


def _class_names(images: Sequence[LabelledImage]) -> list[str]:
    return sorted({class_name for class_name, _, _ in images})


def _varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + _varint(value >> 7) if value > 127 else bytes([value])


def _write_lmdb(folder: Path, entries: Mapping[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    with lmdb.open(str(folder), map_size=1 << 26) as environment, environment.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key.encode(), value)


@builds("lmdb:lsun")
def build_lsun(directory: Path, images: Sequence[LabelledImage]) -> Built:
    """An environment for each class, keys to images."""
    for wanted in {class_name for class_name, _, _ in images}:
        entries = {name: data for class_name, name, data in images if class_name == wanted}
        _write_lmdb(directory / f"{wanted}_train_lmdb", entries)
    return Built(location=str(directory))


@builds("lmdb:basicsr")
def build_basicsr(directory: Path, images: Sequence[LabelledImage]) -> Built:
    """Keys without extensions and the list of names beside the environment."""
    _write_lmdb(directory, {f"{class_name}/{Path(name).stem}": data for class_name, name, data in images})
    lines = [f"{class_name}/{Path(name).stem}.png (20,24,3) 1\n" for class_name, name, _ in images]
    (directory / "meta_info.txt").write_text("".join(lines))
    return Built(location=str(directory), options=InputOptions(label_regex="^([a-z0-9]+)/"))


@builds("lmdb:datum")
def build_datums(directory: Path, images: Sequence[LabelledImage]) -> Built:
    """Caffe's records of encoded images; fields 4 (data), 5 (label) and 7 (encoded) in protobuf's wire format."""
    classes = _class_names(images)
    labels = [classes.index(class_name) for class_name, _, _ in images]
    entries = {
        name: b"\x22" + _varint(len(data)) + data + b"\x28" + _varint(label) + b"\x38\x01"
        for label, (_, name, data) in zip(labels, images, strict=True)
    }
    _write_lmdb(directory, entries)
    expected = [(str(label), data) for label, (_, _, data) in zip(labels, images, strict=True)]
    return Built(location=str(directory), images=expected)


@builds("lmdb:pickle")
def build_pickles(directory: Path, images: Sequence[LabelledImage]) -> Built:
    _write_lmdb(directory, {name: pickle.dumps((data, class_name)) for class_name, name, data in images})
    return Built(location=str(directory), options=InputOptions(allow_pickle=True))


def _converted(directory: Path, images: Sequence[LabelledImage], output: Literal["webdataset", "lmdb"]) -> Built:
    build_folder(directory / "photos", images)
    convert(directory / "photos", directory / "dataset", output=output, workers=1)
    return Built(location=str(directory / "dataset"))


BUILDERS["stored:webdataset"] = partial(_converted, output="webdataset")
BUILDERS["stored:lmdb"] = partial(_converted, output="lmdb")


def _pixels(
    images: Sequence[LabelledImage], mode: str, size: tuple[int, int]
) -> tuple[list[np.ndarray], list[tuple[str, bytes]]]:
    """The images as arrays of one size, and what must come out: them as PNG."""
    arrays, expected = [], []
    for class_name, _, data in images:
        image = Image.open(io.BytesIO(data)).convert(mode).resize(size)
        arrays.append(np.asarray(image))
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        expected.append((class_name, buffer.getvalue()))
    return arrays, expected


@pytest.fixture(scope="session")
def twelve_images() -> Sequence[LabelledImage]:
    """Four images each of bird, cat and dog; JPEG but for one PNG in each class; all different."""
    rng = np.random.default_rng(8)
    made = []
    for number in range(12):
        class_name, extension = ("bird", "cat", "dog")[number % 3], "png" if number < 3 else "jpg"
        buffer = io.BytesIO()
        photo(rng, 24 + number, 20).save(buffer, "PNG" if extension == "png" else "JPEG")
        made.append((class_name, f"{number:02d}.{extension}", buffer.getvalue()))
    return made


@pytest.fixture(scope="session")
def input_builders() -> Mapping[str, Builder]:
    """Every builder, by kind."""
    return BUILDERS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `input_kind` runs for each kind that has a builder."""
    if "input_kind" in metafunc.fixturenames:
        metafunc.parametrize("input_kind", sorted(BUILDERS), scope="session")


@pytest.fixture(scope="session")
def built(input_kind: str, twelve_images: Sequence[LabelledImage], tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The twelve images as that kind of input."""
    directory = tmp_path_factory.mktemp(f"input-{input_kind.replace(':', '-')}") / "source"
    directory.mkdir()
    made = BUILDERS[input_kind](directory, twelve_images)
    return replace(made, images=[(name, data) for name, _, data in twelve_images]) if made.images is None else made
