"""Repair: make damaged files of a converted dataset again, from its source, to the byte."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from wellfed.pipeline.errors import DamagedDatasetError, SourceChangedError, UsageError
from wellfed.pipeline.formats import INDEX_NAME, Manifest, open_index
from wellfed.pipeline.formats.names import NAMES_BLOB, NAMES_OFFSETS

from .destination import Destination
from .files import disk_errors, sha256_of, sync_folder, write_file
from .inputs import InputOptions
from .outputs.webdataset import WIDS_NAME, dali_index, index_name, wids_index
from .pack import pack, pack_and_assemble
from .progress import ProgressCallback
from .reindex_task import IN_PLACE
from .rejects import REJECTS_NAME
from .request import Job, Request, prepare
from .selection import SelectionOptions
from .task import tar_name
from .verify import Problem

_REPAIR_NAME = "repair"
_OF_ALL_SHARDS = {INDEX_NAME, NAMES_BLOB, NAMES_OFFSETS, REJECTS_NAME}


def repair(
    dst: str | Path,
    problems: Iterable[Problem],
    *,
    source: str | None = None,
    allow_pickle: bool = False,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> tuple[str, ...]:
    """Make again what verification found to be damaged or lost.

    A file is put in place only when its SHA-256 is the manifest's; until all are, nothing is replaced. DALI's and
    wids' indexes come from the dataset's own index. Everything else needs the source: only the damaged shards are
    packed again, but an LMDB environment, the index, the names and the rejects take all of it. Extra files stay.

    Args:
        dst: the dataset's folder.
        problems: what `verify` found.
        source: where the dataset was converted from, unchanged since.
        allow_pickle: the source holds pickles, and may be unpickled again.
        workers: processes; None for one on each usable core.
        progress: called in this thread, a few times a second.

    Returns:
        Names of the files that were made again; empty where no file differs from the manifest.

    Raises:
        UsageError: no source was given and one is needed, or it cannot be read.
        DamagedDatasetError: the manifest is damaged, or what is made again has other bytes.
        SourceChangedError: the source is not what it was.
        ResourceError: too little disk space.
    """
    directory = Path(dst)
    manifest = Manifest.load(directory)
    wanted = _wanted(manifest)
    damaged = sorted(
        name for name in {problem.file for problem in problems} & set(wanted) if not _is_whole(directory, name, wanted)
    )
    destination = Destination(directory)
    left = destination.work / _REPAIR_NAME
    if not damaged:
        if destination.has_work:
            # Of a repair that was killed when it had put everything into place.
            with destination.locked():
                shutil.rmtree(left, ignore_errors=True)
        return ()
    if manifest.options.get(IN_PLACE):
        raise UsageError(
            "shards that were indexed in place are another tool's, and only what wellfed wrote can be repaired",
            got=", ".join(damaged),
            remedy="Copy the shards again from where they are whole, or run wellfed index --overwrite.",
        )
    with disk_errors(directory), destination.locked():
        shutil.rmtree(left, ignore_errors=True)  # of a repair that was killed
        try:
            made = _derived(directory, manifest, damaged, destination.work / _REPAIR_NAME)
            if made is None:
                made = _from_source(manifest, damaged, destination, source, allow_pickle, workers, progress)
            for name in damaged:
                if name not in made or sha256_of(made[name]) != wanted[name]:
                    raise DamagedDatasetError(
                        f"what is made again must have the SHA-256 that the manifest holds, and {name!r} has not",
                        got="other bytes",
                        remedy=f"Use wellfed {manifest.tool_version}, which wrote it, or convert again.",
                    )
            for name in damaged:
                os.replace(made[name], directory / name)
            sync_folder(directory)
        finally:
            shutil.rmtree(left, ignore_errors=True)
    return tuple(damaged)


def _wanted(manifest: Manifest) -> dict[str, str]:
    return {**manifest.files, **{shard.name: shard.sha256 for shard in manifest.shards}}


def _is_whole(directory: Path, name: str, wanted: dict[str, str]) -> bool:
    try:
        return sha256_of(directory / name) == wanted[name]
    except OSError:
        return False


def _derived(directory: Path, manifest: Manifest, damaged: list[str], folder: Path) -> dict[str, Path] | None:
    """Indexes of other tools, from our own; None where something else is damaged."""
    shards = {index_name(shard.name): number for number, shard in enumerate(manifest.shards)}
    if manifest.kind != "webdataset" or not set(damaged) <= {WIDS_NAME, *shards}:
        return None
    index = open_index(directory / INDEX_NAME, fields=tuple(manifest.members), samples=manifest.samples)
    folder.mkdir(parents=True)
    made = {}
    for name in damaged:
        if name == WIDS_NAME:
            data = wids_index(manifest.shards)
        else:
            start, stop = np.searchsorted(index["shard"], [shards[name], shards[name] + 1])
            data = dali_index(index[start:stop], manifest.members)
        made[name] = folder / name
        write_file(made[name], data)
    return made


def _from_source(
    manifest: Manifest,
    damaged: list[str],
    destination: Destination,
    source: str | None,
    allow_pickle: bool,
    workers: int | None,
    progress: ProgressCallback | None,
) -> dict[str, Path]:
    if source is None:
        raise UsageError(
            "these files can be made again only from the source", got=", ".join(damaged), remedy="Give --source SRC."
        )
    job = _job(manifest, destination, source, allow_pickle, workers)
    numbers = None
    if manifest.kind == "webdataset" and not _OF_ALL_SHARDS & set(damaged):
        numbers = _tasks_of(destination.path, manifest, job, damaged)
        job = _only(job, sorted(numbers.values()))
    job.destination.work.mkdir(parents=True)
    job.destination.begin()
    job.source.save(job.destination.listing)
    job.selection.save(job.destination.listing)
    job.destination.check_space(job.bytes_needed if numbers is None else job.plan.staged_bytes)
    if numbers is None:
        pack_and_assemble(job, progress)
        return job.destination.staged()
    pack(job, progress, None)
    places = {task: place for place, task in enumerate(sorted(numbers.values()))}
    made = {name: job.destination.tasks / tar_name(places[task]) for name, task in numbers.items()}
    made = {name: path for name, path in made.items() if path.is_file()}
    # Their side files may be damaged as well, and need no more than our index, which is whole.
    side = [name for name in damaged if name not in numbers]
    return {**made, **(_derived(destination.path, manifest, side, job.destination.path / "side") or {} if side else {})}


def _job(manifest: Manifest, destination: Destination, source: str, allow_pickle: bool, workers: int | None) -> Job:
    """The conversion that wrote the dataset, into a folder of its own."""
    options = dict(manifest.options)
    given: dict[str, Any] = dict(options.get("input", {}))
    if given.get("allow_pickle") and not allow_pickle:
        raise UsageError(
            "a source of pickles is read again only when that is allowed",
            got=source,
            remedy="Give --allow-pickle if you trust whoever wrote it.",
        )
    split = options.get("split")
    try:
        given = {name: _tuples(value) if isinstance(value, list) else value for name, value in given.items()}
        request = Request(
            src=source,
            dst=destination.work / _REPAIR_NAME,
            output=manifest.kind,
            check=options["check"],
            image=options["image"],
            input=InputOptions(**given),
            selection=SelectionOptions(
                include=tuple(options.get("include", ())),
                exclude=tuple(options.get("exclude", ())),
                split=tuple(split["shares"].items()) if split else (),
                shuffle=options.get("shuffle"),
                limit=options.get("limit"),
            ),
            workers=workers,
            **{name: options[name] for name in ("shard_bytes", "shard_samples") if name in options},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise _not_ours(manifest, f"options {options}") from error
    jobs = {job.plan.part: job for job in prepare(request)}
    job = jobs.get(split["part"] if split else None)
    if job is None or job.plan.options.published(job.plan.part) != manifest.options:
        raise _not_ours(manifest, f"options {options}")
    found = (job.source.kind, job.source.fingerprint, job.selection.found)
    held = tuple(manifest.source.get(name) for name in ("kind", "fingerprint", "found"))
    if found != held:
        raise SourceChangedError(
            "a dataset is repaired only from the very source it was converted from",
            got=f"{source}, a {found[0]} source with {found[2]:,} samples and other names, sizes or labels"
            if found[1] != held[1]
            else f"{source}, a {found[0]} source with {found[2]:,} samples",
            remedy="Restore the source, or convert it again.",
        )
    return job


def _tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(each) if isinstance(each, list) else each for each in value)


def _not_ours(manifest: Manifest, got: str) -> DamagedDatasetError:
    return DamagedDatasetError(
        "only a dataset that this version of wellfed could have converted can be repaired",
        got=f"version {manifest.tool_version}, {got}",
        remedy="Use the version that wrote it, or convert again.",
    )


def _tasks_of(directory: Path, manifest: Manifest, job: Job, damaged: list[str]) -> dict[str, int]:
    """Damaged shards with the task of each: the one that their first sample's planned number lies in."""
    index = open_index(directory / INDEX_NAME, fields=tuple(manifest.members), samples=manifest.samples)
    starts = [start for start, _ in job.plan.tasks]
    numbers = {}
    for number, shard in enumerate(manifest.shards):
        if shard.name in damaged:
            row = int(np.searchsorted(index["shard"], number))
            numbers[shard.name] = int(np.searchsorted(starts, int(index["key"][row]), side="right")) - 1
    return numbers


def _only(job: Job, numbers: list[int]) -> Job:
    """The job with these tasks alone."""
    tasks = tuple(job.plan.tasks[number] for number in numbers)
    share = sum(stop - start for start, stop in tasks)
    return dataclasses.replace(
        job,
        plan=dataclasses.replace(
            job.plan, tasks=tasks, staged_bytes=job.plan.staged_bytes * share // max(1, job.selection.found) + (1 << 20)
        ),
        selection=dataclasses.replace(job.selection, found=share),
        workers=min(job.workers, len(tasks)),
    )
