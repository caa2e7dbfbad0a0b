"""Reading ahead of the decoders: the storage is told which parts of the shards the coming batches need."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ..config import LoaderConfig
from ..formats.base import Source
from ..formats.readahead import RecentBlocks
from ..sampling import SHARDED_WINDOW
from .batch import BatchTask

__all__ = ["announced", "prepare"]


def prepare(source: Source, config: LoaderConfig) -> None:
    """Tell a source that cares, one behind a URL, in which order it will be read.

    Raises:
        ConfigError: it cannot be read in that order.
    """
    tell = getattr(source, "prepare", None)
    if tell is not None:
        tell(order=config.order, window=SHARDED_WINDOW)


def announced(tasks: Iterator[BatchTask], source: Source, config: LoaderConfig) -> Iterator[BatchTask]:
    """The tasks, each announced to the storage when a backend takes it, which it does some batches ahead.

    Only where shards are read in sequence: all samples around one that is needed are needed too, soon, so whole blocks
    are asked for, by few calls. What is read lies in the page cache, which worker processes share. A source that
    fetches whole shards says how many samples ahead it wants to know of.
    """
    announce = getattr(source, "will_need", None)
    if config.order != "sharded" or announce is None:
        return tasks
    ahead = getattr(source, "samples_ahead", 0) // config.world_size

    def each() -> Iterator[BatchTask]:
        epoch, hinted = None, RecentBlocks()
        waiting: deque[BatchTask] = deque()
        samples = 0
        for task in tasks:
            if task.epoch != epoch:
                # What was read in the last epoch may have left the page cache.
                epoch, hinted = task.epoch, RecentBlocks()
            announce(task.rows, hinted)
            waiting.append(task)
            samples += len(task.rows)
            while waiting and samples - len(waiting[0].rows) >= ahead:
                samples -= len(waiting[0].rows)
                yield waiting.popleft()
        yield from waiting

    return each()
