from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wellfed.pipeline.errors import DamagedDatasetError
from wellfed.pipeline.formats import MODES, index_dtype, mode_code, open_index


def test_a_row_is_as_wide_as_documented_and_little_endian() -> None:
    dtype = index_dtype(["image", "json"])
    # key 8, shard 4, label 8, width 4, height 4, orientation 1, mode 1, ext 8; three u8 for each field.
    assert dtype.itemsize == 38 + 2 * 24
    assert dtype.names is not None
    assert dtype.names[-3:] == ("offset_json", "size_json", "xxh3_json")
    row = np.zeros(1, dtype=dtype)
    row["key"] = 1
    assert row.tobytes()[:8] == b"\x01" + b"\0" * 7


def test_modes_have_stable_codes() -> None:
    assert (mode_code("unknown"), mode_code("L"), mode_code("RGB"), mode_code("CMYK")) == (0, 2, 6, 8)
    assert mode_code("not a mode") == 0
    assert len(set(MODES)) == len(MODES)


def test_an_index_of_no_rows_opens(tmp_path: Path) -> None:
    np.save(tmp_path / "i.npy", np.zeros(0, dtype=index_dtype(["image"])))
    assert len(open_index(tmp_path / "i.npy", fields=["image"], samples=0)) == 0


def test_keys_must_ascend_and_pickles_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "i.npy"
    rows = np.zeros(2, dtype=index_dtype(["image"]))
    np.save(path, rows)
    with pytest.raises(DamagedDatasetError, match="must ascend"):
        open_index(path, fields=["image"], samples=2)
    np.save(path, np.array([object(), 1], dtype=object), allow_pickle=True)
    with pytest.raises(DamagedDatasetError, match=r"readable \.npy"):
        open_index(path, fields=["image"], samples=2)


def test_the_map_is_read_only(tmp_path: Path) -> None:
    rows = np.zeros(1, dtype=index_dtype(["image"]))
    np.save(tmp_path / "i.npy", rows)
    index = open_index(tmp_path / "i.npy", fields=["image"], samples=1)
    with pytest.raises(ValueError, match="read-only"):
        index["key"][0] = 7
