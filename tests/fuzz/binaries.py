"""idx files, CIFAR's pickles, and the records of other tools' LMDB environments."""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
import struct
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from wellfed.converters.inputs import InputOptions
from wellfed.converters.inputs.binary import BinaryInput
from wellfed.converters.inputs.cifar_pickle import read_batch
from wellfed.converters.inputs.idx import read_idx
from wellfed.converters.inputs.lmdb_foreign import LmdbInput
from wellfed.pipeline.errors import DamagedDatasetError, SampleRejectedError, WellfedError
from wellfed.pipeline.formats.lmdb import check_mappable

from .images import encoded
from .target import MEBIBYTE, Case, Target

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(shape: tuple[int, ...]) -> bytes:
    """An idx file of ascending bytes."""
    header = bytes((0, 0, 8, len(shape))) + b"".join(size.to_bytes(4, "big") for size in shape)
    return header + (np.arange(np.prod(shape)) % 3).astype(np.uint8).tobytes()


def batch(protocol: int, **more: Any) -> bytes:
    """A CIFAR batch of two pictures, as the given pickle protocol writes it."""
    data = np.arange(2 * 3072).astype(np.uint8).reshape(2, 3072)
    return pickle.dumps({b"data": data, b"labels": [0, 1], b"filenames": [b"a.png", "b.png"], **more}, protocol)


def cases() -> list[Case]:
    """Both idx files, raw and packed, batches by each protocol, and the class names."""
    meta = pickle.dumps({"label_names": ["plane", "car"], "num_vis": 3072}, 2)
    return [
        (IMAGES, idx((3, 4, 5))),
        (LABELS, idx((3,))),
        (IMAGES + ".gz", gzip.compress(idx((3, 4, 5)))),
        (LABELS + ".gz", gzip.compress(idx((3,)))),
        *(("data_batch_1", batch(protocol)) for protocol in (0, 2, 4)),
        ("data_batch_1", pickle.dumps({"data": [1], "fine_labels": [0]}, 2)),
        ("data_batch_1", pickle.dumps([1], 2)),
        ("data_batch_1", pickle.dumps({"data": np.asfortranarray(np.zeros((2, 3072), np.uint8)), "labels": [0, 1]}, 2)),
        ("data_batch_1", batch(2, **{"filenames": [1]})),
        ("data_batch_1", pickle.dumps({"data": np.zeros((2, 5), np.uint8), "labels": [0, 1]}, 2)),
        ("data_batch_1", pickle.dumps({"data": np.zeros((2, 3072), np.int16), "labels": [0, 1]}, 2)),
        ("data_batch_1", pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": 3}, 2)),
        ("data_batch_1", pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}, 2)),
        ("data_batch_1", pickle.dumps({"data": np.zeros((0, 3072), np.uint8), "labels": []}, 2)),
        ("data_batch_1", pickle.dumps(os.system, 2)),
        ("data_batch_1", pickle.dumps({"data": b"\xff"}, 2).replace(b"latin1", b"utf-16")),
        (IMAGES, idx((2, 4, 5))),
        (IMAGES, idx((0, 4, 5))),
        ("batches.meta", meta),
    ]


def read_binary(slot: str, data: bytes, folder: Path) -> None:
    """The file beside good ones: parsed alone, then listed and read."""
    place = folder / "source"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    cifar = slot in ("data_batch_1", "batches.meta")
    if cifar:
        (place / "data_batch_1").write_bytes(batch(2))
    else:
        for name, good in ((IMAGES, idx((3, 4, 5))), (LABELS, idx((3,)))):
            if not slot.startswith(name):
                (place / name).write_bytes(good)
    (place / slot).write_bytes(data)
    with suppress(WellfedError):
        if cifar:
            found = read_batch(place / slot)
            assert all(isinstance(key, str) for key in found)
        else:
            dimensions = 3 if slot.startswith(IMAGES) else 1
            values = read_idx(place / slot, dimensions, prefix=False)
            try:
                raw = gzip.decompress(data) if slot.endswith(".gz") else data
            except (EOFError, OSError, zlib.error) as error:
                raise AssertionError("a damaged gzip file was read as if it were whole") from error
            shape = struct.unpack_from(f">{dimensions}I", raw, 4)
            assert values.shape == shape
            assert values.tobytes() == raw[4 + 4 * dimensions :]
    for options in (
        InputOptions(),
        InputOptions(prefix=True, classes=("a", "b", "plane")),
        InputOptions(label_column="labels", classes=("car", "plane")),
    ):
        with suppress(WellfedError):
            source = BinaryInput.list(str(place), options)
            for row in range(min(len(source), 4)):
                if row not in source.refused:
                    with suppress(SampleRejectedError):
                        assert (source.read(row).image or b"").startswith(b"\x89PNG")


def varint(number: int) -> bytes:
    """As protobuf writes it."""
    data = b""
    while number > 0x7F:
        data, number = data + bytes((number & 0x7F | 0x80,)), number >> 7
    return data + bytes((number,))


def datum(channels: int, height: int, width: int, data: bytes, *, encoded: bool = False, floats: bool = False) -> bytes:
    """A Caffe Datum with label 1."""
    record = b"".join(varint(place << 3) + varint(size) for place, size in enumerate((channels, height, width), 1))
    record += b"\x22" + varint(len(data)) + data + b"\x28\1"
    return record + (b"\x38\1" if encoded else b"") + (b"\x35" + bytes(4) if floats else b"")


def records() -> list[Case]:
    """Records of each layout; the slot says what the environment around them looks like."""
    jpeg = encoded("JPEG")
    array = np.zeros((2, 2, 3), np.uint8)
    minus = b"\x08\x01\x10\x01\x18\x01\x22\x01a\x28" + varint((1 << 64) - 1)
    pickles = [
        (jpeg, 1),
        {"image": array, "label": 1},
        {"img": jpeg},
        {"x": 1},
        (1, 2, 3),
        array,
        {"image": array.tolist(), "label": np.int64(1)},
    ]
    return [
        ("lsun", jpeg),
        ("keys", jpeg),
        ("basicsr", b"0.png (2,2,3) 1\n1.png (2,2)\n"),
        ("datum", datum(3, 1, 2, b"abcdef")),
        ("datum", datum(1, 2, 3, b"abcdef")),
        ("datum", datum(3, 0, 0, jpeg, encoded=True)),
        ("datum", datum(3, 1, 2, b"abcdef", floats=True)),
        ("datum", datum(2, 1, 1, b"ab")),
        ("datum", b"\x32\x04" + bytes(4)),
        ("datum", minus),
        *(("pickle", pickle.dumps(value, protocol)) for value in pickles for protocol in (2, 4)),
        ("pickle", b"\x80\x02N."),
        ("file", b""),
    ]


def environment(folder: Path, entries: dict[bytes, bytes]) -> Path:
    """An environment with these records."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with lmdb.open(str(folder), map_size=1 << 24, lock=False, sync=False) as opened, opened.begin(write=True) as writer:
        for key, value in entries.items():
            writer.put(key, value)
    return folder / "data.mdb"


def here(function: Any, tasks: Any, **options: Any) -> None:
    """`run_tasks` in this process: the environments of this target are whole, only their records are not."""
    for number, task in enumerate(tasks):
        options["on_result"](number, function(*task, report=lambda value: None))


def read_lmdb(slot: str, data: bytes, folder: Path) -> None:
    """An environment whose records are these bytes, listed and read."""
    from wellfed.converters import pool

    pool.run_tasks = here
    place = folder / "one_train_lmdb"
    if slot == "file":
        header_only(data, folder)
        return
    good = encoded("JPEG")
    entries = {b"0": good if slot == "basicsr" else data, b"1": good, b"__len__": b"2"}
    if slot in ("datum", "pickle"):
        entries[b"1"] = data
    shutil.rmtree(folder, ignore_errors=True)
    path = environment(place, entries)
    options = [InputOptions(label_regex=".(.*)"), InputOptions(classes=("a",)), InputOptions()]
    if slot == "basicsr":
        (place / "meta_info.txt").write_bytes(data)
    if slot == "pickle":
        pickles_without_code(data)
        options.append(InputOptions(allow_pickle=True))
        options.append(InputOptions(allow_pickle=True, image_column="image", label_column="label"))
    if slot == "lsun":
        environment(folder / "two_lmdb", {b"x": data})
    for each in options:
        with suppress(WellfedError):
            source = LmdbInput.list(str(folder if slot == "lsun" else path if slot == "keys" else place), each)
            for row in range(len(source)):
                if row not in source.refused:
                    with suppress(SampleRejectedError):
                        assert source.read(row).image


def pickles_without_code(data: bytes) -> None:
    """Let through only pickles of plain values: what one that is allowed runs is not the parser's."""
    if any(name in data for name in (b"c", b"\x93", b"\x82", b"\x83", b"\x84", b"i", b"R", b"o", b"b")) and (
        data not in _SEEDED
    ):
        raise SampleRejectedError("this input would run code")


def header_only(data: bytes, folder: Path) -> None:
    """The two first pages of an environment, damaged: never mapped where pages are missing."""
    path = environment(folder / "whole", {b"%04d" % number: bytes(500) for number in range(40)})
    whole = path.read_bytes()
    path.write_bytes(data + whole[len(data) :] if data else whole)
    with suppress(DamagedDatasetError):
        check_mappable(path)
        held = path.read_bytes()
        size = struct.unpack_from("<I", held, 40)[0]
        for meta in (0, size):
            assert (struct.unpack_from("<Q", held, meta + 136)[0] + 1) * size <= len(held)


_SEEDED = {data for slot, data in records() if slot == "pickle"}


def meta_pages() -> bytes:
    """The two pages that an environment begins with."""
    with tempfile.TemporaryDirectory() as folder:
        return environment(Path(folder) / "e", {b"0": b"1"}).read_bytes()[:8192]


TARGETS = (
    Target(
        name="binary",
        run=read_binary,
        seeds=cases,
        modules=(
            "wellfed.converters.inputs.binary",
            "wellfed.converters.inputs.idx",
            "wellfed.converters.inputs.cifar_pickle",
        ),
        uncounted={
            "except OSError as error:": "a file that cannot be read",
            "must be readable": "a file that cannot be read",
            "(OSError, UsageError, IndexError)": "only where the file is written again in between",
            "raise SampleRejectedError(_CHANGED, got=path.name)": "only where the file is written again in between",
        },
        functions=(
            "read_idx",
            "_shape",
            "_unpacked",
            "_add_",
            "_label_key",
            "_cifar_classes",
            "_name_bytes",
            "read_batch",
            "_Dtype",
            "_Array",
            "_reconstruct",
            "_encode",
            "_Restricted",
            "BinaryInput.list",
            "BinaryInput.read",
        ),
        words=(
            b"\0\0\x08\3",
            b"\0\0\x08\1",
            b"cos\nsystem\n",
            b"\x93",
            b"r\xff\xff\xff\x7f",
            b"j\0\0\0\4",
            b"\x8e",
            b"\x96",
        ),
    ),
    Target(
        name="lmdb",
        run=read_lmdb,
        seeds=lambda: [*records(), ("file", meta_pages())],
        modules=(
            "wellfed.converters.inputs.lmdb_foreign",
            "wellfed.converters.inputs.lmdb_layouts",
            "wellfed.converters.inputs.datum",
        ),
        functions=(
            "LmdbInput.list",
            "_records",
            "_fixed_label",
            "_record_label",
            "_layout",
            "layout_of",
            "meta_names",
            "datum_",
            "unpickled",
            "_entry",
            "_plain_label",
            "pickled_image",
            "parse_datum",
            "_varint",
            "LmdbInput.read",
        ),
        # A name for each class of a label just below a million.
        memory=256 * MEBIBYTE,
        words=(b"\x08\1", b"\x22", b"\x28", b"\x38\1", b"\xff" * 9, b"(1,2,3)", b"\n", b"\x80\2", b"\x80\4", b"."),
    ),
)
