"""Run a job's shard tasks that are not finished yet, and what follows on them."""

from __future__ import annotations

from typing import Any

from wellfed.pipeline.errors import SampleRejectedError

from .assemble import assemble
from .destination import Destination
from .follow import Following, following
from .pool import Worker, run_tasks
from .progress import ProgressCallback, Tally
from .request import Job
from .task import MOST_THREADS, ShardResult, ShardTask, rejects_name, rows_name, tar_name, write_shard


def pack(
    job: Job, progress: ProgressCallback | None, early: list[Worker] | None, following: Following | None = None
) -> tuple[list[ShardResult], int]:
    """All results in the plan's order, and the number of samples that were found finished.

    Workers are taken from `early` first (see `early_workers`); `following` is told of each result.

    Raises:
        SampleRejectedError: more samples were rejected than may be; finished shards are kept.
    """
    destination = job.destination
    for leftover in destination.tasks.glob("*.tmp"):
        leftover.unlink()
    results: dict[int, ShardResult] = {}
    tally = Tally("pack", job.selection.found, progress)
    waiting: list[ShardTask] = []
    rejected = resumed = 0
    for number, (start, stop) in enumerate(job.plan.tasks):
        result = ShardResult.load(destination.tasks, number)
        if result is None or not _is_whole(destination, result):
            waiting.append(_task(job, number, start, stop))
        else:
            results[number] = result
            resumed += stop - start
            rejected += result.rejected
            tally.finished(number, stop - start, result.rejected)
    _check_rejected(job, rejected)
    if following is not None:
        following.advance(results)
    running: dict[int, int] = {}

    def keep(position: int, result: ShardResult) -> None:
        nonlocal rejected
        task = waiting[position]
        results[task.number] = result
        if following is not None:
            following.advance(results)
        rejected += result.rejected
        running.pop(position, None)
        tally.finished(task.number, task.stop - task.start, result.rejected)
        _check_rejected(job, rejected + sum(running.values()))

    def tell(position: int, value: Any) -> None:
        running[position] = value[1]
        tally.running(waiting[position].number, value[0], value[1])
        _check_rejected(job, rejected + sum(running.values()))

    run_tasks(
        write_shard,
        [(task,) for task in waiting],
        workers=job.workers,
        describe=lambda position, last: _where(waiting[position], last),
        on_result=keep,
        on_progress=tell,
        early=early,
    )
    return [results[number] for number in range(len(job.plan.tasks))], resumed


def pack_and_assemble(job: Job, progress: ProgressCallback | None, early: list[Worker] | None = None) -> int:
    """Everything up to publishing; the number of samples that were found finished."""
    with following(job) as followed:
        results, resumed = pack(job, progress, early, followed)
        assemble(
            job.source,
            job.selection,
            job.plan,
            job.output,
            job.destination,
            results,
            progress,
            followed.follower,
        )
    return resumed


def _task(job: Job, number: int, start: int, stop: int) -> ShardTask:
    return ShardTask(
        kind=job.source.kind,
        source=job.location,
        saved=str(job.destination.listing.absolute()),
        staging=str(job.destination.tasks.absolute()),
        destination=str(job.destination.path),
        number=number,
        start=start,
        stop=stop,
        check=job.plan.options.check,
        image=job.plan.options.image,
        on_error=job.request.on_error,
        use="staged" if job.output.kind == "lmdb" else "published",
        threads=min(job.cores, MOST_THREADS),
    )


def _check_rejected(job: Job, rejected: int) -> None:
    if job.most_rejects is not None and rejected > job.most_rejects:
        raise SampleRejectedError(
            f"at most {job.most_rejects:,} of {job.selection.found:,} samples may be rejected",
            got=f"{rejected:,} rejected so far",
            remedy="Mend the source, or run the same command with a larger --max-rejects: finished shards are kept.",
        )


def _is_whole(destination: Destination, result: ShardResult) -> bool:
    tar = destination.tasks / tar_name(result.number)
    rows = destination.tasks / rows_name(result.number)
    stored = not result.samples or (tar.is_file() and tar.stat().st_size == result.size and rows.is_file())
    return stored and (not result.rejected or (destination.tasks / rejects_name(result.number)).is_file())


def _where(task: ShardTask, last: Any) -> str:
    samples = f"samples {task.start} to {task.stop - 1}"
    return f"{samples}, at or soon after {last[2]!r}" if last else samples
