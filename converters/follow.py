"""Hands the output each packed part, in the plan's order, as soon as it and all before it are packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from wellfed.pipeline.errors import SampleRejectedError, SourceChangedError

from .inputs import Input, open_saved
from .layout import Layout
from .outputs import Follower, Part
from .plan import planned_sizes
from .selection import load_order
from .task import ShardResult, rows_name, tar_name

if TYPE_CHECKING:
    from .destination import Destination
    from .request import Job


class Following:
    """Where a job's output stands.

    Attributes:
        follower: what the parts are handed to.
    """

    def __init__(self, job: Job, follower: Follower) -> None:
        self.follower = follower
        self._destination = job.destination
        self._layout = Layout.of(job.source.fields)
        self._next = 0

    @property
    def behind(self) -> int:
        """Parts that wait for the output. Raises what failed on earlier ones."""
        return self.follower.behind

    def advance(self, results: Mapping[int, ShardResult]) -> None:
        """Hand over what follows in order. Raises what failed on earlier parts."""
        while self._next in results:
            result = results[self._next]
            if result.samples:
                self.follower.add(part_of(self._destination, self._layout, result))
            self._next += 1


@contextmanager
def following(job: Job) -> Iterator[Following]:
    """Around packing and assembling; clears what an earlier run left half assembled."""
    destination = job.destination
    for leftover in (*destination.final.iterdir(), *destination.scratch.iterdir()):
        leftover.unlink()
    sizes = planned_sizes(job.source, job.selection, job.plan.options.image)
    with job.output.follow(sizes, destination.scratch, destination.final, _reader(job)) as follower:
        yield Following(job, follower)


def _reader(job: Job) -> Callable[[int], bytes]:
    """Planned number to the image in the source, which is opened once more: what it holds is for one thread."""
    saved = job.destination.listing

    @cache
    def opened() -> tuple[Input, np.ndarray | None]:
        return open_saved(job.source.kind, job.location, saved), load_order(saved)

    def read(key: int) -> bytes:
        source, order = opened()
        try:
            return source.read(key if order is None else int(order[key])).image or b""
        except SampleRejectedError as error:
            raise SourceChangedError(
                "the source must not change while it is converted",
                got=f"the sample {key}, which could be read before: {error.rule}",
                remedy="Restore it and run the same command again, or use --overwrite to begin again.",
            ) from error

    return read


def part_of(destination: Destination, layout: Layout, result: ShardResult) -> Part:
    """The staged files of a result that holds samples."""
    return Part(
        tar=destination.tasks / tar_name(result.number),
        rows_path=destination.tasks / rows_name(result.number),
        samples=result.samples,
        size=result.size,
        sha256=result.sha256,
        members=layout.members,
    )
