from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wellfed.pipeline.errors import DamagedDatasetError
from wellfed.pipeline.formats.names import NamesWriter, open_names


def test_names_come_back_as_they_were(tmp_path: Path) -> None:
    names = [b"a/b.jpg", b"", b"\xff\n\0 ' \"", b"n" * 300]
    with NamesWriter(tmp_path) as writer:
        for name in names:
            writer.add(name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wellfed.names.bin", "wellfed.names.npy"]
    assert (tmp_path / "wellfed.names.bin").read_bytes() == b"".join(names)
    assert np.load(tmp_path / "wellfed.names.npy").tolist() == [0, 7, 7, 14, 314]
    opened = open_names(tmp_path, 4)
    assert [opened.bytes_at(row) for row in range(4)] == names
    assert opened.text_at(2) == "\udcff\n\0 ' \""
    for row in (-1, 4):
        with pytest.raises(IndexError):
            opened.bytes_at(row)


@pytest.mark.parametrize("names", [[], [b"", b""]])
def test_nothing_to_map_is_no_error(tmp_path: Path, names: list[bytes]) -> None:
    with NamesWriter(tmp_path) as writer:
        for name in names:
            writer.add(name)
    opened = open_names(tmp_path, len(names))
    assert [opened.bytes_at(row) for row in range(len(opened))] == names


def test_a_block_that_raises_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError), NamesWriter(tmp_path) as writer:
        writer.add("text, not bytes")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_overwritten(tmp_path: Path) -> None:
    NamesWriter(tmp_path).add(b"unfinished" * 1000)
    with NamesWriter(tmp_path) as writer:
        writer.add(b"a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wellfed.names.bin", "wellfed.names.npy"]
    assert open_names(tmp_path, 1).bytes_at(0) == b"a"


@pytest.mark.parametrize(
    "offsets",
    [
        np.array([0, 1, 2], dtype="<u8"),
        np.array([0, 1, 2, 4], dtype="<u8"),
        np.array([1, 1, 2, 3], dtype="<u8"),
        np.array([0, 2, 1, 3], dtype="<u8"),
        np.array([0, 1, 2, 3], dtype="<i8"),
        np.array([[0, 1, 2, 3]], dtype="<u8"),
        np.array(3, dtype="<u8"),
    ],
)
def test_offsets_that_do_not_fit_the_blob_are_damage(tmp_path: Path, offsets: np.ndarray) -> None:
    (tmp_path / "wellfed.names.bin").write_bytes(b"abc")
    np.save(tmp_path / "wellfed.names.npy", offsets)
    with pytest.raises(DamagedDatasetError, match=r"wellfed\.names"):
        open_names(tmp_path, 3)


def test_missing_or_cut_files_are_damage(tmp_path: Path) -> None:
    with pytest.raises(DamagedDatasetError):
        open_names(tmp_path, 0)
    with NamesWriter(tmp_path) as writer:
        writer.add(b"abc")
    offsets = tmp_path / "wellfed.names.npy"
    offsets.write_bytes(offsets.read_bytes()[:-3])
    with pytest.raises(DamagedDatasetError):
        open_names(tmp_path, 1)
    (tmp_path / "wellfed.names.bin").unlink()
    with pytest.raises(DamagedDatasetError):
        open_names(tmp_path, 1)
