"""What fuzzing found once, one file of `corpus` for each kind of fault, and the verdict that each must give now.

A file is a line that says which of its parser's files the rest stands for, and that rest; campaigns start from it too.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import lmdb
import numpy as np
import pytest
from PIL import Image

from wellfed.converters import verify
from wellfed.converters.inputs import Input, InputOptions
from wellfed.converters.inputs.cifar_pickle import read_batch
from wellfed.converters.inputs.hf import HfInput
from wellfed.converters.inputs.idx import read_idx
from wellfed.converters.inputs.lmdb_foreign import LmdbInput
from wellfed.converters.inputs.table import TableInput
from wellfed.converters.inputs.tar import TarInput
from wellfed.converters.inputs.zip import ZipInput
from wellfed.pipeline.decode.check import check_image
from wellfed.pipeline.decode.reference import decode_rgb
from wellfed.pipeline.errors import DamagedDatasetError, SampleRejectedError, UsageError
from wellfed.pipeline.formats import open_source

CORPUS = Path(__file__).parent / "corpus"
MOST_BYTES = 200 << 10


def kept(name: str) -> tuple[str, bytes]:
    slot, _, data = (CORPUS / name).read_bytes().partition(b"\n")
    return slot.decode(), data


def written(name: str, folder: Path) -> Path:
    slot, data = kept(name)
    (folder / slot).write_bytes(data)
    return folder / slot


@pytest.fixture
def fuzzed_datasets(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module whose small datasets were damaged; only its functions that make them are used."""
    monkeypatch.syspath_prepend(str(repository / "tests"))
    return importlib.import_module("fuzz.datasets")


REFUSED: dict[str, tuple[Callable[[str, InputOptions], Input], str]] = {
    "parquet/definition-levels": (TableInput.list, "pyarrow ends the process.*Definition level histogram"),
    "parquet/repetition-levels": (HfInput.list, "pyarrow ends the process.*Repetition level histogram"),
    "parquet/column-name-that-is-no-utf8": (TableInput.list, "must be whole.*invalid start byte"),
    "parquet/struct-text-that-is-no-utf8": (TableInput.list, "must be whole.*invalid start byte"),
    "tar/damaged-header": (TarInput.list, "must be whole; got a damaged header, after the member 'c/'"),
    "tar/nameless-member": (TarInput.list, "must be whole; got a damaged header, after the member ''"),
    "zip/sizes-beyond-the-file": (ZipInput.list, "must be whole; got its directory is not as long as it says"),
}
PREFIXES: dict[str, tuple[Callable[[str, InputOptions], Input], dict[bytes, str]]] = {
    "tar/nameless-member": (TarInput.list, {b"row-000000000": "a member must have a name"}),
    "zip/sizes-beyond-the-file": (
        ZipInput.list,
        dict.fromkeys([b"c/0.jpg", b"row-000000001"], "a member must lie within the archive"),
    ),
}
BATCHES: dict[str, tuple[Callable[[Path], object], str]] = {
    "binary/gzip-without-its-sum": (lambda path: read_idx(path, 1, prefix=False), "it was cut short"),
    "binary/sizes-that-no-array-has": (
        lambda path: read_idx(path, 3, prefix=False),
        "must state a size that it can have; got 0 x 4278190084 x 4278190085",
    ),
    "binary/array-never-filled": (read_batch, "an array without values for 'data'"),
}
DECODED = {"decode/tiff-of-14-by-68812": (68812, 14, 3), "decode/gif-larger-than-its-frame": (131, 270, 3)}
PROBLEMS = {
    "verify/lost-shard": {("data-000001.tar", "the file is missing")},
    "verify/changed-wids-index": {
        ("data.json", "its SHA-256 is not the manifest's"),
        ("data.json", "its shards must be the manifest's"),
    },
}
OF_THEIR_OWN = {
    "decode/tiff-of-integers-beyond-16-bits",
    "index/more-names-than-offsets",
    "lmdb/datum-of-two-channels-and-a-long-varint",
}


def test_every_kept_input_has_a_verdict_and_all_are_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    names = {f"{path.parent.name}/{path.name}" for path in files}
    assert names == {*REFUSED, *PREFIXES, *BATCHES, *DECODED, *PROBLEMS, *OF_THEIR_OWN}
    assert sum(path.stat().st_size for path in files) < MOST_BYTES


@pytest.mark.parametrize("name", REFUSED)
def test_inputs_are_refused(name: str, tmp_path: Path) -> None:
    read, message = REFUSED[name]
    with pytest.raises(UsageError, match=message):
        read(str(written(name, tmp_path)), InputOptions())


@pytest.mark.parametrize("name", PREFIXES)
def test_members_before_the_damage_are_rejected_one_by_one(name: str, tmp_path: Path) -> None:
    read, reasons = PREFIXES[name]
    source = read(str(written(name, tmp_path)), InputOptions(prefix=True))
    assert {source.name(row): source.refused.get(row) for row in range(len(source))} == reasons


@pytest.mark.parametrize("name", BATCHES)
def test_packed_arrays_are_refused(name: str, tmp_path: Path) -> None:
    read, message = BATCHES[name]
    with pytest.raises(UsageError, match=message):
        read(written(name, tmp_path))


@pytest.mark.parametrize("name", DECODED)
@pytest.mark.filterwarnings("ignore")
def test_odd_pictures_are_what_pillow_reads(name: str) -> None:
    # They were found by what 100 million pixels take to decode several times; their sizes are made smaller here.
    data = kept(name)[1]
    check_image(data, "decode")
    pixels = decode_rgb(data)
    assert pixels.shape == DECODED[name]
    with Image.open(io.BytesIO(data)) as picture:
        assert np.array_equal(pixels, np.asarray(picture.convert("RGB")))


@pytest.mark.filterwarnings("ignore")
def test_integers_beyond_16_bits_are_rejected() -> None:
    with pytest.raises(SampleRejectedError, match="integer pixels must lie between 0 and 65535"):
        check_image(kept("decode/tiff-of-integers-beyond-16-bits")[1], "decode")


@pytest.mark.parametrize("name", PROBLEMS)
def test_verify_names_the_file(name: str, fuzzed_datasets: ModuleType, tmp_path: Path) -> None:
    place = fuzzed_datasets.damaged(tmp_path, *kept(name))
    report = verify(place, workers=1)
    assert {(problem.file, problem.what) for problem in report.problems} == PROBLEMS[name]


def test_names_that_do_not_fill_their_offsets(fuzzed_datasets: ModuleType, tmp_path: Path) -> None:
    source = open_source(str(fuzzed_datasets.damaged(tmp_path, *kept("index/more-names-than-offsets"))))
    for row in range(len(source)):
        with pytest.raises(DamagedDatasetError, match="must hold 4 rows that fill"):
            source.name(row)


def test_a_datum_of_two_channels(tmp_path: Path) -> None:
    # Found by the memory of as many classes as its label says, which may be just below a million; made smaller here.
    record = kept("lmdb/datum-of-two-channels-and-a-long-varint")[1]
    with lmdb.open(str(tmp_path / "e")) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"0", record)
    source = LmdbInput.list(str(tmp_path / "e"), InputOptions())
    assert int(source.labels[0]) == 8491
    with pytest.raises(SampleRejectedError, match="a Datum must have 1 or 3 channels, and pixels; got '2x1x1'"):
        source.read(0)
