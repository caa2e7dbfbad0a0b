"""Archives with flipped, lost and doubled bytes: listed, or refused with an error of ours, in bounded memory."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from wellfed.converters.inputs import InputOptions
from wellfed.converters.inputs.tar import TarInput
from wellfed.converters.inputs.zip import ZipInput
from wellfed.pipeline.errors import SampleRejectedError, WellfedError

MOST_BYTES = 48 << 20
"""Small archives: nothing but a size that was believed could take this much."""


def a_tar(format: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for number in range(2):
            for ext, data in (("jpg", b"image"), ("cls", b"%d" % number), ("json", b'{"a": 1}')):
                member = tarfile.TarInfo(f"{'long/' * 25}ä{number}.{ext}")
                member.size, member.mtime = len(data), 1.5  # type: ignore[assignment]
                tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def a_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number, method in enumerate((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)):
            archive.writestr(f"c/{number}.jpg", b"image" * 30, method)
            archive.writestr(f"c/{number}.cls", b"%d" % number, method)
    return buffer.getvalue()


SEEDS = {
    "gnu.tar": a_tar(tarfile.GNU_FORMAT),
    "pax.tar": a_tar(tarfile.PAX_FORMAT),
    "gz.tar": gzip.compress(a_tar(tarfile.GNU_FORMAT)),
    "a.zip": a_zip(),
}


@st.composite
def mutated(draw: st.DrawFn, seed: bytes) -> bytes:
    data = bytearray(seed)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "set", "digits", "cut", "double", "zero"])):
            case "flip" if data:
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "set":
                data[place : place + 4] = draw(st.binary(min_size=1, max_size=8))
            case "digits":
                data[place : place + 3] = draw(st.sampled_from([b"777", b"999", b"\xff\xff\xff", b"\x80\0\0"]))
            case "cut":
                del data[place:]
            case "double":
                data[place:place] = data[max(0, place - draw(st.integers(1, 1024))) : place]
            case "zero":
                data[place : place + 512] = bytes(512)
    return bytes(data)


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_no_damage_crashes_the_listing(name: str, tmp_path: Path, sum_tar: Callable[[bytes], bytes]) -> None:
    path = tmp_path / name
    kind = ZipInput if name.endswith(".zip") else TarInput

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(mutated(SEEDS[name]), st.booleans(), st.booleans())
    def check(data: bytes, right_sums: bool, prefix: bool) -> None:
        path.write_bytes(sum_tar(data) if right_sums else data)
        tracemalloc.reset_peak()
        try:
            source = kind.list(str(path), InputOptions(prefix=prefix))
        except WellfedError:
            source = None
        for row in range(len(source) if source is not None else 0):
            assert source is not None
            if row not in source.refused:
                with suppress(SampleRejectedError):
                    source.read(row)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES

    tracemalloc.start()
    try:
        check()
    finally:
        tracemalloc.stop()
