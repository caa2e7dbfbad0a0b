"""JPEGs read from open files by the C extension: the same pixels as from memory, and what cannot be read is said."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from wellfed.pipeline.decode.chunk import decode_chunk, decode_files, read_encoded
from wellfed.pipeline.decode.extension import native
from wellfed.pipeline.formats.reading import Stretches

needs_extension = pytest.mark.skipif(native is None, reason="the C extension is not built")
SIZE = 24


class Packed:
    """Samples one behind the other in a file, after 7 bytes of something else; a source of them."""

    def __init__(self, path: Path, samples: list[bytes]) -> None:
        path.write_bytes(b"another" + b"".join(samples))
        self.samples = samples
        self.file = os.open(path, os.O_RDONLY)
        sizes = np.array([len(data) for data in samples], dtype=np.int64)
        self.where = Stretches(
            descriptors=np.full(len(samples), self.file, dtype=np.int32),
            offsets=7 + np.cumsum(sizes) - sizes,
            sizes=sizes,
            files=(),
            take=lambda size: memoryview(bytearray(size)),
        )

    def __len__(self) -> int:
        return len(self.samples)

    def stretches(self, rows: np.ndarray) -> Stretches:
        where = self.where
        return Stretches(
            descriptors=where.descriptors[rows],
            offsets=where.offsets[rows],
            sizes=where.sizes[rows],
            files=(),
            take=where.take,
        )

    def read(self, row: int) -> bytes:
        if len(data := self.samples[row]) != self.where.sizes[row]:
            raise OSError(f"row {row} is cut short")
        return data


def jpeg(seed: int) -> bytes:
    colours = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).resize((40, 30)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def packed(tmp_path: Path) -> Iterator[Packed]:
    packed = Packed(tmp_path / "shard", [jpeg(number) for number in range(5)])
    yield packed
    os.close(packed.file)


def crops(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    boxes = np.tile(np.array([[3, 2, 30, 25]], dtype=np.int32), (count, 1))
    return boxes, np.ones(count, dtype=np.uint8), np.arange(count) % 2 == 1


def pixels(count: int) -> torch.Tensor:
    return torch.zeros((count, SIZE, SIZE, 3), dtype=torch.uint8).permute(0, 3, 1, 2)


@needs_extension
def test_pixels_are_those_of_the_same_bytes_in_memory(packed: Packed) -> None:
    expected, out = pixels(5), pixels(5)
    assert decode_chunk(packed.samples, *crops(5), expected) == {}

    assert decode_files(packed.where, *crops(5), out).tolist() == []
    assert torch.equal(out, expected)
    assert expected.float().std() > 1


@needs_extension
def test_what_cannot_be_read_or_decoded_is_left(packed: Packed) -> None:
    where = packed.where
    where.sizes[1] = 0
    where.sizes[2] = -1
    where.offsets[3] = 1 << 40
    where.descriptors[4] = 1_000_000
    out = pixels(5)

    assert decode_files(where, *crops(5), out).tolist() == [1, 2, 3, 4]
    assert out[0].any()


def test_without_the_extension_all_is_left(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wellfed.pipeline.decode.chunk._native", None)
    assert decode_files(packed.where, *crops(5), pixels(5)).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("extension", [pytest.param(True, marks=needs_extension), False])
def test_rows_are_read_in_their_order(packed: Packed, extension: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not extension:
        monkeypatch.setattr("wellfed.pipeline.decode.chunk._native", None)
    rows = np.array([4, 0, 0, 2])
    assert [bytes(data) for data in read_encoded(packed, rows)] == [packed.samples[row] for row in rows]  # type: ignore[arg-type]
    assert list(read_encoded(packed, rows[:0])) == []  # type: ignore[arg-type]


@needs_extension
def test_a_file_that_ends_early_is_named_by_the_source(packed: Packed) -> None:
    packed.where.sizes[2] += 10_000
    with pytest.raises(OSError, match="row 2 is cut short"):
        read_encoded(packed, np.array([0, 2]))  # type: ignore[arg-type]


@needs_extension
def test_sizes_that_no_buffer_has_are_refused(packed: Packed) -> None:
    assert native is not None
    where = packed.where
    for sizes in ([-1, 5], [1 << 62, 1 << 62]):
        with pytest.raises(ValueError, match="sizes"):
            native.read_files(where.descriptors[:2], where.offsets[:2], np.array(sizes), bytearray(9))
    with pytest.raises(ValueError, match="out must hold at least"):
        native.read_files(where.descriptors[:2], where.offsets[:2], where.sizes[:2], bytearray(9))
    with pytest.raises(ValueError, match="offsets must hold at least 40 bytes"):
        native.read_files(where.descriptors, where.offsets[:2], where.sizes, bytearray(10_000))
