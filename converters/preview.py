"""What a conversion would do, with an estimate of its time from a few samples; nothing is written."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wellfed.pipeline.errors import SampleRejectedError

from .files import disk_errors
from .plan import UNKNOWN_BYTES
from .request import Job, Request, facts_of, prepare
from .run import refuse_existing
from .task import MOST_THREADS, decodes

_SAMPLES, _SECONDS = 64, 2.0
"""The estimate reads at most this many samples of each part, for about this long."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a conversion would do; sizes are planned ones.

    Attributes:
        found: samples that would be converted; refused: those that listing already found unusable.
        classes: of the class list.
        shards: data files.
        bytes: the most disk space in use while converting; result_bytes: size of the result. Of changed images both are
            judged by those that were read.
        class_counts: planned samples of each class, in the order of the labels; refused ones without a class in none.
        seconds: expected wall time; None where no sample could be read.
        sampled: samples that were read for it; sample_rejected: those that would be rejected.
        parts: of a split, by name.
    """

    found: int
    refused: int
    classes: int
    shards: int
    bytes: int
    result_bytes: int
    class_counts: Mapping[str, int]
    seconds: float | None
    sampled: int
    sample_rejected: int
    skipped: Mapping[str, int]
    notes: Mapping[str, int]
    parts: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return asdict(self)


def preview(request: Request) -> Preview:
    """See `Preview`; raises what `convert` would raise before its start."""
    with disk_errors(Path(request.dst)):
        jobs = prepare(request)
        refuse_existing(jobs)
        for job in jobs:
            job.destination.check_space(sum(each.bytes_needed for each in jobs))
    source = jobs[0].source
    counts = sum((_class_counts(job) for job in jobs), np.zeros(len(source.class_names), np.int64))
    estimates = [_estimate(job) for job in jobs]
    seconds = [each.seconds for each in estimates if each.seconds is not None]
    return Preview(
        found=sum(job.selection.found for job in jobs),
        refused=sum(_refused(job) for job in jobs),
        classes=len(source.class_names),
        shards=sum(len(job.plan.tasks) if request.output == "webdataset" else 1 for job in jobs),
        bytes=sum(int(job.bytes_needed * each.size_ratio) for job, each in zip(jobs, estimates, strict=True)),
        result_bytes=sum(int(job.result_bytes * each.size_ratio) for job, each in zip(jobs, estimates, strict=True)),
        class_counts=dict(zip(source.class_names, counts.tolist(), strict=True)),
        seconds=sum(seconds) if len(seconds) == len(jobs) else None,
        sampled=sum(each.read for each in estimates),
        sample_rejected=sum(each.rejected for each in estimates),
        **facts_of(source, jobs[0].selection),
        parts={job.plan.part: job.selection.found for job in jobs if job.plan.part is not None},
    )


def _class_counts(job: Job) -> np.ndarray:
    labels = job.selection.of(job.source.labels, 0, job.selection.found)
    return np.bincount(labels[labels >= 0], minlength=len(job.source.class_names))


def _refused(job: Job) -> int:
    refused = job.source.refused
    if job.selection.order is None:
        return len(refused)
    return int(np.count_nonzero(np.isin(job.selection.order, np.fromiter(refused, np.int64, len(refused)))))


class _Estimate(NamedTuple):
    """seconds: for the whole part, None where nothing could be read. size_ratio: bytes made to bytes planned."""

    seconds: float | None
    read: int
    rejected: int
    size_ratio: float


def _estimate(job: Job) -> _Estimate:
    """Judged by samples read from all over the part."""
    found, options = job.selection.found, job.plan.options
    started = time.perf_counter()
    read = rejected = made = 0
    rows: list[int] = []
    for number in np.unique(np.linspace(0, found - 1, min(found, _SAMPLES)).astype(np.int64)).tolist():
        row = job.selection.row(number)
        read += 1
        try:
            if row in job.source.refused:
                raise SampleRejectedError(job.source.refused[row])
            image = job.source.read(row).image
            if image is not None:
                made += len(options.image.apply(image, options.check).data)
                rows.append(row)
        except SampleRejectedError:
            rejected += 1
        if time.perf_counter() - started > _SECONDS:
            break
    if rejected == read:
        return _Estimate(None, read, rejected, 1.0)
    ratio = 1.0
    if options.image.kind != "keep" and rows:
        sizes = np.array([job.source.sizes[row] or UNKNOWN_BYTES for row in rows], np.int64)
        options.image.plan(sizes)
        ratio = made / int(sizes.sum())
    # A worker's threads decode beside each other, so few shards keep all cores busy too.
    beside = min(job.cores, job.workers * MOST_THREADS) if decodes(options.image, options.check) else job.workers
    return _Estimate((time.perf_counter() - started) / read * found / beside, read, rejected, ratio)
