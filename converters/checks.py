"""The checks of `verify` on a whole dataset: files, index, side files, and the shards in worker processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from wellfed.pipeline.errors import DamagedDatasetError, UsageError
from wellfed.pipeline.formats import INDEX_NAME, Manifest, open_index
from wellfed.pipeline.formats.manifest import MANIFEST_NAME
from wellfed.pipeline.formats.names import NAMES_BLOB, NAMES_OFFSETS, open_names
from wellfed.pipeline.hardware import usable_cores

from .destination import WORK_NAME
from .files import sha256_of
from .indexed_checks import dali_lines, is_in_place
from .outputs.webdataset import WIDS_NAME, dali_index, index_name, wids_index
from .pool import run_tasks
from .progress import ProgressCallback, Tally
from .rejects import REJECTS_NAME, load_rejects
from .shard_checks import ShardCheck, check_shard, wrong_file
from .verify import Problem, VerifyReport

_LMDB_ROWS = 20_000
"""Rows of an LMDB environment that one task checks."""


def check_dataset(
    directory: Path, *, deep: bool, workers: int | None, progress: ProgressCallback | None
) -> VerifyReport:
    """See `verify.verify`."""
    started = time.perf_counter()
    if workers is not None and workers < 1:
        raise UsageError("there must be at least 1 worker", got=workers, remedy="Leave it out for one a core.")
    _require_dataset(directory)
    try:
        manifest = Manifest.load(directory)
    except DamagedDatasetError as error:
        problem = Problem(file=MANIFEST_NAME, key=None, what=_words(error))
        return VerifyReport(
            dataset=str(directory),
            kind="unknown",
            samples=0,
            checked=0,
            deep=deep,
            problems=(problem,),
            seconds=time.perf_counter() - started,
        )
    problems = [*_check_listing(directory, manifest), *_check_files(directory, manifest)]
    checked = 0
    try:
        index = open_index(directory / INDEX_NAME, fields=tuple(manifest.members), samples=manifest.samples)
        open_names(directory, manifest.samples)
    except DamagedDatasetError as error:
        problems.append(Problem(file=INDEX_NAME, key=None, what=f"{_words(error)} (its samples were not compared)"))
        problems += _check_shard_files(directory, manifest)
    else:
        problems += _check_index(index, manifest)
        if manifest.kind == "webdataset":
            problems += _check_side_indexes(directory, manifest, index)
        problems += _check_rejects(directory, manifest, index)
        tasks = _tasks(directory, manifest, index, deep)
        tally = Tally("check", manifest.samples, progress)
        checked = _check_shards(tasks, workers or max(1, int(usable_cores().value or 1)), tally, problems)
    return VerifyReport(
        dataset=str(directory),
        kind=manifest.kind,
        samples=manifest.samples,
        checked=checked,
        deep=deep,
        problems=tuple(sorted(problems, key=lambda each: (each.file, -1 if each.key is None else each.key, each.what))),
        seconds=time.perf_counter() - started,
    )


def _require_dataset(directory: Path) -> None:
    if (directory / MANIFEST_NAME).is_file():
        return
    remedy = "Give the folder that wellfed convert wrote."
    if (directory / WORK_NAME).is_dir():
        remedy = "A conversion into it has not ended: run the same convert command again."
    raise UsageError(
        f"a converted dataset is a folder with {MANIFEST_NAME}", got=f"{directory}, which has none", remedy=remedy
    )


def _words(error: DamagedDatasetError) -> str:
    return f"{error.rule}; got {error.got}" if error.got is not None else error.rule


def _expected_names(manifest: Manifest) -> set[str]:
    return {MANIFEST_NAME, *manifest.files, *(shard.name for shard in manifest.shards)}


def _check_listing(directory: Path, manifest: Manifest) -> Iterator[Problem]:
    present = set(os.listdir(directory))
    for name in sorted(_expected_names(manifest) - present):
        yield Problem(file=name, key=None, what="the file is missing")
    # Tars that were indexed where they lie may have files of others beside them.
    extra = set() if is_in_place(manifest) else present - _expected_names(manifest)
    for name in sorted(extra):
        what = "an unfinished conversion" if name == WORK_NAME else "extra: the manifest does not list it"
        yield Problem(file=name, key=None, what=what)
    needed = {INDEX_NAME, NAMES_BLOB, NAMES_OFFSETS, REJECTS_NAME}
    if manifest.kind == "webdataset" and not is_in_place(manifest):
        needed |= {WIDS_NAME, *(index_name(shard.name) for shard in manifest.shards)}
    for name in sorted(needed - set(manifest.files)):
        yield Problem(file=MANIFEST_NAME, key=None, what=f"it must list {name}")


def _check_files(directory: Path, manifest: Manifest) -> Iterator[Problem]:
    for name, digest in sorted(manifest.files.items()):
        try:
            found = sha256_of(directory / name)
        except FileNotFoundError:
            continue  # reported by the listing
        except OSError as error:
            yield Problem(file=name, key=None, what=f"it cannot be read: {error.strerror}")
            continue
        if found != digest:
            yield Problem(file=name, key=None, what="its SHA-256 is not the manifest's")


def _check_shard_files(directory: Path, manifest: Manifest) -> Iterator[Problem]:
    """Sizes and SHA-256 alone: without an index nothing says where a sample lies."""
    for shard in manifest.shards:
        try:
            if what := wrong_file(directory / shard.name, shard):
                yield Problem(file=shard.name, key=None, what=what)
        except FileNotFoundError:
            continue  # reported by the listing
        except OSError as error:
            yield Problem(file=shard.name, key=None, what=f"it cannot be read: {error.strerror}")


def _check_index(index: np.ndarray, manifest: Manifest) -> Iterator[Problem]:
    counts = np.bincount(np.minimum(index["shard"], len(manifest.shards)), minlength=len(manifest.shards))
    for number, shard in enumerate(manifest.shards):
        if int(counts[number]) != shard.samples:
            what = f"{int(counts[number])} rows for {shard.name}, where the manifest says {shard.samples}"
            yield Problem(file=INDEX_NAME, key=None, what=what)
    if bool(np.any(np.diff(index["shard"].astype(np.int64)) < 0)):
        yield Problem(file=INDEX_NAME, key=None, what="its rows must lie in the order of the shards")
    found = manifest.source.get("found")
    if isinstance(found, int) and len(index) and int(index["key"][-1]) >= found:
        what = f"its keys must be planned numbers below {found}; got {int(index['key'][-1])}"
        yield Problem(file=INDEX_NAME, key=None, what=what)
    outside = (index["label"] < 0) | (index["label"] >= len(manifest.class_names))
    for row in np.flatnonzero(outside):
        what = f"label {int(index['label'][row])} of {len(manifest.class_names)} classes"
        yield Problem(file=INDEX_NAME, key=int(index["key"][row]), what=what)


def _check_side_indexes(directory: Path, manifest: Manifest, index: np.ndarray) -> Iterator[Problem]:
    names = open_names(directory, manifest.samples)
    starts = np.searchsorted(index["shard"], np.arange(len(manifest.shards) + 1))
    for number, shard in enumerate(manifest.shards):
        rows = index[starts[number] : starts[number + 1]]
        name = index_name(shard.name)
        if name not in manifest.files:
            continue  # reported by the listing where it must be there; another tool's is not ours to check
        try:
            lines = (directory / name).read_bytes().split(b"\n")
        except FileNotFoundError:
            continue  # reported by the listing
        if is_in_place(manifest):
            expected = dali_lines(manifest, names, index, number)
        else:
            expected = dali_index(rows, manifest.members).split(b"\n")
        if lines[0] != expected[0]:
            what = f"its first line must be {expected[0].decode()!r}; got {lines[0].decode('ascii', 'replace')!r}"
            yield Problem(file=name, key=None, what=what)
        if len(lines) != len(expected):
            yield Problem(file=name, key=None, what=f"it must have {len(rows)} samples; got {len(lines) - 2} lines")
        for line, wanted, row in zip(lines[1:], expected[1:], rows, strict=False):
            if line != wanted:
                right, there = wanted.decode("ascii", "replace"), line.decode("ascii", "replace")
                what = f"its line must be {right!r}; got {there!r}"
                yield Problem(file=name, key=int(row["key"]), what=what)
    if WIDS_NAME not in manifest.files:
        return  # reported by the listing where it must be there
    try:
        found = json.loads((directory / WIDS_NAME).read_bytes())
    except FileNotFoundError:
        return  # reported by the listing
    except (ValueError, RecursionError) as error:
        yield Problem(file=WIDS_NAME, key=None, what=f"it must be JSON; got {error}")
        return
    if found != json.loads(wids_index(manifest.shards)):
        yield Problem(file=WIDS_NAME, key=None, what="its shards must be the manifest's")


def _check_rejects(directory: Path, manifest: Manifest, index: np.ndarray) -> Iterator[Problem]:
    found, rejected = manifest.source.get("found"), manifest.source.get("rejected")
    if not isinstance(found, int) or not isinstance(rejected, int) or manifest.samples + rejected != found:
        what = f"stored and rejected must add up to found; got {manifest.samples}, {rejected}, {found}"
        yield Problem(file=MANIFEST_NAME, key=None, what=what)
        return
    try:
        rejects = load_rejects(directory / REJECTS_NAME)
    except FileNotFoundError:
        return  # reported by the listing
    except DamagedDatasetError as error:
        yield Problem(file=REJECTS_NAME, key=None, what=_words(error))
        return
    keys = [reject.key for reject in rejects]
    if len(keys) != rejected:
        yield Problem(file=REJECTS_NAME, key=None, what=f"it must list {rejected} samples; got {len(keys)}")
    stored = np.isin(np.array(keys, dtype=np.int64), index["key"].astype(np.int64))
    for key, is_stored in zip(keys, stored, strict=True):
        if is_stored or not 0 <= key < found:
            yield Problem(file=REJECTS_NAME, key=key, what="stored as well, or not a planned number")


def _tasks(directory: Path, manifest: Manifest, index: np.ndarray, deep: bool) -> list[ShardCheck]:
    tasks = []
    starts = np.searchsorted(index["shard"], np.arange(len(manifest.shards) + 1))
    for number, shard in enumerate(manifest.shards):
        start, stop = int(starts[number]), int(starts[number + 1])
        if not (directory / shard.name).is_file():
            continue  # reported by the listing
        # Rows that are out of order were reported, and are checked as far as they are in order.
        stop = max(start, stop)
        step = _LMDB_ROWS if manifest.kind == "lmdb" else max(1, stop - start)
        for first in range(start, max(stop, start + 1), step):
            tasks.append(
                ShardCheck(
                    directory=str(directory.absolute()),
                    shard=number,
                    start=first,
                    stop=min(first + step, stop),
                    first=first == start,
                    deep=deep,
                )
            )
    return tasks


def _check_shards(tasks: list[ShardCheck], workers: int, tally: Tally, problems: list[Problem]) -> int:
    """Run the tasks; appends what they find and returns the number of samples compared."""
    checked = 0

    def keep(position: int, found: list[Problem]) -> None:
        nonlocal checked
        rows = tasks[position].stop - tasks[position].start
        checked += rows
        problems.extend(found)
        tally.finished(position, rows, len(found))

    def crashed(position: int, how: str) -> None:
        task = tasks[position]
        name = Manifest.load(Path(task.directory)).shards[task.shard].name
        what = f"reading rows {task.start} to {task.stop - 1} ended the process ({how})"
        problems.append(Problem(file=name, key=None, what=what))
        tally.finished(position, task.stop - task.start, 1)

    run_tasks(
        check_shard,
        [(task,) for task in tasks],
        workers=workers,
        attempts=1,
        describe=lambda position, last: str(tasks[position]),
        on_result=keep,
        on_progress=lambda position, value: tally.running(position, value[0], value[1]),
        on_death=crashed,
    )
    return checked
