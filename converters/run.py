"""Convert: plan, pack in local processes, publish; killed at any moment, it continues where it was."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from wellfed.pipeline import __version__
from wellfed.pipeline.errors import SourceChangedError, UsageError
from wellfed.pipeline.formats import Manifest

from .assemble import check_any_stored
from .destination import Destination
from .files import disk_errors
from .inputs import InputOptions
from .notebook import or_drawn
from .pack import pack, pack_and_assemble
from .plan import CheckName, OutputName
from .pool import Worker, early_workers, keep_needed
from .progress import ProgressCallback
from .request import DEFAULT_SHARD_BYTES, Job, OnRejected, Request, prepare
from .selection import SelectionOptions
from .task import ShardResult, write_shard

_EARLY_WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class ConversionResult:
    """What a conversion did.

    Attributes:
        destination: folder, as given.
        kind: "webdataset" or "lmdb".
        stored, rejected, found: samples; stored + rejected = found.
        shards: data files.
        bytes: their size.
        seconds: wall time of this run.
        workers: processes used.
        resumed: samples that an earlier, killed run had already dealt with.
        skipped: entries of the input that are no samples, by kind.
        notes: remarks on samples and on the input, counted.
        fingerprint: the dataset's identity; empty for a split, whose parts each have one.
        parts: of a split, by name; the other figures are their sums.
    """

    destination: str
    kind: str
    stored: int
    rejected: int
    found: int
    shards: int
    bytes: int
    seconds: float
    workers: int
    resumed: int
    skipped: Mapping[str, int]
    notes: Mapping[str, int]
    fingerprint: str
    parts: Mapping[str, ConversionResult] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return asdict(self)


def convert(
    src: str | Path,
    dst: str | Path,
    *,
    output: OutputName,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    shard_samples: int | None = None,
    workers: int | None = None,
    check: CheckName = "decode",
    image: str = "keep",
    on_error: OnRejected = "reject",
    max_rejects: int | str | None = None,
    input: InputOptions | None = None,
    selection: SelectionOptions | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> ConversionResult:
    """Repack images with their labels into shards that read fast.

    Equal sources and options give equal bytes, whatever the machine, the number of workers, and however often the run
    was killed and started again. Each sample found is stored or listed with its reason in `rejects.jsonl`.

    Args:
        src: a folder, or whatever else `input` says.
        dst: a folder that is missing, empty, or holds an unfinished conversion of the same source and options.
        output: "webdataset" or "lmdb".
        shard_bytes: largest size of a tar; of the staged tars for LMDB.
        shard_samples: samples found for each tar, in place of a size.
        workers: processes; None for one on each usable core.
        check: "decode" decodes each image once and so finds all damage; "header" reads only headers.
        image: "keep" stores the source's bytes; "baseline" rewrites JPEGs as baseline without loss; "resize:N" or
            "resize:N@QUALITY" stores larger images as JPEGs with a shorter side of N pixels.
        on_error: "fail" stops at the first sample that cannot be stored.
        max_rejects: more rejected samples than this, or than "P%" of those found, end the run.
        input: how the source is to be read.
        selection: which samples, in which order, and split into which datasets, each in a folder in `dst`.
        overwrite: replace a dataset of wellfed's, or an unfinished conversion of something else. The old dataset
            stays whole until the new one is ready.
        progress: called in this thread, a few times a second; None draws a bar in a notebook, and nothing elsewhere.

    Raises:
        UsageError: a wrong argument; a source without images; a destination that is not ours or is in use.
        SourceChangedError: the source is not the one that the unfinished conversion was planned from.
        ResourceError: too little disk space; finished shards are kept and the same call continues.
        SampleRejectedError: with on_error "fail", or more rejects than max_rejects.
        WorkerError: a worker process died again and again at one file.
    """
    request = Request(
        src=str(src),
        dst=dst,
        output=output,
        shard_bytes=shard_bytes,
        shard_samples=shard_samples,
        check=check,
        image=image,
        input=input or InputOptions(),
        selection=selection or SelectionOptions(),
        workers=workers,
        on_error=on_error,
        max_rejects=max_rejects,
        overwrite=overwrite,
    )
    return run(request, progress=or_drawn(progress))


def run(request: Request, *, progress: ProgressCallback | None = None) -> ConversionResult:
    """Do what was asked for; see `convert`."""
    started = time.perf_counter()
    # They load what they need while the source is listed. More than a few would often turn out to have no task.
    ready = min(_EARLY_WORKERS, request.cores)
    with disk_errors(Path(request.dst)), early_workers(write_shard, ready) as early:
        jobs = prepare(request)
        # A run that was killed between two parts finds the first of them done.
        done = [len(jobs) > 1 and not request.overwrite and _is_done(job) for job in jobs]
        if all(done):
            done = [False] * len(jobs)
        left = [job for job, finished in zip(jobs, done, strict=True) if not finished]
        keep_needed(early, sum(job.workers for job in left))
        if len(jobs) > 1:
            packed = _pack_parts(left, progress, early)
            for job in left:
                _convert(job, progress, early)
        else:
            packed = {job.plan.part: _convert(job, progress, early) for job in left}
        results = {job.plan.part: _result(job, packed.get(job.plan.part, job.selection.found), started) for job in jobs}
    if None in results:
        return results[None]
    return _sum(request, {str(part): result for part, result in results.items()}, time.perf_counter() - started)


def _result(job: Job, resumed: int, started: float) -> ConversionResult:
    manifest = Manifest.load(job.destination.path)
    return ConversionResult(
        destination=str(job.destination.path),
        kind=manifest.kind,
        stored=manifest.samples,
        rejected=manifest.source["rejected"],
        found=manifest.source["found"],
        shards=len(manifest.shards),
        bytes=sum(shard.size for shard in manifest.shards),
        seconds=time.perf_counter() - started,
        workers=job.workers,
        resumed=resumed,
        skipped=manifest.source["skipped"],
        notes=manifest.notes,
        fingerprint=manifest.fingerprint,
    )


def _sum(request: Request, parts: Mapping[str, ConversionResult], seconds: float) -> ConversionResult:
    results = list(parts.values())
    notes: Counter[str] = Counter()
    for result in results:
        notes.update(result.notes)
    return ConversionResult(
        destination=str(request.dst),
        kind=results[0].kind,
        seconds=seconds,
        workers=max(result.workers for result in results),
        skipped=results[0].skipped,
        notes=dict(notes),
        fingerprint="",
        parts=parts,
        **{
            name: sum(getattr(result, name) for result in results)
            for name in ("stored", "rejected", "found", "shards", "bytes", "resumed")
        },
    )


def _pack_parts(jobs: list[Job], progress: ProgressCallback | None, early: list[Worker]) -> dict[str | None, int]:
    """Pack the parts of a split before any of them is published: none is, where one of them cannot be.

    Returns:
        The number of samples of each part that an earlier run had finished.

    Raises:
        UsageError: every sample of a part was rejected; nothing is left of any part's work.
    """
    fresh = [job for job in jobs if not job.destination.has_work]
    if fresh and not jobs[0].request.overwrite:
        fresh[0].destination.check_space(sum(job.bytes_needed for job in fresh))
    root = Path(jobs[0].request.dst)
    made = [path for path in (*(job.destination.path for job in jobs), root) if not path.exists()]
    resumed = {job.plan.part: _convert(job, progress, early, until="packed") for job in jobs}
    try:
        for job in jobs:
            packed = [ShardResult.load(job.destination.tasks, number) for number in range(len(job.plan.tasks))]
            # Nothing where an earlier run has published the part and was killed before the end.
            if results := [result for result in packed if result is not None]:
                check_any_stored(job.plan.part, job.destination, results)
    except UsageError:
        for job in jobs:
            with job.destination.locked():
                job.destination.clean()
        for path in made:
            path.rmdir()
        raise
    return resumed


def _convert(
    job: Job,
    progress: ProgressCallback | None,
    early: list[Worker],
    until: Literal["packed", "published"] = "published",
) -> int:
    """Do what is left to do; the number of samples that an earlier run had finished."""
    destination, overwrite = job.destination, job.request.overwrite
    interrupted = destination.has_work
    if destination.has_dataset and not interrupted and not overwrite:
        raise _exists(destination)
    if not interrupted:
        destination.check_space(job.bytes_needed)
    resumed = 0
    with destination.locked():
        destination.check_ours()
        continues = _continues(job, overwrite)
        if not continues and destination.has_dataset and not overwrite:
            # Killed while it removed the last of its work folder, or another run has ended since we looked.
            if not (interrupted and _is_result(job)):
                raise _exists(destination)
        elif not (continues and destination.publishing):
            if not continues:
                destination.begin()
                job.source.save(destination.listing)
                job.selection.save(destination.listing)
                destination.write_plan(job.plan.to_dict())
            destination.check_space(job.bytes_needed)
            if until == "packed":
                return pack(job, progress, early)[1]
            resumed = pack_and_assemble(job, progress, early)
        if until == "packed":
            return resumed
        if destination.publishing:
            destination.publish()
        destination.clean()
    return resumed


def refuse_existing(jobs: Sequence[Job]) -> None:
    """Raise UsageError where every job would meet a finished dataset that it may not replace."""
    held = [job.destination for job in jobs if job.destination.has_dataset and not job.destination.has_work]
    if len(held) == len(jobs) and not jobs[0].request.overwrite:
        raise _exists(held[0])


def _exists(destination: Destination) -> UsageError:
    return UsageError(
        "the destination must not hold a dataset already",
        got=str(destination.path),
        remedy="Give another path, or --overwrite to replace it.",
    )


def _continues(job: Job, overwrite: bool) -> bool:
    """Whether the work folder holds this very conversion; raises where it holds another and that must not be lost."""
    found = job.destination.read_plan()
    if found is None:
        return False
    if found["fingerprint"] == job.plan.fingerprint and found["state"] == job.plan.state:
        return True
    if overwrite:
        return False
    where = str(job.destination.path)
    if found["fingerprint"] != job.plan.fingerprint:
        raise UsageError(
            "an unfinished conversion continues only with its own options and version of wellfed",
            got=f"{where}, begun with others",
            remedy="Use the options it was begun with, or --overwrite to begin again.",
        )
    raise SourceChangedError(
        "the source must not change before an unfinished conversion continues",
        got=f"{job.location}, which is not as it was when {where} was begun",
        remedy="Restore the source, or use --overwrite to begin again.",
    )


def _is_done(job: Job) -> bool:
    return job.destination.has_dataset and not job.destination.has_work and _is_result(job)


def _is_result(job: Job) -> bool:
    manifest = Manifest.load(job.destination.path)
    return (
        manifest.kind == job.output.kind
        and manifest.options == job.plan.options.published(job.plan.part)
        and manifest.source["fingerprint"] == job.source.fingerprint
        and manifest.tool_version == __version__
    )
