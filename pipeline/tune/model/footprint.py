"""What a loader takes of the machine beside its batches: open files, and page-locked memory."""

from __future__ import annotations

from ...config import LoaderSettings
from ...formats import Source
from ...formats.webdataset import OPEN_SHARDS

__all__ = ["kept_open", "open_files", "pinned_bytes"]

_FILES_A_BATCH = 5
_FILES_OF_A_POOL = 8
# Counted in /proc/self/fd with torch 2.14: 1 worker and prefetch 2 took 13, 4 workers 60 with prefetch 2 and 102 with
# prefetch 4: queues and a sentinel for each worker, and the shared memory of each tensor of a batch on its way.


def kept_open(source: Source) -> int:
    """Files that a process which reads a dataset keeps open."""
    names = source.index.dtype.names or ()
    # Tars have a shard in each row; a folder's files are opened and closed, and an environment is one file.
    return min(OPEN_SHARDS, int(source.index["shard"].max()) + 1) if "shard" in names and len(source) else 1


def open_files(settings: LoaderSettings) -> int:
    """Descriptors that the process of a loader needs at most, beside the dataset's."""
    if settings.backend != "processes" or not settings.num_workers:
        return _FILES_OF_A_POOL
    return _FILES_OF_A_POOL + _FILES_A_BATCH * settings.num_workers * (settings.prefetch_factor + 1)


def pinned_bytes(waiting: int, batch: int) -> int:
    """Page-locked memory of batches that wait: torch's allocator rounds each up to a power of two."""
    return waiting // batch * (1 << (batch - 1).bit_length())
