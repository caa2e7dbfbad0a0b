"""The checks of `verify` on the samples of one shard. Runs in a worker process: damage may kill a reader."""

from __future__ import annotations

import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import xxhash

from wellfed.pipeline.decode.check import check_image
from wellfed.pipeline.errors import DamagedDatasetError, SampleRejectedError
from wellfed.pipeline.formats import INDEX_NAME, Manifest, Shard, mode_code, open_index
from wellfed.pipeline.formats.lmdb import check_mappable
from wellfed.pipeline.formats.names import Names, open_names

from .files import sha256_of
from .indexed_checks import UNREADABLE_TAR, check_indexed_tar, is_in_place
from .rejects import name_of, reason_of
from .verify import Problem

_REPORT_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class ShardCheck:
    """Rows of one shard to check.

    Attributes:
        first: these are the shard's first rows, and its SHA-256 is compared as well.
    """

    directory: str
    shard: int
    start: int
    stop: int
    first: bool
    deep: bool


@dataclass(frozen=True)
class _Dataset:
    manifest: Manifest
    names: Names
    shard: str
    deep: bool

    def problem(self, key: int | None, what: str) -> Problem:
        return Problem(file=self.shard, key=key, what=what)


def check_shard(task: ShardCheck, *, report: Callable[[Any], None]) -> list[Problem]:
    """All that is wrong with these rows; reports (rows done, problems)."""
    directory = Path(task.directory)
    manifest = Manifest.load(directory)
    index = open_index(directory / INDEX_NAME, fields=tuple(manifest.members), samples=manifest.samples)
    shard = manifest.shards[task.shard]
    dataset = _Dataset(manifest, open_names(directory, manifest.samples), shard.name, task.deep)
    path = directory / shard.name
    problems: list[Problem] = []
    try:
        if task.first and (what := wrong_file(path, shard)):
            problems.append(dataset.problem(None, what))
        check = _check_tar if manifest.kind == "webdataset" else _check_lmdb
        if is_in_place(manifest):
            check = _check_indexed
        reported = 0.0
        for done, found in check(dataset, path, index, task):
            problems += found
            if (now := time.monotonic()) - reported > _REPORT_SECONDS:
                report((done, len(problems)))
                reported = now
    except OSError as error:
        problems.append(dataset.problem(None, f"it cannot be read: {error.strerror}"))
    return problems


def wrong_file(path: Path, shard: Shard) -> str | None:
    """What is wrong with a shard's file as a whole. Raises OSError where it cannot be read."""
    size = path.stat().st_size
    if size != shard.size:
        return f"{size} bytes, where the manifest says {shard.size}"
    return None if sha256_of(path) == shard.sha256 else "its SHA-256 is not the manifest's"


def _members(row: np.void, manifest: Manifest) -> dict[str, str]:
    """Field to its name in the shard."""
    image = row["ext"].decode("ascii", "replace")
    return {field: f"{int(row['key']):010d}.{extension or image}" for field, extension in manifest.members.items()}


def _check_indexed(
    dataset: _Dataset, path: Path, index: np.ndarray, task: ShardCheck
) -> Iterator[tuple[int, list[Problem]]]:
    checked = check_indexed_tar(
        dataset.manifest, dataset.names, path, index, start=task.start, stop=task.stop, deep=dataset.deep
    )
    for done, key, wrong in checked:
        yield done, [dataset.problem(key, what) for what in wrong]


def _check_tar(
    dataset: _Dataset, path: Path, index: np.ndarray, task: ShardCheck
) -> Iterator[tuple[int, list[Problem]]]:
    try:
        with tarfile.open(path, "r:") as tar:
            # What is no file has no size: a link or a folder is an extra member like any other.
            found = {each.name: (each.offset_data, each.size if each.isreg() else -1) for each in tar}
    except UNREADABLE_TAR as error:
        yield 0, [dataset.problem(None, f"it must be a tar; got {error}")]
        found = {}
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for done, row_number in enumerate(range(task.start, task.stop), 1):
            row = index[row_number]
            problems, values = [], {}
            for field, name in _members(row, dataset.manifest).items():
                place = int(row[f"offset_{field}"]), int(row[f"size_{field}"])
                member = found.pop(name, None)
                if member != place:
                    seen = "no such member" if member is None else f"offset {member[0]}, size {member[1]}"
                    what = f"{name} must be at offset {place[0]}, size {place[1]}; got {seen}"
                    problems.append(dataset.problem(int(row["key"]), what))
                if sum(place) > dataset.manifest.shards[task.shard].size:
                    problems.append(dataset.problem(int(row["key"]), f"{name} lies outside the shard"))
                    continue
                values[field] = os.pread(fd, place[1], place[0])
            problems += _check_sample(dataset, row, row_number, values)
            yield done, problems
    finally:
        os.close(fd)
    yield task.stop - task.start, [dataset.problem(None, f"extra member {name!r}") for name in sorted(found)]


def _check_lmdb(
    dataset: _Dataset, path: Path, index: np.ndarray, task: ShardCheck
) -> Iterator[tuple[int, list[Problem]]]:
    try:
        if path.stat().st_size < dataset.manifest.shards[task.shard].size:
            yield 0, [dataset.problem(None, "cut short: its samples were not compared")] if task.first else []
            return
        check_mappable(path)
        environment = lmdb.open(
            str(path.parent), readonly=True, lock=False, readahead=False, meminit=False, create=False, max_dbs=0
        )
    except (DamagedDatasetError, lmdb.Error) as error:
        yield 0, [dataset.problem(None, str(error))] if task.first else []
        return
    with environment:
        entries = environment.stat()["entries"]
        if task.first and entries != len(dataset.manifest.members) * dataset.manifest.samples:
            samples, members = dataset.manifest.samples, len(dataset.manifest.members)
            what = f"{entries} entries, where the manifest says {samples} samples of {members} fields"
            yield 0, [dataset.problem(None, what)]
        try:
            with environment.begin() as transaction, transaction.cursor() as cursor:
                yield from _walk(dataset, cursor, index, task)
        except lmdb.Error as error:
            yield 0, [dataset.problem(None, f"LMDB cannot read it: {error}")]


def _walk(
    dataset: _Dataset, cursor: lmdb.Cursor, index: np.ndarray, task: ShardCheck
) -> Iterator[tuple[int, list[Problem]]]:
    if task.start >= task.stop:
        return
    first = b"%010d." % int(index["key"][task.start])
    more = cursor.first() if task.first else cursor.set_range(first)
    last = b"%010d/" % int(index["key"][task.stop - 1])  # "/" follows "." in ASCII
    if task.stop == len(index):
        last = b"\xff"
    for done, row_number in enumerate(range(task.start, task.stop), 1):
        row = index[row_number]
        names = _members(row, dataset.manifest)
        values: dict[str, bytes] = {}
        problems = []
        for field, name in sorted(names.items(), key=lambda item: item[1]):
            wanted = name.encode("ascii", "replace")
            while more and bytes(cursor.key()) < wanted:
                problems.append(
                    dataset.problem(None, f"extra entry {bytes(cursor.key()).decode('ascii', 'replace')!r}")
                )
                more = cursor.next()
            if more and bytes(cursor.key()) == wanted:
                values[field] = bytes(cursor.value())
                more = cursor.next()
            else:
                problems.append(dataset.problem(int(row["key"]), f"no entry {name}"))
        problems += _check_sample(dataset, row, row_number, values)
        yield done, problems
    extra = []
    while more and bytes(cursor.key()) < last:
        extra.append(dataset.problem(None, f"extra entry {bytes(cursor.key()).decode('ascii', 'replace')!r}"))
        more = cursor.next()
    yield task.stop - task.start, extra


def _check_sample(dataset: _Dataset, row: np.void, row_number: int, values: Mapping[str, bytes]) -> list[Problem]:
    key = int(row["key"])
    problems = []
    for field, value in values.items():
        if len(value) != int(row[f"size_{field}"]) or xxhash.xxh3_64_intdigest(value) != int(row[f"xxh3_{field}"]):
            problems.append(dataset.problem(key, f"the bytes of its {field} are not those that were written"))
            continue
        if field == "class":
            what = _wrong_class(value, int(row["label"]))
        elif field == "json":
            what = _wrong_json(value, dataset, int(row["label"]), row_number)
        elif field == "image":
            what = _wrong_image(value, row) if dataset.deep else None
        else:
            what = None
        if what:
            problems.append(dataset.problem(key, what))
    return problems


def _wrong_class(value: bytes, label: int) -> str | None:
    return None if value == b"%d" % label else f"its cls is {value!r}, its label in the index {label}"


def _wrong_json(value: bytes, dataset: _Dataset, label: int, row_number: int) -> str | None:
    try:
        fields = json.loads(value)
        class_name, name = fields["class"], name_of(fields)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return f"its json must hold class and path; got {error!r}"
    if name != dataset.names.bytes_at(row_number):
        return f"its json says {name!r}, the names file {dataset.names.bytes_at(row_number)!r}"
    # A label outside the classes is reported once, from the index.
    if 0 <= label < len(dataset.manifest.class_names) and class_name != dataset.manifest.class_names[label]:
        return f"its json says class {class_name!r}, its label means {dataset.manifest.class_names[label]!r}"
    return None


def _wrong_image(value: bytes, row: np.void) -> str | None:
    try:
        head = check_image(value, "decode")
    except SampleRejectedError as error:
        return f"its image does not decode: {reason_of(error)}"
    seen = (head.width, head.height, head.orientation, mode_code(head.mode), head.ext)
    held = tuple(int(row[name]) for name in ("width", "height", "orientation", "mode"))
    if seen != (*held, row["ext"].decode("ascii", "replace")):
        return f"its image has (width, height, orientation, mode, extension) {seen}, the index says otherwise"
    return None
