"""Hands the output each packed part, in the plan's order, as soon as it and all before it are packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .layout import Layout
from .outputs import Follower, Part
from .plan import planned_sizes
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
    with job.output.follow(sizes, destination.scratch, destination.final) as follower:
        yield Following(job, follower)


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
