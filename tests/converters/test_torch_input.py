"""Torch datasets as input: `module:function`, its samples encoded."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wellfed.converters.inputs.base import InputOptions
from wellfed.converters.inputs.pixels import PixelEncoding, image_of_array
from wellfed.converters.inputs.torch_dataset import TorchDatasetInput, matches
from wellfed.pipeline.errors import SampleRejectedError, UsageError

MODULE = """
import io
import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

PIXELS = np.random.default_rng(8).integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)  # six of 7 x 5

def encoded(row):
    buffer = io.BytesIO()
    Image.fromarray(PIXELS[row]).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()

FORMS = {
    "pil": lambda row: Image.fromarray(PIXELS[row]),
    "uint8_chw": lambda row: torch.from_numpy(PIXELS[row]).permute(2, 0, 1),
    "float_chw": lambda row: torch.from_numpy(PIXELS[row]).permute(2, 0, 1).float() / 255,
    "uint8_hwc": lambda row: torch.from_numpy(PIXELS[row]),
    "array_hwc": lambda row: PIXELS[row],
    "array_chw": lambda row: PIXELS[row].transpose(2, 0, 1),
    "array_float": lambda row: (PIXELS[row] / 255).astype(np.float32),
    "bytes": encoded,
}
FORM = "pil"

class Pairs(Dataset):
    classes = ["ant", "bee", "cow"]
    def __init__(self): self.calls = []
    def __len__(self): return 6
    def __getitem__(self, row):
        if not 0 <= row < 6: raise IndexError(row)
        self.calls.append(row)
        return FORMS[FORM](row), row % 3

class Known(Pairs):
    targets = [0, 1, 2, 0, 1, 2]

class Dictionaries(Pairs):
    def __getitem__(self, row):
        image, label = super().__getitem__(row)
        return {"image": image, "label": self.classes[label], "weight": row / 4, "box": torch.tensor([row, 1]),
                "caption": f"picture {row}", "extra": {"a": [row]}}

class Faulty(Pairs):
    def __getitem__(self, row):
        image, label = super().__getitem__(row)
        if row == 0: raise RuntimeError("the disk hummed")
        if row == 1: raise FileNotFoundError(2, "No such file or directory", "/somewhere/secret.jpg")
        if row == 2: return image
        if row == 3: return image, 1.5
        if row == 4: return np.zeros((5, 7, 9), np.uint8), 1
        return image, label

class Endless(IterableDataset):
    def __iter__(self): yield from ()

class Unsized:
    def __getitem__(self, row): return None

class Empty(Pairs):
    def __len__(self): return 0

class Random(Pairs):
    def __getitem__(self, row): return torch.rand(3, 5, 7), 0

class Wrong(Pairs):
    targets = [2, 1, 0, 2, 1, 0]

def subset(): return Subset(Known(), [5, 0, 4])
def two(): return ConcatDataset([Known(), subset()])
def with_argument(path): return Pairs()
def explode(): raise OSError("no data here")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_data_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "my_data_module"
    sys.modules.pop("my_data_module", None)


def pixels(row: int) -> np.ndarray:
    made: np.ndarray = np.random.default_rng(8).integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)
    return made[row]


def picture(data: bytes | None) -> np.ndarray:
    assert data is not None
    return np.asarray(Image.open(io.BytesIO(data)))


def listed(location: str, **options) -> TorchDatasetInput:
    return TorchDatasetInput.list(location, InputOptions(**options))


@pytest.mark.parametrize(
    "form", ["pil", "uint8_chw", "float_chw", "uint8_hwc", "array_hwc", "array_chw", "array_float"]
)
def test_each_form_of_pixels_gives_the_same_png(module: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a dataset whose pictures come in one form
    import my_data_module  # type: ignore[import-not-found]

    monkeypatch.setattr(my_data_module, "FORM", form)
    # when it is listed and read
    found = listed(f"{module}:Pairs")
    # then labels, class names and every pixel are the dataset's
    assert (len(found), found.class_names) == (6, ("ant", "bee", "cow"))
    assert [int(label) for label in found.labels] == [0, 1, 2, 0, 1, 2]
    for row in range(6):
        data = found.read(row).image
        assert data is not None
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert np.array_equal(picture(data), pixels(row))
    assert found.name(3) == b"row-000000003"


def test_encoded_bytes_are_kept(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import my_data_module

    monkeypatch.setattr(my_data_module, "FORM", "bytes")
    assert listed(f"{module}:Pairs").read(2).image == my_data_module.encoded(2)


def test_jpeg_by_option(module: str) -> None:
    expected = io.BytesIO()
    Image.fromarray(pixels(1)).save(expected, "JPEG", quality=95)
    found = listed(f"{module}:Pairs", encoding="jpeg:95")
    assert found.read(1).image == expected.getvalue()
    assert found.fingerprint != listed(f"{module}:Pairs").fingerprint


@pytest.mark.parametrize("encoding", ["jpeg", "jpeg:0", "jpeg:101", "webp", "PNG", ""])
def test_an_unknown_encoding_is_an_error(module: str, encoding: str) -> None:
    with pytest.raises(UsageError, match="jpeg:QUALITY"):
        listed(f"{module}:Pairs", encoding=encoding)


def test_dictionaries_with_further_fields(module: str) -> None:
    columns = (("weight", "number"), ("box", "array"), ("caption", "text"), ("extra", "json"))
    found = listed(f"{module}:Dictionaries", columns=columns)
    assert [field.name for field in found.fields] == ["image", "class", "weight", "box", "caption", "extra"]
    assert [found.class_names[label] for label in found.labels] == ["ant", "bee", "cow", "ant", "bee", "cow"]
    values = found.read(3).values
    assert (values["weight"], values["caption"], values["extra"]) == (0.75, "picture 3", {"a": [3]})
    assert values["box"].tolist() == [3, 1]


def test_sample_without_a_declared_value_is_rejected(module: str) -> None:
    found = listed(f"{module}:Dictionaries", columns=(("depth", "array"),))
    with pytest.raises(SampleRejectedError, match="'depth'"):
        found.read(0)


def test_other_keys_by_option(module: str) -> None:
    found = listed(f"{module}:Dictionaries", image_column="image", label_column="caption")
    assert found.class_names == tuple(f"picture {row}" for row in range(6))
    missing = listed(f"{module}:Dictionaries", image_column="photo")
    assert "must have its image; got the keys image, label" in missing.refused[0]


@pytest.mark.parametrize(("name", "rows"), [("subset", [5, 0, 4]), ("two", [0, 1, 2, 3, 4, 5, 5, 0, 4])])
def test_parts_of_datasets_know_labels_and_classes(module: str, name: str, rows: list[int]) -> None:
    found = listed(f"{module}:{name}")
    assert [int(label) for label in found.labels] == [row % 3 for row in rows]
    assert found.class_names == ("ant", "bee", "cow")
    assert np.array_equal(picture(found.read(2).image), pixels(rows[2]))


def test_known_labels_spare_reading_every_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given 1,000 samples whose labels are known, and one that does not have its label
    (tmp_path / "large_data_module.py").write_text(
        "import numpy as np\nREAD = []\n"
        "class Large:\n"
        "    targets = [row % 10 for row in range(1000)]\n"
        "    def __len__(self): return 1000\n"
        "    def __getitem__(self, row):\n"
        "        READ.append(row)\n"
        "        return np.full((4, 4, 3), row % 251, np.uint8), 3 if row == 501 else row % 10\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # when it is listed
    found = listed("large_data_module:Large")
    import large_data_module  # type: ignore[import-not-found]

    # then few samples were read, and a label that differs shows when its sample is read
    assert len(set(large_data_module.READ)) < 40
    assert [int(label) for label in found.labels] == [row % 10 for row in range(1000)]
    assert bool((found.sizes > 0).all())
    assert found.read(500).image is not None
    with pytest.raises(SampleRejectedError, match="must be the one in `targets`; got '3'"):
        found.read(501)


def test_targets_that_are_not_the_labels_are_not_used(module: str) -> None:
    assert [int(label) for label in listed(f"{module}:Wrong").labels] == [0, 1, 2, 0, 1, 2]


def test_faulty_samples_are_refused_with_their_reasons(module: str) -> None:
    found = listed(f"{module}:Faulty")
    assert dict(found.refused) == {
        0: "the dataset must give the sample; got RuntimeError: the disk hummed.",
        1: "the dataset must give the sample; got FileNotFoundError: No such file or directory.",
        2: "a sample must be (image, label) or a dictionary; got 'Image'.",
        3: "the label is a fraction: 1.5",
        4: "pixels must have 1, 3 or 4 channels; got shape (5, 7, 9).",
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Endless", "must be map-style"),
        ("Unsized", "must have a length"),
        ("Empty", "at least one sample"),
        ("Random", "the same sample each time"),
        ("with_argument", "called without arguments"),
        ("explode", "no data here"),
        ("nothing", "has no attribute 'nothing'"),
        ("dict", "must be a function that can be imported"),
    ],
)
def test_unusable_datasets_are_errors(module: str, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        listed(f"{module}:{name}")


@pytest.mark.parametrize("location", ["no_such_module_here:f", "nothing", ":f", "module:"])
def test_names_that_lead_nowhere_are_errors(location: str) -> None:
    with pytest.raises(UsageError):
        listed(location)


def test_what_looks_like_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert matches("package.module:function")
    (tmp_path / "a:b").mkdir()
    for path in ("a:b", "folder", "s3://bucket/key", "C:/photos", "module:", "images/{0..3}.tar"):
        assert not matches(path)


def test_a_sample_that_changed_after_planning_is_rejected(module: str, tmp_path: Path) -> None:
    import my_data_module

    found = listed(f"{module}:Pairs")
    my_data_module.PIXELS[2] += 1
    with pytest.raises(SampleRejectedError, match="must not change between planning and reading"):
        found.read(2)


def test_a_saved_listing_reads_the_same(module: str, tmp_path: Path) -> None:
    found = listed(f"{module}:Known")
    saved = tmp_path / "saved"
    saved.mkdir()
    found.save(saved)
    again = TorchDatasetInput.load(f"{module}:Known", saved)
    assert (again.state, again.read(4)) == (found.state, found.read(4))


def test_given_classes_in_another_order_do_not_shift_labels(module: str) -> None:
    found = listed(f"{module}:Known", classes=("cow", "bee", "ant"))
    assert [found.class_names[label] for label in found.labels] == ["ant", "bee", "cow", "ant", "bee", "cow"]
    assert found.read(0).image is not None


def test_same_class_name_twice_stays_two_classes(module: str) -> None:
    import my_data_module

    my_data_module.Pairs.classes = [("crane", "bird"), ("crane",), ("crane",)]
    found = listed(f"{module}:Pairs")
    assert found.class_names == ("crane, bird", "crane (1)", "crane (2)")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.full((4, 4, 3), 1.5), "float pixels must lie between 0 and 1; got 1.5 to 1.5"),
        (np.full((4, 4), np.nan), "float pixels must lie between 0 and 1"),
        (np.zeros((4, 4), np.int64), "must be uint8"),
        (np.zeros((4, 4), bool), "must be uint8"),
        (np.zeros((0, 4), np.uint8), "must have pixels"),
        (np.zeros((4,), np.uint8), "gray, RGB or RGBA"),
        (np.zeros((4, 4, 3), np.uint16), "gray for uint16"),
        (np.zeros((2, 4, 4, 3), np.uint8), "gray, RGB or RGBA"),
    ],
)
def test_arrays_that_are_no_picture_are_rejected(array: np.ndarray, words: str) -> None:
    with pytest.raises(SampleRejectedError, match=words):
        image_of_array(array, "HWC")


@pytest.mark.parametrize(
    ("shape", "layout", "size"),
    [((3, 3, 3), "CHW", (3, 3)), ((1, 5, 7), "CHW", (7, 5)), ((4, 5, 7), "HWC", (7, 5)), ((5, 7, 4), "CHW", (7, 5))],
)
def test_layouts(shape: tuple[int, ...], layout, size: tuple[int, int]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    image = image_of_array(array, layout)
    assert image.size == size
    if shape == (3, 3, 3):
        assert image.getpixel((1, 0)) == (1, 10, 19)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "CMYK", "YCbCr", "HSV", "PA", "La"])
@pytest.mark.parametrize("encoding", ["png", "jpeg:90"])
def test_each_mode_of_pillow_is_encoded(mode: str, encoding: str) -> None:
    base = Image.fromarray(np.random.default_rng(1).integers(0, 256, (8, 8, 3), dtype=np.uint8))
    if mode == "I;16":
        image = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000)
    elif mode in ("PA", "La"):
        image = base.convert("LA").convert("La" if mode == "La" else "PA")
    else:
        image = base.convert(mode)
    image.info["exif"] = b"Exif\0\0something"
    data = PixelEncoding.parse(encoding).encode(image)
    assert data == PixelEncoding.parse(encoding).encode(image)
    decoded = Image.open(io.BytesIO(data))
    assert not decoded.getexif()
    if encoding == "png" and mode in ("L", "LA", "RGB", "RGBA", "I;16"):
        assert np.array_equal(np.asarray(decoded), np.asarray(image))


@pytest.mark.parametrize("mode", ["F", "LAB"])
def test_modes_without_a_range_are_rejected(mode: str) -> None:
    with pytest.raises(SampleRejectedError, match="must have a stated range"):
        PixelEncoding.parse("png").encode(Image.new(mode, (4, 4)))


def test_pictures_without_pixels_and_integers_out_of_range_are_rejected() -> None:
    with pytest.raises(SampleRejectedError, match="must have pixels"):
        PixelEncoding.parse("png").encode(Image.new("RGB", (0, 4)))
    with pytest.raises(SampleRejectedError, match="between 0 and 65535"):
        PixelEncoding.parse("png").encode(Image.new("I", (4, 4), 70000))
