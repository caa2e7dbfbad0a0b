"""All members of some archives, on disk and memory-mapped, and which of them make one sample."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash

from wellfed.pipeline.errors import UsageError

from .members import Member, split_name
from .temporary import TemporaryFolder

_ROW = np.dtype(
    [
        ("name_end", "<i8"),
        ("archive", "<i4"),
        ("ext", "<i4"),  # position in `exts`
        ("label", "<i4"),  # position in `labels`, -1 where none was captured
        ("reason", "<i4"),  # position in `reasons`, -1 for a usable member
        ("offset", "<i8"),
        ("size", "<i8"),
        ("packed", "<i8"),
        ("method", "<i4"),
        ("crc", "<i8"),
    ]
)
_CHUNK = 1 << 15
_BLOCK, _MOST_BLOCKS = 1 << 12, 16
_MOST = 1_000_000
_MOST_EXTS = 10_000
_OTHER = b"?"
"""Stands for every extension after the first 10,000 different ones: no slash or dot leads to it."""


class Row(NamedTuple):
    """A member in the table; see `_ROW`."""

    name_end: int
    archive: int
    ext: int
    label: int
    reason: int
    offset: int
    size: int
    packed: int
    method: int
    crc: int


class MemberTable:
    """Takes members in the archives' order; after `finish`, gives them back sample by sample.

    Attributes:
        rows: structured array of all members, memory-mapped; after `finish`.
        exts, labels, reasons: what the codes in `rows` mean.
        scattered: samples whose members did not lie next to each other.
    """

    def __init__(self) -> None:
        self._folder = TemporaryFolder()
        folder = self._folder.path
        self._rows_file = open(folder / "rows", "w+b")  # noqa: SIM115 - closed by close
        self._names_file = open(folder / "names", "w+b")  # noqa: SIM115 - closed by close
        self._buffer: list[tuple[int, ...]] = []
        self._end = 0
        self._count = 0
        self._codes: dict[str, dict[Any, int]] = {"ext": {}, "label": {}, "reason": {}}
        self._run_starts, self._run_hashes = array("q"), array("Q")
        self._run: tuple[int, bytes] | None = None
        self._run_exts: set[bytes] = set()
        self._targets: np.ndarray | None = None
        self._names: bytes | mmap.mmap = b""
        self._blocks: dict[int, list[tuple[int, ...]]] = {}
        self.rows = np.zeros(0, _ROW)
        self._ends = self.rows["name_end"]
        self.scattered: list[int] = []

    def __len__(self) -> int:
        return self._count

    @property
    def exts(self) -> Sequence[bytes]:
        """Lower-cased extensions without their first dot."""
        return list(self._codes["ext"])

    @property
    def labels(self) -> Sequence[Any]:
        """Captured labels: text, whole number, or what else was found."""
        return [value for _, value in self._codes["label"]]

    @property
    def reasons(self) -> Sequence[str]:
        """Why members are unusable."""
        return list(self._codes["reason"])

    def _code(self, kind: str, value: Any) -> int:
        codes = self._codes[kind]
        if len(codes) >= _MOST and value not in codes:
            raise UsageError(f"archives may hold at most {_MOST:,} different {kind}s", got="more")
        return codes.setdefault(value, len(codes))

    def add(self, archive: int, member: Member, label: Any = None) -> None:
        """Append a member; a label that is None was not captured."""
        key, ext = split_name(member.name)
        if ext not in self._codes["ext"] and len(self._codes["ext"]) >= _MOST_EXTS:
            key, ext = member.name, _OTHER
        if self._run != (archive, key) or ext in self._run_exts:
            self._run, self._run_exts = (archive, key), set()
            self._run_starts.append(self._count)
            self._run_hashes.append(xxhash.xxh3_64_intdigest(key, archive))
        self._run_exts.add(ext)
        self._names_file.write(member.name)
        self._end += len(member.name)
        row = (
            self._end,
            archive,
            self._code("ext", ext),
            # The type beside the value: 1, 1.0 and True are equal and not the same label.
            -1 if label is None else self._code("label", (type(label).__name__, label)),
            -1 if member.reason is None else self._code("reason", member.reason),
            member.offset,
            member.size,
            member.packed,
            member.method,
            member.crc,
        )
        self._buffer.append(row)
        self._count += 1
        if len(self._buffer) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        self._rows_file.write(np.array(self._buffer, _ROW).tobytes())
        self._buffer.clear()

    def finish(self) -> None:
        """End adding, and join what lies apart."""
        self._flush()
        self._rows_file.flush()
        self._names_file.flush()
        if self._count:
            # As a plain array: each item of a memmap makes another memmap.
            self.rows = np.memmap(self._rows_file, _ROW, "r", shape=(self._count,)).view(np.ndarray)
            self._ends = self.rows["name_end"]
        if self._end:
            self._names = mmap.mmap(self._names_file.fileno(), 0, access=mmap.ACCESS_READ)
        self._join()

    def _join(self) -> None:
        """Point each run of members at the earlier run of the same key that lacks its extensions."""
        hashes = np.frombuffer(self._run_hashes, np.uint64)
        order = np.argsort(hashes, kind="stable")
        equal = hashes[order][1:] == hashes[order][:-1]
        if not equal.any():
            return
        targets = np.arange(len(hashes))
        place = 0
        while place < len(equal):
            if not equal[place]:
                place += 1
                continue
            stop = place
            while stop < len(equal) and equal[stop]:
                stop += 1
            self._join_equal([int(run) for run in order[place : stop + 1]], targets)
            place = stop
        if self.scattered:
            self._targets = targets
            self.scattered.sort()

    def _join_equal(self, runs: list[int], targets: np.ndarray) -> None:
        # Of each key: its samples, and by extension how many of them have it already.
        known: dict[tuple[int, bytes], tuple[list[int], dict[int, int]]] = {}
        for run in runs:
            members = self._run_members(run)
            first = members[0]
            identity = (int(self.rows["archive"][first]), split_name(self.name(first))[0])
            samples, counts = known.setdefault(identity, ([], {}))
            # Not by `row`: equal keys lie anywhere.
            exts = self.rows["ext"][members.start : members.stop].tolist()
            # A second file of the same extension is a sample of its own: both are kept.
            place = max(counts.get(ext, 0) for ext in exts)
            for ext in exts:
                counts[ext] = place + 1
            if place < len(samples):
                targets[run] = samples[place]
                self.scattered.append(samples[place])
            else:
                samples.append(run)

    def _run_members(self, run: int) -> range:
        stop = self._run_starts[run + 1] if run + 1 < len(self._run_starts) else self._count
        return range(self._run_starts[run], stop)

    def row(self, member: int) -> Row:
        """What is known of a member; many times faster in sequence than from `rows`."""
        block, place = divmod(member, _BLOCK)
        found = self._blocks.get(block)
        if found is None:
            while len(self._blocks) >= _MOST_BLOCKS:
                # The oldest: members are asked for in sequence.
                del self._blocks[next(iter(self._blocks))]
            found = self._blocks[block] = self.rows[block * _BLOCK : (block + 1) * _BLOCK].tolist()
        return Row._make(found[place])

    def name(self, member: int) -> bytes:
        """Path as stored in the archive."""
        start = int(self._ends[member - 1]) if member else 0
        return self._names[start : int(self._ends[member])]

    def first_names(self, runs: Sequence[int]) -> list[bytes]:
        """The name of the first member of each of these samples."""
        return [self.name(int(self._run_starts[run])) for run in runs]

    def samples(self) -> Iterator[list[int]]:
        """The members of each sample, samples in the order of their first members."""
        if self._targets is None:
            for run in range(len(self._run_starts)):
                yield list(self._run_members(run))
            return
        following: dict[int, list[int]] = {}
        for run in np.flatnonzero(self._targets != np.arange(len(self._targets))).tolist():
            following.setdefault(int(self._targets[run]), []).append(run)
        for run in range(len(self._run_starts)):
            if self._targets[run] == run:
                runs = [run, *following.pop(run, ())]
                yield [member for each in runs for member in self._run_members(each)]

    def close(self) -> None:
        """Remove its files."""
        self.rows = np.zeros(0, _ROW)
        self._ends = self.rows["name_end"]
        self._blocks.clear()
        self._names_file.close()
        self._rows_file.close()
        if not isinstance(self._names, bytes):
            self._names.close()
        self._folder.close()
