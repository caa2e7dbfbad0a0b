"""Whether pyarrow survives the footers of Parquet files: it ends the whole process over some damaged ones."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from typing import IO

from wellfed.pipeline.errors import UsageError

_MAGIC = b"PAR1"
_READ = """
import io, pickle, sys
sys.path[:] = pickle.loads(bytes.fromhex({path!r}))
import pyarrow.parquet
while length := sys.stdin.buffer.read(8):
    data = sys.stdin.buffer.read(int.from_bytes(length, "little"))
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(data))
        file.schema_arrow
        for group in range(file.metadata.num_row_groups):
            facts = file.metadata.row_group(group)
            for number in range(facts.num_columns):
                facts.column(number)
    except Exception:
        pass  # the parent meets it too, and says so in its own words
    sys.stdout.buffer.write(b"x")
    sys.stdout.buffer.flush()
"""


def refuse_crashing(files: Iterable[tuple[str, IO[bytes]]]) -> None:
    """Let a child process read the footers first; of Parquet files alone, in one child for all of them.

    It costs the child's start, which imports pyarrow, and reading each footer twice. Pages of values are not read.

    Args:
        files: name for messages, and the file, which may be of another kind and is then passed over.

    Raises:
        UsageError: the child died over a file.
    """
    child: subprocess.Popen[bytes] | None = None
    try:
        for name, file in files:
            footer = _footer(file)
            if footer is None:
                continue
            if child is None:
                code = _READ.format(path=pickle.dumps(sys.path).hex())
                child = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            if not _survives(child, footer):
                _, words = child.communicate()
                raise UsageError(
                    f"the Parquet file {name!r} must be whole",
                    got="a footer over which pyarrow ends the process: "
                    + (words.decode("utf-8", "replace").strip().split("\n")[-1].strip() or f"{child.returncode}"),
                    remedy="It is damaged; write or fetch it again.",
                )
    finally:
        if child is not None:
            child.kill()
            child.communicate()


def _survives(child: subprocess.Popen[bytes], footer: bytes) -> bool:
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(len(footer).to_bytes(8, "little") + footer)
        child.stdin.flush()
    except BrokenPipeError:
        return False
    return child.stdout.read(1) == b"x"


def _footer(file: IO[bytes]) -> bytes | None:
    """A Parquet file of the footer alone; None where there is none, which reading finds without a crash."""
    size = file.seek(0, os.SEEK_END)
    if size < 12:
        return None
    file.seek(size - 8)
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > size - 8:
        return None
    file.seek(size - 8 - length)
    return _MAGIC + file.read(length) + tail
