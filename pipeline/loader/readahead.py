"""Reading ahead of the decoders: the system is told which parts of the shards the coming batches need."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import LoaderConfig
from ..formats.base import Source
from ..formats.readahead import RecentBlocks
from .batch import BatchTask

__all__ = ["announced"]


def announced(tasks: Iterator[BatchTask], source: Source, config: LoaderConfig) -> Iterator[BatchTask]:
    """The tasks, each announced to the storage when a backend takes it, which it does some batches ahead.

    Only where shards are read in sequence: all samples around one that is needed are needed too, soon, so whole blocks
    are asked for, by few calls. What is read lies in the page cache, which worker processes share.
    """
    announce = getattr(source, "will_need", None)
    if config.order != "sharded" or announce is None:
        return tasks

    def each() -> Iterator[BatchTask]:
        epoch, hinted = None, RecentBlocks()
        for task in tasks:
            if task.epoch != epoch:
                # What was read in the last epoch may have left the page cache.
                epoch, hinted = task.epoch, RecentBlocks()
            announce(task.rows, hinted)
            yield task

    return each()
