"""One shard of a set that is indexed in place: hash it, check its samples, make its index rows. Runs in a worker."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from wellfed.pipeline.decode.check import check_image
from wellfed.pipeline.errors import SampleRejectedError, SourceChangedError
from wellfed.pipeline.formats.index import index_dtype, mode_code

from .files import sha256_of
from .inputs.tar import TarInput
from .outputs.tar import BLOCK, padded
from .plan import CheckName
from .rejects import Reject, reason_of, reject_line

IN_PLACE = "indexed_in_place"
"""The manifest option that says that the shards are another tool's."""

_REPORT_SECONDS = 0.1
_SAFE_NAME = re.compile(rb"[0-9A-Za-z_-]+\.[a-z0-9]+\Z")
_SAFE_EXTENSION = re.compile(r"[a-z0-9]+\Z")


@dataclass(frozen=True, kw_only=True)
class IndexTask:
    """What a worker needs to know.

    Attributes:
        location, saved: of the listed input.
        work: folder for the results.
        archive: which shard; start, stop: its rows.
        places: field to the columns of the listing that hold its offset and size.
        extensions: field to its extension; None for the image's, which is in each name.
    """

    location: str
    saved: str
    work: str
    archive: int
    path: str
    start: int
    stop: int
    places: Mapping[str, tuple[str, str]]
    extensions: Mapping[str, str | None]
    check: CheckName


@dataclass(frozen=True, kw_only=True)
class IndexResult:
    """What a shard holds; `rows_name`, `keys` of its stored rows, rejects and DALI index lie in the work folder.

    Attributes:
        size, sha256: of the tar.
        safe: every reader reads the names of its stored samples alike, and the DALI index was made.
        unsafe_name: otherwise, the first sample whose names they may read differently.
        plain: it holds nothing but members of its samples, with plain headers.
    """

    archive: int
    samples: int
    rejected: int
    size: int
    sha256: str
    notes: dict[str, int]
    safe: bool
    unsafe_name: str | None
    plain: bool


def rows_name(archive: int) -> str:
    """Index rows of a shard."""
    return f"rows-{archive:06d}.npy"


def rejects_name(archive: int) -> str:
    """Rejects of a shard."""
    return f"rejects-{archive:06d}.jsonl"


def idx_name(archive: int) -> str:
    """DALI index of a shard."""
    return f"dali-{archive:06d}.idx"


def index_shard(task: IndexTask, *, report: Callable[[Any], None]) -> IndexResult:
    """Hash the tar and each stored field, check each image; reports (samples done, rejected, path being read).

    Raises:
        SourceChangedError: the tar changed meanwhile.
    """
    source = TarInput.load(task.location, Path(task.saved))
    before = os.stat(task.path)
    digest = sha256_of(Path(task.path))
    work = Path(task.work)
    rows = np.zeros(task.stop - task.start, index_dtype(tuple(task.places)))
    notes: Counter[str] = Counter()
    stored = rejected = 0
    reported = 0.0
    with open(work / rejects_name(task.archive), "wb") as rejects:
        for key in range(task.start, task.stop):
            name = source.name(key)
            if (now := time.monotonic()) - reported > _REPORT_SECONDS:
                report((key - task.start, rejected, os.fsdecode(name)))
                reported = now
            try:
                _index(source, task, key, name, rows[stored], notes)
                stored += 1
            except SampleRejectedError as error:
                rejects.write(reject_line(Reject(key, name, reason_of(error))))
                rejected += 1
    rows = rows[:stored]
    np.save(work / rows_name(task.archive), rows, allow_pickle=False)
    with open(task.path, "rb") as file:
        unsafe = _write_dali_index(file.fileno(), source, task, rows)
        plain = _is_plain(file.fileno(), before.st_size, task, rows)
    after = os.stat(task.path)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise SourceChangedError("a shard must not change while it is indexed", got=task.path, remedy="Run again.")
    return IndexResult(
        archive=task.archive,
        samples=stored,
        rejected=rejected,
        size=after.st_size,
        sha256=digest,
        notes=dict(sorted(notes.items())),
        safe=stored > 0 and unsafe is None,
        unsafe_name=unsafe,
        plain=plain,
    )


def _index(source: TarInput, task: IndexTask, key: int, name: bytes, row: np.void, notes: Counter[str]) -> None:
    if key in source.refused:
        raise SampleRejectedError(source.refused[key])
    values = {
        field: source.read_at(task.archive, offset=_value(source, key, offset), size=_value(source, key, size))
        for field, (offset, size) in task.places.items()
    }
    head = check_image(values["image"], task.check)
    notes.update(head.notes)
    row["key"], row["label"], row["shard"] = key, int(source.labels[key]), task.archive
    row["width"], row["height"], row["orientation"] = head.width, head.height, head.orientation
    # The extension in the tar, which its readers go by, whatever the content is.
    row["mode"], row["ext"] = mode_code(head.mode), name.rpartition(b".")[2].lower()[:8]
    for field, value in values.items():
        row[f"offset_{field}"] = _value(source, key, task.places[field][0])
        row[f"size_{field}"] = len(value)
        row[f"xxh3_{field}"] = xxhash.xxh3_64_intdigest(value)


def _value(source: TarInput, key: int, column: str) -> int:
    return int(source.listing.columns[column][key])


def dali_line(name: bytes, row: np.void, extensions: Mapping[str, str | None]) -> bytes | None:
    """A sample's line of the DALI index; None where a reader could read its names otherwise."""
    stem, _, image = name.partition(b".")
    if not _SAFE_NAME.match(name):
        return None
    parts = []
    for field, extension in extensions.items():
        ext = image.decode("ascii") if extension is None else extension
        member = stem.decode("ascii") + "." + ext
        if len(member) > 100 or not _SAFE_EXTENSION.match(ext):
            return None
        parts.append(f"{ext} {int(row[f'offset_{field}'])} {int(row[f'size_{field}'])} {member}")
    return " ".join(parts).encode("ascii")


def _write_dali_index(descriptor: int, source: TarInput, task: IndexTask, rows: np.ndarray) -> str | None:
    """Write it, unless a sample stands in the way, whose name is returned."""
    lines = [b"v1.2 %d" % len(rows)]
    for row in rows:
        name = source.name(int(row["key"]))
        line = dali_line(name, row, task.extensions)
        if line is None or not _names_are(descriptor, line):
            return os.fsdecode(name)
        lines.append(line)
    (Path(task.work) / idx_name(task.archive)).write_bytes(b"\n".join(lines) + b"\n")
    return None


def _names_are(descriptor: int, line: bytes) -> bool:
    """The headers in the tar say these names, in these letters and without extended headers."""
    words = line.split(b" ")
    return all(
        os.pread(descriptor, 100, int(offset) - BLOCK).split(b"\0", 1)[0] == name
        for offset, name in zip(words[1::4], words[3::4], strict=True)
    )


def _is_plain(descriptor: int, size: int, task: IndexTask, rows: np.ndarray) -> bool:
    if not len(rows):
        return False
    offsets = np.concatenate([rows[f"offset_{field}"] for field in task.places]).astype(np.int64)
    sizes = np.concatenate([rows[f"size_{field}"] for field in task.places]).astype(np.int64)
    order = np.argsort(offsets)
    starts, ends = offsets[order] - BLOCK, offsets[order] + -(-sizes[order] // BLOCK) * BLOCK
    if starts[0] != 0 or bool(np.any(starts[1:] != ends[:-1])):
        return False
    end = int(ends[-1])
    return padded(end) == end <= size - BLOCK and os.pread(descriptor, BLOCK, end) == bytes(BLOCK)
