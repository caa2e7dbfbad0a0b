"""Inputs that fuzzing found to raise something else, to take memory, or to pass as whole: each an error of ours now."""

from __future__ import annotations

import base64
import gzip
import io
import pickle
import resource
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wellfed.converters import convert, verify
from wellfed.converters.indexed_checks import check_indexed_tar
from wellfed.converters.inputs import InputOptions
from wellfed.converters.inputs.binary import BinaryInput
from wellfed.converters.inputs.cifar_pickle import read_batch
from wellfed.converters.inputs.hf import HfInput
from wellfed.converters.inputs.idx import read_idx
from wellfed.converters.inputs.lmdb_foreign import LmdbInput
from wellfed.converters.inputs.table import TableInput
from wellfed.converters.inputs.tar import TarInput
from wellfed.converters.inputs.zip import ZipInput
from wellfed.converters.outputs.webdataset import WIDS_NAME, dali_index
from wellfed.converters.rejects import load_rejects
from wellfed.pipeline.errors import DamagedDatasetError, UsageError
from wellfed.pipeline.formats import Manifest, open_index, open_source
from wellfed.pipeline.formats.names import NAMES_OFFSETS, open_names
from wellfed.pipeline.formats.npy import parse_npy


def npy(header: bytes) -> bytes:
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header


def a_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", b"x")
    return buffer.getvalue()


DAMAGED_NPY = {
    "an open bracket": npy(b"{'descr': [('key', '<u8'), 'shape': (4,)\n"),
    "a zip": a_zip(),
    "a shape beyond any number": npy(b"{'descr': '<u8', 'fortran_order': False, 'shape': (%d,)}\n" % (1 << 70)),
    "a negative shape": npy(b"{'descr': '<u8', 'fortran_order': False, 'shape': (-1,)}\n"),
    "more than can be": npy(b"{'descr': '<u8', 'fortran_order': False, 'shape': (%d,)}\n" % (1 << 58)),
    "objects": npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n") + b"N.",
    "nothing": b"",
}


@pytest.mark.parametrize("data", DAMAGED_NPY.values(), ids=DAMAGED_NPY)
def test_damaged_npy(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / NAMES_OFFSETS
    path.write_bytes(data)
    (tmp_path / "wellfed.names.bin").write_bytes(b"")
    with pytest.raises(DamagedDatasetError, match=r"readable \.npy file"):
        open_index(path, fields=("image",), samples=4)
    with pytest.raises(DamagedDatasetError, match="must be readable"):
        open_names(tmp_path, 4)
    with pytest.raises(ValueError, match=r"."):
        parse_npy(data)


@pytest.mark.parametrize("key", ["1e400", "9223372036854775808", "-1", "1.5", '"1"', "null"])
def test_a_key_of_a_reject_that_is_no_planned_number(key: str, tmp_path: Path) -> None:
    path = tmp_path / "rejects.jsonl"
    path.write_text(f'{{"key": {key}, "path": "a", "reason": "b"}}\n')
    with pytest.raises(DamagedDatasetError, match="must hold key"):
        load_rejects(path)


@pytest.fixture(scope="module")
def dataset(module_photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dataset") / "out"
    convert(module_photos, out, output="webdataset", workers=1)
    return out


def test_an_index_row_with_an_extension_of_any_bytes_has_a_line_to_compare_with(dataset: Path) -> None:
    rows = np.array(open_source(str(dataset)).index[:1])
    rows["ext"] = b"\xfdpg"
    line = dali_index(rows, Manifest.load(dataset).members).split(b"\n")[1]
    assert line.startswith(b"\xfdpg ")
    assert line.endswith(b" 0000000000.json")


def test_verify_takes_deep_json_for_damage(dataset: Path) -> None:
    whole = (dataset / WIDS_NAME).read_bytes()
    (dataset / WIDS_NAME).write_text("[" * 100_000)
    try:
        assert {problem.file for problem in verify(dataset, workers=1).problems} == {WIDS_NAME}
    finally:
        (dataset / WIDS_NAME).write_bytes(whole)


def test_a_size_beyond_an_indexed_shard_reads_nothing(dataset: Path) -> None:
    manifest = Manifest.load(dataset)
    index = np.array(open_source(str(dataset)).index)
    index["size_image"][0] = 1 << 62
    names, path = open_names(dataset, len(index)), dataset / manifest.shards[0].name
    checked = list(check_indexed_tar(manifest, names, path, index, start=0, stop=1, deep=False))
    assert "must be at offset" in str(checked)


def test_a_pickle_with_a_far_place_in_its_memo_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(b"\x80\2}r" + (1 << 27).to_bytes(4, "little") + b".")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match="at place 134217728"):
        read_batch(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10


def test_a_gzip_file_without_its_end_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    packed = gzip.compress(bytes((0, 0, 8, 3)) + b"".join(size.to_bytes(4, "big") for size in (2, 1, 3)) + b"abcdef")
    path.write_bytes(packed)
    assert read_idx(path, 3, prefix=False).tobytes() == b"abcdef"
    path.write_bytes(packed[:-8])  # the sum and the length
    with pytest.raises(UsageError, match="must hold 6 bytes"):
        read_idx(path, 3, prefix=False)
    assert read_idx(path, 3, prefix=True).tobytes() == b"abc"


def test_records_with_nothing_but_labels_below_0_are_refused(tmp_path: Path) -> None:
    datum = b"\x08\1\x10\1\x18\1\x22\1a\x28" + b"\xff" * 9 + b"\1"
    with lmdb.open(str(tmp_path / "e")) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"0", datum)
    source = LmdbInput.list(str(tmp_path / "e"), InputOptions())
    assert dict(source.refused) == {0: "the label -1 is below 0"}
    assert source.class_names == ()


def test_an_lzma_members_dictionary_is_no_larger_than_the_member(tmp_path: Path) -> None:
    # given a zip whose LZMA properties ask for a dictionary of 2 GiB for a member of 150 bytes
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("c/0.jpg", b"image" * 30)
    data = bytearray(path.read_bytes())
    at = data.index(b"c/0.jpg") + len(b"c/0.jpg")
    assert data[at + 2 : at + 4] == b"\5\0"  # the length of the properties: lc/lp/pb and the dictionary's size
    struct.pack_into("<L", data, at + 5, 1 << 31)
    path.write_bytes(data)
    # when its member is read
    source = ZipInput.list(str(path), InputOptions())
    tracemalloc.start()
    try:
        image = source.read(0).image
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # then it is whole, and little memory was asked for
    assert image == b"image" * 30
    assert peak < 4 << 20


def test_a_size_without_values_that_no_array_can_have(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(bytes((0, 0, 8, 3)) + b"".join(size.to_bytes(4, "big") for size in (0, 0xFFFFFFFF, 0xFFFFFFFF)))
    with pytest.raises(UsageError, match="0 x 4294967295 x 4294967295"):
        read_idx(path, 3, prefix=False)


def test_a_pickled_array_that_is_never_filled(tmp_path: Path) -> None:
    # given a batch whose array is made and not given its values: GLOBAL, GLOBAL, (0,), b"b", REDUCE
    path = tmp_path / "data_batch_1"
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    path.write_bytes(b"(dS'data'\n" + made + b"s.")
    with pytest.raises(UsageError, match="without values for 'data'"):
        read_batch(path)


def test_text_of_a_parquet_file_that_is_no_utf8(tmp_path: Path) -> None:
    # given a table whose second path is damaged in its data page
    path = tmp_path / "table.parquet"
    table = pa.table({"path": ["c/0.jpg", "c/1.jpg"], "label": ["c", "c"]})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)
    data = path.read_bytes()
    assert data.count(b"c/1.jpg") == 1
    path.write_bytes(data.replace(b"c/1.jpg", b"c/\xff.jpg"))
    # when it is listed, then the file is said to be damaged
    with pytest.raises(UsageError, match="must be whole"):
        TableInput.list(str(path), InputOptions(image_column="path", label_column="label"))


def test_members_without_a_name_are_rejected_under_their_row(tmp_path: Path) -> None:
    # given a tar and a zip of class folders, each with an image whose name was lost
    members = {"c/0.jpg": b"image", "": b"nameless", "d/": b"data of a folder"}
    tar, archive = tmp_path / "a.tar", tmp_path / "a.zip"
    with tarfile.open(tar, "w", format=tarfile.USTAR_FORMAT) as to:
        for name, data in members.items():
            header = tarfile.TarInfo("x" if name == "d/" else name)
            header.size = len(data)
            block = bytearray(header.tobuf(tarfile.USTAR_FORMAT))
            if name == "d/":
                block[:2] = b"d/"
                block[148:156] = b" " * 8
                block[148:156] = b"%06o\0 " % sum(block)
            to.fileobj.write(bytes(block) + data.ljust(512, b"\0"))  # type: ignore[union-attr]
    with zipfile.ZipFile(archive, "w") as packed:
        for name, data in members.items():
            packed.writestr(zipfile.ZipInfo(name), data)
    for source in (
        TarInput.list(str(tar), InputOptions(label_regex="(c|d)")),
        ZipInput.list(str(archive), InputOptions(label_regex="(c|d)")),
        TarInput.list(str(tar), InputOptions()),
        ZipInput.list(str(archive), InputOptions()),
    ):
        # when they are listed, then nothing is lost, and every row has a name
        rows = {source.name(row): source.refused.get(row) for row in range(len(source))}
        assert rows == {
            b"c/0.jpg": None,
            b"row-000000001": "a member must have a name",
            b"d/": "an archive's entry for a folder must hold no data",
        }


def test_a_picture_of_cifar_with_an_empty_file_name_is_called_by_its_row(tmp_path: Path) -> None:
    batch = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 0], "filenames": ["", "b.png"]}
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({"label_names": ["a"]}, 2))
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(batch, 2))
    source = BinaryInput.list(str(tmp_path), InputOptions())
    assert [source.name(row) for row in range(2)] == [b"row-000000000", b"b.png"]


def test_a_gzip_file_of_no_entries_without_its_end_is_not_whole(tmp_path: Path) -> None:
    # given a header that declares no labels, and nothing of the sum and the length behind it
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    packed = gzip.compress(bytes((0, 0, 8, 1)) + bytes(4))
    for cut in range(1, 9):
        path.write_bytes(packed[:-cut])
        with pytest.raises(UsageError, match="cut short"):
            read_idx(path, 1, prefix=False)
    path.write_bytes(packed)
    assert read_idx(path, 1, prefix=False).shape == (0,)


def test_a_tar_in_gzip_without_any_of_its_last_bytes_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        header = tarfile.TarInfo("c/0.jpg")
        header.size = 5
        tar.addfile(header, io.BytesIO(b"image"))
    packed = gzip.compress(buffer.getvalue())
    for damaged in (*(packed[:-cut] for cut in range(1, 20)), packed[:-5] + bytes(5), packed + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="must be whole"):
            TarInput.list(str(path), InputOptions())


@pytest.mark.parametrize("kind", [TableInput, HfInput])
def test_a_parquet_footer_over_which_pyarrow_ends_the_process(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(zlib.decompress(base64.b85decode(ENDS_PYARROW)))
    with pytest.raises(UsageError, match=r"t\.parquet' must be whole.*level histogram size mismatch"):
        kind.list(str(path), InputOptions())


ENDS_PYARROW = (
    "c-oay!EVz)5FNYeDu<|QBaO8y`QSsbf|Qm9DG?xgn50cgNJSh05!{^AGDT^cCWVNed*oC22#y^10Qj0RyXzz(aDdTzXLe`iy*HNK"
    "rCtSdxQn|TbP<XGTL5tPBZ$Yr`9+*2!QD>;EMl>Y0=M}Qeho@nzgNh$^Ue-~xcms$5y1EX1|4=9e_>AM*U@Euk&*dDtp}yQ+^$$0"
    "XG364b*do6Z1^s@h%pD%qTDos&;=~qbLHmX({(aqIXWK2gJcArP`)aM;A25mL2Rp%ZLy`udGD*kD?ADF|2DTO>p3+g@IWp+^<FBW"
    "YAlk4YNDJa$`lxi?+&l<)(yWo|2O_0WcP&%4U_kI!xLei9VlNGsMmYZe_~&a{Ng^)_BbWBh^##)no~WcCQ(WalcIW^=u`&{qG#q}"
    "<;jLNGJE@mK_78&+&Ipf^nsT4N>|R_^xLC>Ij3}FK!#bVwx-!DU51)#bqBhMPG~9BQmybNgMM@TR;NziYyODpk;ZFj+@q{xDI$uZ"
    "H9V_dhpl$?to8b4)nf98AcILfz50+`?+quDy?8pkoChD1>FoS+96YS;AM96D*$3bSxBNAB`H%Vq0Wz%|"
)
"""A fuzzed table whose footer has more level counts than its column has levels."""
