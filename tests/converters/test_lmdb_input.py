"""LMDB environments of other tools, each written here with plain lmdb the way its tool writes it."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import lmdb
import numpy as np
import pytest
from PIL import Image

from wellfed.converters.inputs import Input, InputOptions, list_input, open_saved
from wellfed.converters.inputs.datum import parse_datum
from wellfed.pipeline.errors import SampleRejectedError, UsageError

Images = Callable[..., bytes]
BY_KEY = InputOptions(label_regex=r"^(\w+)/")


def write(folder: Path, entries: Mapping[bytes, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    environment = lmdb.open(str(folder), map_size=1 << 26)
    with environment.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)
    environment.close()
    return folder


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def datum(channels: int, height: int, width: int, data: bytes, label: int | None, *, encoded: bool = False) -> bytes:
    """As protobuf writes Caffe's message: fields in order of their numbers."""
    parts = [b"\x08" + varint(channels), b"\x10" + varint(height), b"\x18" + varint(width)]
    parts.append(b"\x22" + varint(len(data)) + data)
    if label is not None:
        parts.append(b"\x28" + varint(label))
    if encoded:
        parts.append(b"\x38\x01")
    return b"".join(parts)


def contents(source: Input) -> dict[bytes, tuple[bytes, str]]:
    """Name to (image, class) of what can be read."""
    found = {}
    for row in range(len(source)):
        if row not in source.refused:
            image = source.read(row).image
            assert image is not None
            found[source.name(row)] = (image, source.class_names[int(source.labels[row])])
    return found


def pixels(image: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(image)) as opened:
        return np.asarray(opened)


def test_key_per_image_with_a_label_rule(tmp_path: Path, make_jpeg: Images) -> None:
    # given an environment whose keys say the class, and a remark of its tool
    images = {b"cat/1": make_jpeg(1), b"cat/2": make_jpeg(2), b"dog/\xff": make_jpeg(3)}
    location = str(write(tmp_path / "db", {**images, b"__len__": b"3", b"nolabel": make_jpeg(4)}))
    # when it is listed and opened again elsewhere
    list_input(location, BY_KEY).save(tmp_path)
    source = open_saved("lmdb", location, tmp_path)
    # then keys are the names, bytes are the values, and the one the rule does not fit is refused
    assert contents(source) == {
        b"cat/1": (images[b"cat/1"], "cat"),
        b"cat/2": (images[b"cat/2"], "cat"),
        b"dog/\xff": (images[b"dog/\xff"], "dog"),
    }
    assert {source.name(row): reason for row, reason in source.refused.items()} == {
        b"nolabel": "the label rule does not fit the key"
    }
    assert source.skipped == {"metadata": 1}
    assert source.sizes.tolist() == [len(make_jpeg(number)) for number in (1, 2, 3, 4)]


def test_lsun_environments_are_classes(tmp_path: Path, make_jpeg: Images) -> None:
    write(tmp_path / "lsun" / "tower_val_lmdb", {b"aa": make_jpeg(1)})
    write(tmp_path / "lsun" / "church_outdoor_val_lmdb", {b"aa": make_jpeg(2), b"bb": make_jpeg(3)})
    source = list_input(str(tmp_path / "lsun"), InputOptions())
    assert (source.kind, source.class_names) == ("lmdb", ("church_outdoor", "tower"))
    assert contents(source) == {
        b"church_outdoor_val_lmdb/aa": (make_jpeg(2), "church_outdoor"),
        b"church_outdoor_val_lmdb/bb": (make_jpeg(3), "church_outdoor"),
        b"tower_val_lmdb/aa": (make_jpeg(1), "tower"),
    }


def test_images_without_anything_that_says_labels_need_a_rule(tmp_path: Path, make_jpeg: Images) -> None:
    location = str(write(tmp_path / "db", {b"aa": make_jpeg(1)}))
    with pytest.raises(UsageError, match="must get their labels from somewhere"):
        list_input(location, InputOptions())
    # one given class is that of all
    source = list_input(location, InputOptions(classes=("bedroom",)))
    assert contents(source) == {b"aa": (make_jpeg(1), "bedroom")}


def test_basicsr_names_come_from_its_list(tmp_path: Path, make_jpeg: Images) -> None:
    folder = write(tmp_path / "db", {b"x/0002_s1": make_jpeg(1), b"x/0001": make_jpeg(2), b"unlisted": make_jpeg(3)})
    (folder / "meta_info.txt").write_text("x/0002_s1.png (30,40,3) 1\nx/0001.png (30,40,3) 1\nx/lost.png (1,1,1) 1\n")
    source = list_input(str(folder), BY_KEY)
    assert contents(source) == {b"x/0002_s1.png": (make_jpeg(1), "x"), b"x/0001.png": (make_jpeg(2), "x")}
    assert source.refused == {2: "meta_info.txt lists it, and the environment has no such key"}
    assert source.skipped == {"not in meta_info.txt": 1}
    (folder / "meta_info.txt").write_text("x/0001.png\n")
    with pytest.raises(UsageError, match=r"line 1: 'x/0001.png'"):
        list_input(str(folder), BY_KEY)


def test_caffe_datums(tmp_path: Path, make_jpeg: Images) -> None:
    # given a record with an encoded image, one of blue-green-red planes, one gray, and four that cannot be stored
    bgr = np.arange(3 * 2 * 4, dtype=np.uint8).reshape(3, 2, 4)
    entries = {
        b"00_encoded": datum(3, 30, 40, make_jpeg(1), 1, encoded=True),
        b"01_planes": datum(3, 2, 4, bgr.tobytes(), 0),
        b"02_gray": datum(1, 2, 2, b"\x00\x40\x80\xff", 1),
        b"03_no_label": datum(1, 1, 1, b"\x00", None),
        b"04_negative": datum(1, 1, 1, b"\x00", -1),
        b"05_short": datum(3, 2, 4, b"\x00", 0),
        b"06_floats": b"\x08\x01\x10\x01\x18\x01\x28\x00" + b"\x35" + struct.pack("<f", 0.5),
        b"07_garbage": b"\xff\xff",
    }
    source = list_input(str(write(tmp_path / "db", entries)), InputOptions())
    # then labels are whole numbers, and red comes first
    assert source.class_names == ("0", "1")
    assert source.labels.tolist()[:3] == [1, 0, 1]
    assert source.read(0).image == make_jpeg(1)
    planes, gray = source.read(1).image, source.read(2).image
    assert planes is not None
    assert gray is not None
    assert pixels(planes)[0, 1].tolist() == [17, 9, 1]
    assert pixels(gray).tolist() == [[0, 64], [128, 255]]
    assert {source.name(row): reason for row, reason in source.refused.items()} == {
        b"03_no_label": "the label is missing",
        b"04_negative": "the label -1 is below 0",
        b"07_garbage": "the record must be a Caffe Datum; got it ends inside a number",
    }
    for row, reason in ((5, "channels x height x width"), (6, "bytes, not floats")):
        with pytest.raises(SampleRejectedError, match=reason):
            source.read(row)


@pytest.mark.parametrize(
    "value", [b"", b"\x08", b"\x22\x05ab", b"\x08" + b"\xff" * 11, b"\x42\x00", b"\x09" + bytes(8), b"\x08\x01"]
)
def test_what_is_no_datum_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_datum(value)


def test_pickles_are_read_only_when_allowed(tmp_path: Path, make_jpeg: Images) -> None:
    array = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    entries = {
        b"0": pickle.dumps((make_jpeg(1), 1)),
        b"1": pickle.dumps((array, np.int64(0))),
        b"2": pickle.dumps({"image": make_jpeg(2), "label": 1}),
        b"3": pickle.dumps((1, 2, 3)),
        b"4": pickle.dumps(({}, 0)),
        b"5": b"\x80\x04.",
        b"__keys__": pickle.dumps([b"0"]),
    }
    location = str(write(tmp_path / "db", entries))
    with pytest.raises(UsageError, match=r"only when allowed.*--allow-pickle"):
        list_input(location, InputOptions())
    source = list_input(location, InputOptions(allow_pickle=True))
    assert source.labels.tolist()[:3] == [1, 0, 1]
    assert (source.read(0).image, source.read(2).image) == (make_jpeg(1), make_jpeg(2))
    image = source.read(1).image
    assert image is not None
    assert pixels(image).tolist() == array.tolist()
    assert set(source.refused) == {3, 5}
    with pytest.raises(SampleRejectedError, match="bytes, an array or a Pillow image"):
        source.read(4)


class Touch:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_pickle_that_is_not_allowed_runs_nothing(tmp_path: Path) -> None:
    location = str(write(tmp_path / "db", {b"0": pickle.dumps((Touch(tmp_path / "touched"), 0))}))
    with pytest.raises(UsageError, match="only when allowed"):
        list_input(location, InputOptions())
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("keep", [0, 100, 4096, 9000])
def test_a_cut_environment_is_an_error_before_it_is_mapped(tmp_path: Path, make_jpeg: Images, keep: int) -> None:
    folder = write(tmp_path / "db", {b"cat/%d" % number: make_jpeg(number) for number in range(20)})
    data = (folder / "data.mdb").read_bytes()
    (folder / "data.mdb").write_bytes(data[:keep])
    with pytest.raises(UsageError, match="must be a whole LMDB data file"):
        list_input(str(folder), BY_KEY)


def test_garbage_is_an_error_and_kills_nothing(tmp_path: Path, make_jpeg: Images) -> None:
    folder = write(tmp_path / "db", {b"cat/%d" % number: make_jpeg(number) for number in range(20)})
    data = bytearray((folder / "data.mdb").read_bytes())
    for garbage in (b"\xa5", b"\x00", b"\xff"):
        data[2 * 4096 :] = garbage * (len(data) - 2 * 4096)
        (folder / "data.mdb").write_bytes(data)
        with pytest.raises(UsageError, match=r"LMDB"):
            list_input(str(folder), BY_KEY)


def test_records_of_no_layout_are_named(tmp_path: Path) -> None:
    location = str(write(tmp_path / "db", {b"k": b"plain text"}))
    with pytest.raises(
        UsageError, match=r"images, Caffe Datums or pickles of images; got .*b'k' begins with b'plain te'"
    ):
        list_input(location, BY_KEY)
    with pytest.raises(UsageError, match="has no records"):
        list_input(str(write(tmp_path / "empty", {})), BY_KEY)


def test_an_environment_that_changed_rejects_its_samples(tmp_path: Path, make_jpeg: Images) -> None:
    folder = write(tmp_path / "db", {b"cat/1": make_jpeg(1)})
    list_input(str(folder), BY_KEY).save(tmp_path)
    write(folder, {b"cat/1": make_jpeg(2)})
    with pytest.raises(SampleRejectedError, match="must not change"):
        open_saved("lmdb", str(folder), tmp_path).read(0)


def test_a_single_file_is_an_environment_too(tmp_path: Path, make_jpeg: Images) -> None:
    write(tmp_path / "db", {b"cat/1": make_jpeg(1)})
    (tmp_path / "db" / "data.mdb").rename(tmp_path / "photos.lmdb")
    assert contents(list_input(str(tmp_path / "photos.lmdb"), BY_KEY)) == {b"cat/1": (make_jpeg(1), "cat")}
