"""MNIST's idx files and CIFAR's pickled batches, checked with torchvision's own readers."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wellfed.converters.inputs.base import InputOptions
from wellfed.converters.inputs.binary import BinaryInput, matches
from wellfed.pipeline.errors import SampleRejectedError, UsageError

IMAGES = np.random.default_rng(3).integers(0, 256, (12, 28, 28), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 0], np.uint8)
TRAIN = InputOptions(split_name="train")


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    data = header + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.fixture(params=["", ".gz"])
def mnist(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    raw = tmp_path / "data" / "MNIST" / "raw"
    write_idx(raw / f"train-images-idx3-ubyte{request.param}", IMAGES)
    write_idx(raw / f"train-labels-idx1-ubyte{request.param}", LABELS)
    write_idx(raw / f"t10k-images-idx3-ubyte{request.param}", IMAGES[:2])
    write_idx(raw / f"t10k-labels-idx1-ubyte{request.param}", LABELS[:2])
    return tmp_path / "data"


def write_cifar(folder: Path, classes: int = 10) -> np.ndarray:
    """As Python 2 wrote the public files: protocol 2; returns the pixels, (20, 3072)."""
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(4).integers(0, 256, (20, 3072), dtype=np.uint8)
    for number in range(2):
        rows = slice(10 * number, 10 * number + 10)
        batch = {
            "data": pixels[rows],
            "labels": [(row * 3) % classes for row in range(rows.start, rows.stop)],
            "filenames": [f"picture_s_{row:06d}.png" for row in range(rows.start, rows.stop)],
            "batch_label": f"training batch {number + 1}",
        }
        (folder / f"data_batch_{number + 1}").write_bytes(pickle.dumps(batch, protocol=2))
    (folder / "test_batch").write_bytes(pickle.dumps({"data": pixels[:1], "labels": [7]}, protocol=2))
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names, "num_vis": 3072}, protocol=2))
    return pixels


def pixels_of(data: bytes | None) -> np.ndarray:
    assert data is not None
    return np.asarray(Image.open(io.BytesIO(data)))


def test_mnist_gives_what_torchvision_reads(mnist: Path) -> None:
    from torchvision.datasets import mnist as reader

    # given the raw or gzipped files, when they are listed and read
    listed = BinaryInput.list(str(mnist), TRAIN)
    # then images and labels are those of torchvision's reader
    images = reader.read_image_file(_unpacked(mnist, "train-images-idx3-ubyte"))
    assert len(listed) == 12
    assert [int(label) for label in listed.labels] == [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 0]
    assert listed.class_names == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    for row in range(12):
        assert np.array_equal(pixels_of(listed.read(row).image), images[row].numpy())
    assert listed.name(11) == b"row-000000011"


def _unpacked(mnist: Path, name: str) -> str:
    raw = mnist / "MNIST/raw" / name
    if not raw.exists():
        # Elsewhere, so that the input still meets nothing but the compressed file.
        raw = mnist.parent / name
        raw.write_bytes(gzip.decompress((mnist / "MNIST/raw" / f"{name}.gz").read_bytes()))
    return str(raw)


@pytest.mark.parametrize("inside", ["", "MNIST", "MNIST/raw"])
def test_mnist_is_found_from_each_folder_of_torchvision(mnist: Path, inside: str) -> None:
    assert matches(str(mnist / inside))
    assert len(BinaryInput.list(str(mnist / inside), InputOptions(split_name="test"))) == 2


def test_saved_listing_reads_in_another_place(mnist: Path, tmp_path: Path) -> None:
    listed = BinaryInput.list(str(mnist), TRAIN)
    saved = tmp_path / "saved"
    saved.mkdir()
    listed.save(saved)
    again = BinaryInput.load(str(mnist), saved)
    assert again.read(5) == listed.read(5)
    assert (again.fingerprint, again.state) == (listed.fingerprint, listed.state)


def test_a_jpeg_quality_is_kept_to(mnist: Path) -> None:
    listed = BinaryInput.list(str(mnist), InputOptions(split_name="train", encoding="jpeg:30"))
    expected = io.BytesIO()
    Image.fromarray(IMAGES[4]).save(expected, "JPEG", quality=30)
    assert listed.read(4).image == expected.getvalue()
    assert listed.fingerprint != BinaryInput.list(str(mnist), TRAIN).fingerprint


def test_several_splits_need_a_choice(mnist: Path) -> None:
    with pytest.raises(UsageError, match="the splits test, train"):
        BinaryInput.list(str(mnist), InputOptions())
    with pytest.raises(UsageError, match="It has test, train"):
        BinaryInput.list(str(mnist), InputOptions(split_name="validation"))


def test_given_classes_name_the_indexes(mnist: Path) -> None:
    names = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot")
    listed = BinaryInput.list(str(mnist), InputOptions(split_name="train", classes=names))
    assert listed.class_names[int(listed.labels[0])] == "Dress"


def test_a_label_outside_the_given_classes_is_refused(mnist: Path) -> None:
    listed = BinaryInput.list(str(mnist), InputOptions(split_name="train", classes=tuple("abcde")))
    assert sorted(listed.refused) == [4, 5, 7, 8, 10]
    assert "none of the given classes" in listed.refused[4]


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"])
def test_idx_cut_short_is_an_error_naming_the_file(tmp_path: Path, name: str) -> None:
    _pair(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match=f"{name} must hold .* cut short"):
        BinaryInput.list(str(tmp_path), InputOptions())


def test_idx_cut_short_gives_its_whole_prefix_when_asked(tmp_path: Path) -> None:
    _pair(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[: 16 + 5 * 784 + 100])
    listed = BinaryInput.list(str(tmp_path), InputOptions(prefix=True))
    assert len(listed) == 5
    assert np.array_equal(pixels_of(listed.read(4).image), IMAGES[4])


def test_gzipped_idx_cut_short(tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", IMAGES)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", LABELS)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(UsageError, match=r"images-idx3-ubyte\.gz must hold .* cut short"):
        BinaryInput.list(str(tmp_path), InputOptions())
    listed = BinaryInput.list(str(tmp_path), InputOptions(prefix=True))
    assert len(listed) == 6  # 5,000 bytes of noise, which deflate does not shrink
    assert np.array_equal(pixels_of(listed.read(5).image), IMAGES[5])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: b"\x00\x00\x0d\x03" + data[4:], "must start as an idx file"),
        (lambda data: data[:7], "must start as an idx file"),
        (lambda data: b"", "must start as an idx file"),
        (lambda data: data + b"x", "1 bytes more"),
        (lambda data: data[:4] + b"\xff" * 12 + data[16:], "at most 8 GiB"),
        (lambda data: data[:8] + bytes(8) + data[16:], "entries with pixels"),
    ],
    ids=["floats", "half a header", "empty", "longer", "absurd header", "0xN"],
)
def test_damaged_idx_is_an_error(tmp_path: Path, change, words: str) -> None:
    _pair(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UsageError, match=words):
        BinaryInput.list(str(tmp_path), InputOptions())


def test_damaged_gzip_is_an_error(tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", IMAGES)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", LABELS)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1  # in the CRC
    path.write_bytes(data)
    with pytest.raises(UsageError, match="whole gzip file"):
        BinaryInput.list(str(tmp_path), InputOptions())


def test_images_and_labels_of_different_number_are_an_error(tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte", IMAGES)
    write_idx(tmp_path / "train-labels-idx1-ubyte", LABELS[:-1])
    with pytest.raises(UsageError, match="12 images and 11 labels"):
        BinaryInput.list(str(tmp_path), InputOptions())


def test_images_without_labels_are_an_error(tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte", IMAGES)
    with pytest.raises(UsageError, match="no train-labels-idx1-ubyte"):
        BinaryInput.list(str(tmp_path), InputOptions())


@pytest.mark.parametrize("where", ["missing", "empty"])
def test_no_such_files_is_an_error(tmp_path: Path, where: str) -> None:
    (tmp_path / "empty").mkdir()
    assert not matches(str(tmp_path / where))
    with pytest.raises(UsageError, match="MNIST's idx files or CIFAR's batches"):
        BinaryInput.list(str(tmp_path / where), InputOptions())


def test_a_file_that_changed_after_planning_is_rejected(tmp_path: Path) -> None:
    _pair(tmp_path)
    listed = BinaryInput.list(str(tmp_path), InputOptions())
    (tmp_path / "train-images-idx3-ubyte").unlink()
    with pytest.raises(SampleRejectedError, match="must not change"):
        listed.read(0)


def test_cifar10_gives_what_torchvision_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR10

    # given batches in torchvision's place
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(folder)
    md5 = lambda name: hashlib.md5((folder / name).read_bytes()).hexdigest()  # noqa: E731
    monkeypatch.setattr(CIFAR10, "train_list", [[name, md5(name)] for name in ("data_batch_1", "data_batch_2")])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5("test_batch")]])
    monkeypatch.setattr(CIFAR10, "meta", {"filename": "batches.meta", "key": "label_names", "md5": md5("batches.meta")})
    theirs = CIFAR10(str(tmp_path), train=True)
    # when they are listed and read
    listed = BinaryInput.list(str(tmp_path), TRAIN)
    # then pictures, labels and class names are torchvision's
    assert list(listed.class_names) == theirs.classes
    assert [int(label) for label in listed.labels] == theirs.targets
    assert listed.name(13) == b"picture_s_000013.png"
    for row in range(20):
        assert np.array_equal(pixels_of(listed.read(row).image), np.asarray(theirs[row][0]))


def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    pixels = np.zeros((3, 3072), np.uint8)
    batch = {"data": pixels, "fine_labels": [2, 0, 1], "coarse_labels": [1, 0, 0]}
    (folder / "train").write_bytes(pickle.dumps(batch, protocol=4))
    meta = {"fine_label_names": ["apple", "bear", "crab"], "coarse_label_names": ["fruit", "animal"]}
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol=4))
    fine = BinaryInput.list(str(tmp_path), InputOptions())
    coarse = BinaryInput.list(str(tmp_path), InputOptions(label_column="coarse_labels"))
    assert [fine.class_names[label] for label in fine.labels] == ["crab", "apple", "bear"]
    assert [coarse.class_names[label] for label in coarse.labels] == ["animal", "fruit", "fruit"]


def test_given_classes_in_another_order_do_not_shift_cifar_labels(tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-10-batches-py")
    names = ("truck", "ship", "horse", "frog", "dog", "deer", "cat", "bird", "automobile", "airplane")
    listed = BinaryInput.list(str(tmp_path), InputOptions(split_name="train", classes=names))
    assert listed.class_names[int(listed.labels[1])] == "cat"  # label 3 of the source


class Harmful:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle ran code')",))


@pytest.mark.parametrize(
    "content",
    [
        Harmful(),
        {"data": Harmful(), "labels": []},
        {"data": np.zeros((1, 3072), object), "labels": [0]},
        {"data": np.zeros((1, 3072), np.float32), "labels": [0]},
    ],
    ids=["code", "code inside", "objects", "floats"],
)
def test_a_cifar_pickle_with_anything_but_bytes_is_refused(tmp_path: Path, content: object) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(UsageError, match="data_batch_1 must be a whole pickled batch"):
        BinaryInput.list(str(tmp_path), InputOptions())


def test_a_cut_cifar_pickle_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(folder)
    path = folder / "data_batch_2"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UsageError, match="data_batch_2 must be a whole pickled batch"):
        BinaryInput.list(str(tmp_path), TRAIN)


def test_every_single_byte_of_damage_in_a_pickle_is_an_error_or_data(tmp_path: Path) -> None:
    # given a batch small enough to damage each byte of it
    whole = pickle.dumps({"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2]}, protocol=2)
    path = tmp_path / "batch"
    from wellfed.converters.inputs.cifar_pickle import read_batch

    for place in range(len(whole)):
        for value in (0x2E, 0x63, 0xFF):
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            # when it is read, then it is a dictionary or a UsageError
            try:
                assert isinstance(read_batch(path), dict)
            except UsageError:
                continue


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": [1]}, "1 for 10 images"),
        ({"labels": None}, "must be a list"),
        ({"data": np.zeros((10, 5), np.uint8)}, "rows of 3 x 32 x 32"),
        ({"data": [1, 2]}, "rows of 3 x 32 x 32"),
        ({"filenames": ["a"]}, "`filenames`"),
    ],
)
def test_a_cifar_batch_that_does_not_fit_is_an_error(tmp_path: Path, change: dict, words: str) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(folder)
    batch = pickle.loads((folder / "data_batch_1").read_bytes())
    (folder / "data_batch_1").write_bytes(pickle.dumps({**batch, **change}, protocol=2))
    with pytest.raises(UsageError, match=words):
        BinaryInput.list(str(tmp_path), TRAIN)


def test_a_negative_or_fractional_label_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(folder)
    batch = pickle.loads((folder / "data_batch_1").read_bytes())
    batch["labels"][:3] = [-1, 1.5, 12]
    (folder / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    listed = BinaryInput.list(str(tmp_path), TRAIN)
    assert {row: words.split(":")[0] for row, words in listed.refused.items()} == {
        0: "the label -1 is below 0",
        1: "the label is a fraction",
        2: "the label '12' is none of the given classes",
    }


def _pair(folder: Path) -> None:
    write_idx(folder / "train-images-idx3-ubyte", IMAGES)
    write_idx(folder / "train-labels-idx1-ubyte", LABELS)
