"""Tars that are cut, damaged, empty or changing."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import zstandard

from wellfed.converters.inputs import InputOptions
from wellfed.converters.inputs.tar import TarInput
from wellfed.pipeline.errors import SampleRejectedError, SourceChangedError, UsageError

Entry = tuple[str, bytes]


def write_tar(path: Path, entries: list[Entry]) -> Path:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in entries:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def listed(path: Path | str, **options: object) -> TarInput:
    return TarInput.list(str(path), InputOptions(**options))  # type: ignore[arg-type]


def names(source: TarInput) -> list[bytes]:
    return [source.name(row) for row in range(len(source))]


SHARD: list[Entry] = [
    ("0001.jpg", b"first"),
    ("0001.cls", b"1"),
    ("0002.jpg", b"second"),
    ("0002.cls", b"0"),
]


@pytest.mark.parametrize("cut", ["inside", "between", "header"])
def test_a_tar_cut_short_names_the_member(tmp_path: Path, cut: str) -> None:
    entries: list[Entry] = [(f"{number}.{ext}", b"0" * 600) for number in range(3) for ext in ("jpg", "txt")]
    data = write_tar(tmp_path / "a.tar", entries).read_bytes()
    stop = {"inside": 5 * 1536 + 700, "between": 5 * 1536, "header": 5 * 1536 + 100}[cut]
    (tmp_path / "a.tar").write_bytes(data[:stop])
    with pytest.raises(UsageError, match="2.txt" if cut == "inside" else "2.jpg"):
        listed(tmp_path / "a.tar", label_regex="([0-9])")
    # The whole prefix when asked, and the sample that lost its text refused.
    source = listed(tmp_path / "a.tar", label_regex="([0-9])", prefix=True)
    assert names(source) == [b"0.jpg", b"1.jpg", b"2.jpg"]
    assert source.refused == {2: "the sample has no text"}
    assert source.notes["archive_cut"] == 1


@pytest.mark.parametrize("members", [0, 1])
def test_a_prefix_without_a_whole_sample_says_so(tmp_path: Path, members: int) -> None:
    # A header, 600 bytes of data and padding make 1536 bytes a member; the cut lies in the data of the next.
    data = write_tar(tmp_path / "a.tar", [("1.cls", b"0" * 600), ("1.jpg", b"1" * 600)]).read_bytes()
    if not members:
        data = write_tar(tmp_path / "a.tar", [("cat/1.jpg", b"1" * 600), ("cat/2.jpg", b"2")]).read_bytes()
    (tmp_path / "a.tar").write_bytes(data[: 1536 * members + 700])
    with pytest.raises(UsageError, match=f"whole samples before the cut.*no whole sample.*{members} whole members"):
        listed(tmp_path / "a.tar", prefix=True)


@pytest.mark.parametrize(
    ("ending", "pack"),
    [(".gz", gzip.compress), (".bz2", partial(bz2.compress, compresslevel=1)), (".zst", zstandard.compress)],
)
def test_cut_compression(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40_000), dtype=np.uint8)
    entries: list[Entry] = [(f"c/{number:02}.jpg", noise[number].tobytes()) for number in range(40)]
    packed = pack(write_tar(tmp_path / "a.tar", entries).read_bytes())
    path = tmp_path / f"b.tar{ending}"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UsageError, match=r"must be whole.*c/\d\d\.jpg"):
        listed(path)
    source = listed(path, prefix=True)
    assert 10 <= len(source) <= 20
    last = len(source) - 1
    assert source.read(last).image == noise[last].tobytes()


def zst_with_sum(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def zst_of_unknown_size(data: bytes) -> bytes:
    packer = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compressobj()
    return packer.compress(data) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) + packer.flush()


SKIPPED = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
"""A frame of zstd's that holds no data."""
PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gz": (".gz", gzip.compress),
    "bz2": (".bz2", bz2.compress),
    "zst": (".zst", zstandard.compress),
    "zst with a sum": (".zst", zst_with_sum),
    "zst of unknown size": (".zst", zst_of_unknown_size),
}


@pytest.mark.parametrize("kind", PACKERS)
def test_a_compressed_tar_without_any_of_its_last_bytes_is_not_whole(tmp_path: Path, kind: str) -> None:
    # given a tar whose end mark comes out before the last bytes are looked at: they are a block's end, or sums
    ending, pack = PACKERS[kind]
    path = tmp_path / f"b.tar{ending}"
    packed = pack(write_tar(tmp_path / "a.tar", SHARD).read_bytes())
    path.write_bytes(packed)
    assert names(listed(path)) == [b"0001.jpg", b"0002.jpg"]
    # when any number of them is missing, then it is refused
    for cut in (*range(1, 20), *range(20, len(packed), 20)):
        path.write_bytes(packed[:-cut])
        with pytest.raises(UsageError, match="must be whole"):
            listed(path)


@pytest.mark.parametrize(("front", "back"), [(b"", SKIPPED), (SKIPPED, b""), (SKIPPED, SKIPPED)])
@pytest.mark.parametrize("pack", [zstandard.compress, zst_with_sum, zst_of_unknown_size])
def test_zst_of_several_frames_is_whole_where_its_last_is(
    tmp_path: Path, front: bytes, back: bytes, pack: Callable[[bytes], bytes]
) -> None:
    # given a tar in two frames, the second of which holds only what follows the end mark, and frames without data
    data = write_tar(tmp_path / "a.tar", SHARD).read_bytes()
    path, second = tmp_path / "b.tar.zst", pack(data[-1024:])
    parts = [front, pack(data[:-1024]), second, back]
    path.write_bytes(b"".join(parts))
    assert names(listed(path)) == [b"0001.jpg", b"0002.jpg"]
    # when it ends inside one of the two last, then it is refused; where a frame ends, the tar is still whole
    whole = b"".join(parts)
    for cut in range(1, len(second) + len(back)):
        path.write_bytes(whole[:-cut])
        if cut == len(back):
            assert len(listed(path)) == 2
            continue
        with pytest.raises(UsageError, match="must be whole"):
            listed(path)
    for more in (b"x", whole[:3], whole[:9], b"\x50\x2a\x4d"):
        path.write_bytes(whole + more)
        with pytest.raises(UsageError, match="must be whole"):
            listed(path)


def test_large_zst_is_followed_block_by_block(tmp_path: Path) -> None:
    # given blocks of each kind: raw (noise), repeated (zeros) and compressed
    noise = np.random.default_rng(1).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
    entries: list[Entry] = [("c/0.jpg", noise), ("c/1.jpg", bytes(300_000) + b"1"), ("c/2.jpg", b"text " * 60_000)]
    packed = zst_with_sum(write_tar(tmp_path / "a.tar", entries).read_bytes())
    path = tmp_path / "b.tar.zst"
    path.write_bytes(packed)
    assert len(listed(path)) == 3
    for cut in (1, 4, 5, 1000, len(packed) // 2):
        path.write_bytes(packed[:-cut])
        with pytest.raises(UsageError, match="must be whole"):
            listed(path)


def test_a_damaged_header_or_a_second_tar_behind_is_no_end(tmp_path: Path) -> None:
    data = bytearray(write_tar(tmp_path / "a.tar", SHARD).read_bytes())
    (tmp_path / "b.tar").write_bytes(data + data)
    with pytest.raises(UsageError, match="more data follows"):
        listed(tmp_path / "b.tar")
    data[1024 + 3] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(UsageError, match=r"damaged header.*0001\.jpg"):
        listed(tmp_path / "a.tar")


def test_what_holds_no_labels_or_images_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must have labels"):
        listed(write_tar(tmp_path / "a.tar", [("1.jpg", b"x"), ("2.jpg", b"x")]))
    with pytest.raises(UsageError, match=r"must have an image.*mp4"):
        listed(write_tar(tmp_path / "b.tar", [("1.mp4", b"x"), ("1.cls", b"0")]))
    with pytest.raises(UsageError, match="must hold images"):
        listed(write_tar(tmp_path / "c.tar", []))
    (tmp_path / "d.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(UsageError, match=r"damaged header.*before its first"):
        listed(tmp_path / "d.tar")
    (tmp_path / "e.tar").write_bytes(b"")
    with pytest.raises(UsageError, match="must be whole"):
        listed(tmp_path / "e.tar")


def test_a_tar_that_changes_is_noticed(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", SHARD)
    packed = tmp_path / "b.tar.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    plain_source, packed_source = listed(path), listed(packed)
    os.utime(path, ns=(1, 1))
    os.utime(packed, ns=(1, 1))
    with pytest.raises(SampleRejectedError, match="must not change"):
        plain_source.read(0)
    with pytest.raises(SourceChangedError):
        packed_source.save(tmp_path)
    assert plain_source.state != listed(path).state
