"""Convert: plan, pack in local processes, publish; killed at any moment, it continues where it was."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from wellfed.pipeline import __version__
from wellfed.pipeline.errors import SampleRejectedError, SourceChangedError, UsageError
from wellfed.pipeline.formats import Manifest, index_dtype
from wellfed.pipeline.hardware import usable_cores

from .assemble import assemble
from .destination import Destination
from .files import disk_errors
from .inputs import Input, list_input
from .outputs import Output, open_output
from .plan import CheckName, OutputName, Plan, PlanOptions, make_plan
from .pool import run_tasks
from .progress import ProgressCallback, Tally
from .task import FIELDS, ShardResult, ShardTask, rows_name, tar_name, write_shard

DEFAULT_SHARD_BYTES = 256_000_000

OnRejected = Literal["reject", "fail"]


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
        fingerprint: the dataset's identity.
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

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a conversion would do; sizes are planned ones.

    Attributes:
        found: samples found; refused: those that listing already found unusable.
        shards: data files; bytes: space needed while converting.
    """

    found: int
    refused: int
    classes: int
    shards: int
    bytes: int
    skipped: Mapping[str, int]
    notes: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A conversion after its arguments were checked and its input listed."""

    source_path: Path
    source: Input
    plan: Plan
    output: Output
    destination: Destination
    workers: int
    on_error: OnRejected
    progress: ProgressCallback | None

    @property
    def bytes_needed(self) -> int:
        names = sum(len(self.source.name(row)) for row in range(min(len(self.source), 1000)))
        row_bytes = 2 * index_dtype(FIELDS).itemsize + names // min(len(self.source), 1000)
        beyond = self.output.bytes_beyond_tars(self.source.sizes)
        return self.plan.staged_bytes + beyond + len(self.source) * row_bytes + (1 << 20)


def convert(
    src: str | Path,
    dst: str | Path,
    *,
    output: OutputName,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    workers: int | None = None,
    check: CheckName = "decode",
    on_error: OnRejected = "reject",
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> ConversionResult:
    """Repack an image folder (ROOT/CLASS/IMAGE) into shards that read fast.

    Equal files and options give equal bytes, whatever the machine, the number of workers, and however often the run
    was killed and started again. Each sample found is stored or listed with its reason in `rejects.jsonl`.

    Args:
        src: the folder.
        dst: a folder that is missing, empty, or holds an unfinished conversion of the same source and options.
        output: "webdataset" or "lmdb".
        shard_bytes: largest size of a tar; of the staged tars for LMDB.
        workers: processes; None for one on each usable core.
        check: "decode" decodes each image once and so finds all damage; "header" reads only headers.
        on_error: "fail" stops at the first sample that cannot be stored.
        overwrite: replace a dataset of wellfed's, or an unfinished conversion of something else. The old dataset
            stays whole until the new one is ready.
        progress: called in this thread, a few times a second.

    Raises:
        UsageError: a wrong argument; a source without images; a destination that is not ours or is in use.
        SourceChangedError: the source is not the one that the unfinished conversion was planned from.
        ResourceError: too little disk space; finished shards are kept and the same call continues.
        SampleRejectedError: with on_error "fail".
        WorkerError: a worker process died again and again at one file.
    """
    started = time.perf_counter()
    with disk_errors(Path(dst)):
        job = _prepare(src, dst, output, shard_bytes, workers, check, on_error, progress)
        resumed = _convert(job, overwrite)
        manifest = Manifest.load(job.destination.path)
    return ConversionResult(
        destination=str(dst),
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


def _convert(job: _Job, overwrite: bool) -> int:
    """Do what is left to do; the number of samples that an earlier run had finished."""
    destination = job.destination
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
                destination.write_plan(job.plan.to_dict())
            destination.check_space(job.bytes_needed)
            results, resumed = _pack(job)
            assemble(job.source, job.plan, job.output, job.destination, results, job.progress)
        if destination.publishing:
            destination.publish()
        destination.clean()
    return resumed


def preview(src: str | Path, dst: str | Path, *, output: OutputName, shard_bytes: int = DEFAULT_SHARD_BYTES) -> Preview:
    """What `convert` would do, without writing anything; raises what it would raise before its start."""
    with disk_errors(Path(dst)):
        job = _prepare(src, dst, output, shard_bytes, None, "decode", "reject", None)
        job.destination.check_space(job.bytes_needed)
    return Preview(
        found=len(job.source),
        refused=len(job.source.refused),
        classes=len(job.source.class_names),
        shards=len(job.plan.tasks) if output == "webdataset" else 1,
        bytes=job.bytes_needed,
        skipped=job.source.skipped,
        notes=job.source.notes,
    )


def _prepare(
    src: str | Path,
    dst: str | Path,
    output: OutputName,
    shard_bytes: int,
    workers: int | None,
    check: CheckName,
    on_error: OnRejected,
    progress: ProgressCallback | None,
) -> _Job:
    for name, value, choices in (
        ("output", output, get_args(OutputName)),
        ("check", check, get_args(CheckName)),
        ("on_error", on_error, get_args(OnRejected)),
    ):
        if value not in choices:
            raise UsageError(f"{name} must be one of {', '.join(choices)}", got=value, remedy="Choose one of those.")
    if workers is not None and workers < 1:
        raise UsageError("there must be at least 1 worker", got=workers, remedy="Leave it out for one a core.")
    source_path, destination = Path(src), Destination(Path(dst))
    inside, outside = source_path.resolve(), destination.path.resolve()
    if inside == outside or inside in outside.parents or outside in inside.parents:
        raise UsageError(
            "source and destination must not lie inside each other",
            got=f"{source_path} and {destination.path}",
            remedy="Give a destination elsewhere.",
        )
    destination.check_ours()
    source = list_input(source_path)
    options = PlanOptions(output=output, shard_bytes=shard_bytes, check=check)
    plan = make_plan(source, options, tool_version=__version__)
    if on_error == "fail" and source.refused:
        row = min(source.refused)
        raise _unusable(source, row)
    cores = workers or max(1, int(usable_cores().value or 1))
    return _Job(
        source_path=source_path,
        source=source,
        plan=plan,
        output=open_output(output),
        destination=destination,
        workers=min(cores, len(plan.tasks)),
        on_error=on_error,
        progress=progress,
    )


def _unusable(source: Input, row: int) -> SampleRejectedError:
    return SampleRejectedError(
        f"every sample must be storable, and {source.name(row).decode('utf-8', 'backslashreplace')!r} is not",
        got=source.refused[row],
        remedy="Mend or remove the file, or let such files be rejected (--on-error reject).",
    )


def _exists(destination: Destination) -> UsageError:
    return UsageError(
        "the destination must not hold a dataset already",
        got=str(destination.path),
        remedy="Give another path, or --overwrite to replace it.",
    )


def _continues(job: _Job, overwrite: bool) -> bool:
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
        got=f"{job.source_path}, which is not as it was when {where} was begun",
        remedy="Restore the source, or use --overwrite to begin again.",
    )


def _is_result(job: _Job) -> bool:
    manifest = Manifest.load(job.destination.path)
    return (
        manifest.kind == job.output.kind
        and manifest.options == job.plan.options.published()
        and manifest.source["fingerprint"] == job.source.fingerprint
        and manifest.tool_version == __version__
    )


def _pack(job: _Job) -> tuple[list[ShardResult], int]:
    """Run the tasks that are not finished yet; all results in the plan's order, and the samples found finished."""
    destination = job.destination
    for leftover in destination.tasks.glob("*.tmp"):
        leftover.unlink()
    results: dict[int, ShardResult] = {}
    tally = Tally("pack", len(job.source), job.progress)
    waiting: list[ShardTask] = []
    for number, (start, stop) in enumerate(job.plan.tasks):
        result = ShardResult.load(destination.tasks, number)
        if result is None or not _is_whole(destination, result):
            waiting.append(
                ShardTask(
                    source=str(job.source_path.absolute()),
                    saved=str(destination.listing.absolute()),
                    staging=str(destination.tasks.absolute()),
                    destination=str(destination.path),
                    number=number,
                    start=start,
                    stop=stop,
                    check=job.plan.options.check,
                    on_error=job.on_error,
                )
            )
        else:
            results[number] = result
            tally.finished(number, stop - start, len(result.rejects))
    resumed = sum(stop - start for number, (start, stop) in enumerate(job.plan.tasks) if number in results)

    def keep(position: int, result: ShardResult) -> None:
        task = waiting[position]
        results[task.number] = result
        tally.finished(task.number, task.stop - task.start, len(result.rejects))

    run_tasks(
        write_shard,
        [(task,) for task in waiting],
        workers=job.workers,
        describe=lambda position, last: _where(waiting[position], last),
        on_result=keep,
        on_progress=lambda position, value: tally.running(waiting[position].number, value[0], value[1]),
    )
    return [results[number] for number in range(len(job.plan.tasks))], resumed


def _is_whole(destination: Destination, result: ShardResult) -> bool:
    tar = destination.tasks / tar_name(result.number)
    rows = destination.tasks / rows_name(result.number)
    return not result.samples or (tar.is_file() and tar.stat().st_size == result.size and rows.is_file())


def _where(task: ShardTask, last: Any) -> str:
    rows = f"samples {task.start} to {task.stop - 1}"
    return f"{rows}, at or soon after {last[2]!r}" if last else rows
