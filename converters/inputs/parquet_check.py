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
_LONGEST_FOOTER = 256 << 20
_READ = """
import io, os, pickle, sys
sys.path[:] = pickle.loads(bytes.fromhex({path!r}))
import pyarrow.parquet
os.set_blocking(2, False)  # what a library writes is lost where the pipe is full, and nobody waits for it
sys.stdout.buffer.write(b"x")
sys.stdout.buffer.flush()
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


class FooterReader:
    """A child process that reads footers one after another, until one ends it.

    Raises:
        UsageError: Python with pyarrow does not start.
    """

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", _READ.format(path=pickle.dumps(sys.path).hex())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._child.stderr is not None
        os.set_blocking(self._child.stderr.fileno(), False)
        if not self._answers():
            raise UsageError("a process that reads Parquet footers must start", got=self.last_words())

    def survives(self, footer: bytes) -> bool:
        """Whether the child lives after it read this Parquet file of a footer alone; if not, it is of no more use."""
        assert self._child.stdin is not None
        assert self._child.stderr is not None
        # Room for what this footer makes it say.
        self._child.stderr.read()
        try:
            self._child.stdin.write(len(footer).to_bytes(8, "little") + footer)
            self._child.stdin.flush()
        except BrokenPipeError:
            return False
        return self._answers()

    def _answers(self) -> bool:
        assert self._child.stdout is not None
        return self._child.stdout.read(1) == b"x"

    def last_words(self) -> str:
        """The last line that the dead child wrote, or how it ended."""
        assert self._child.stderr is not None
        self._child.wait()
        lines = (self._child.stderr.read() or b"").decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with {self._child.returncode}"

    def end(self) -> None:
        """End the child, which may be dead."""
        self._child.kill()
        self._child.communicate()


def refuse_crashing(files: Iterable[tuple[str, IO[bytes]]]) -> None:
    """Let a child process read the footers first; of Parquet files alone, in one child for all of them.

    It costs the child's start, which imports pyarrow, and reading each footer twice. Pages of values are not read.

    Args:
        files: name for messages, and the file, which may be of another kind and is then passed over.

    Raises:
        UsageError: the child died over a file.
    """
    reader: FooterReader | None = None
    try:
        for name, file in files:
            footer = _footer(file)
            if footer is None:
                continue
            reader = reader or FooterReader()
            if not reader.survives(footer):
                raise UsageError(
                    f"the Parquet file {name!r} must be whole",
                    got=f"a footer over which pyarrow ends the process: {reader.last_words()}",
                    remedy="It is damaged; write or fetch it again.",
                )
    finally:
        if reader is not None:
            reader.end()


def _footer(file: IO[bytes]) -> bytes | None:
    """A Parquet file of the footer alone; None where there is none that is to be read here."""
    size = file.seek(0, os.SEEK_END)
    if size < 12:
        return None
    file.seek(size - 8)
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    # A damaged length may claim gigabytes of a large file, which would be held here and once more in the child. Real
    # footers of any size that can be worked with are a thousandth of it: pyarrow alone reads what is longer.
    if tail[4:] != _MAGIC or length > min(size - 8, _LONGEST_FOOTER):
        return None
    file.seek(size - 8 - length)
    return _MAGIC + file.read(length) + tail
