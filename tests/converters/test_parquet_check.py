"""The child process that reads Parquet footers first: what it says, what it is given, and that it ends."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wellfed.converters.inputs import parquet_check
from wellfed.converters.inputs.parquet_check import FooterReader, refuse_crashing
from wellfed.pipeline.errors import UsageError


def a_table() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"path": ["a", "b"]}), buffer)
    return buffer.getvalue()


NOISE = """
    for _ in range(1 << 12):
        try:
            os.write(2, b"noise" * 100)
        except BlockingIOError:
            pass  # as C's streams do
    if b"dies" in data:
        os.write(2, b"the reason\\n")
        os.abort()
    try:
"""


def test_a_child_that_writes_more_than_a_pipe_holds_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a child whose libraries write 2 MB over each footer, where a pipe holds 64 KiB
    text = parquet_check._READ
    assert text.count("\n    try:\n") == 1
    monkeypatch.setattr(parquet_check, "_READ", text.replace("\n    try:\n", NOISE))
    # when it reads several, then it answers each
    refuse_crashing([("a", io.BytesIO(a_table())), ("b", io.BytesIO(a_table()))])
    # and a death is still an error, with or without a reason that found room
    dying = b"PAR1" + b"dies" + (4).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(UsageError, match=r"'c' must be whole; got a footer over which pyarrow ends the process: .+"):
        refuse_crashing([("a", io.BytesIO(a_table())), ("c", io.BytesIO(dying))])


def test_a_child_that_cannot_start_is_no_damaged_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_check, "_READ", parquet_check._READ.replace("import pyarrow", "import no_such_module"))
    with pytest.raises(UsageError, match="must start; got ModuleNotFoundError: No module named 'no_such_module'"):
        refuse_crashing([("a", io.BytesIO(a_table()))])


class Counting(io.FileIO):
    most = 0

    def read(self, size: int | None = -1) -> Any:
        self.most = max(self.most, size or 0)
        return super().read(size)


def no_child(*args: object) -> FooterReader:
    raise AssertionError("a child was started")


@pytest.mark.parametrize("length", [(256 << 20) + 1, 0xFFFFFFFF, 300 << 20])
def test_a_footer_that_claims_hundreds_of_megabytes_is_not_held(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a large file, with a hole for what is never read, whose last bytes were damaged
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1")
    os.truncate(path, 5 << 30)
    with open(path, "ab") as file:
        file.write(length.to_bytes(4, "little") + b"PAR1")
    monkeypatch.setattr(parquet_check, "FooterReader", no_child)
    with Counting(str(path)) as counted:
        refuse_crashing([("t", counted)])  # type: ignore[list-item]
        assert counted.most == 8


@pytest.mark.parametrize("data", [b"", b"PAR1", b"x" * 100, b"PAR1" + bytes(4) + b"PARE", b"x" + b"\xff" * 7 + b"PAR1"])
def test_what_has_no_footer_starts_no_child(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_check, "FooterReader", no_child)
    refuse_crashing([("a", io.BytesIO(data))])
