"""What worker processes hand batches over in: where it lies, how much there is, and how much a loader takes."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

from ..errors import ResourceError
from .ranks import of_ranks, rank_bytes

__all__ = ["IN_USE", "SHARED_MEMORY", "InFlight", "block_bytes", "check_shared_memory", "shared_memory_available"]

SHARED_MEMORY = "/dev/shm"

IN_USE = 2
"""Batches beside those in flight: the one in use, and the next one until the loop lets go of that."""


def block_bytes(pixel_bytes: int) -> int:
    """Bytes that the pixels of a batch take: whole pages, so that no two batches share one."""
    return -(-pixel_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """The batches of a loader that are in shared memory at once, where its user keeps none.

    Attributes:
        workers, prefetch_factor: of each worker so many.
        batch_bytes: of one.
    """

    workers: int
    prefetch_factor: int
    batch_bytes: int

    @property
    def batches(self) -> int:
        """How many."""
        return self.workers * self.prefetch_factor + IN_USE

    @property
    def needed_bytes(self) -> int:
        """Of all."""
        return self.batches * self.batch_bytes

    def refused(self, got: str) -> ResourceError:
        """The error where they do not fit."""
        mebibytes = -(-self.needed_bytes // (1 << 20)) + 64
        return ResourceError(
            f"shared memory ({SHARED_MEMORY}) must hold the batches in flight and in use: {self.workers} workers x "
            f"{self.prefetch_factor} + {IN_USE} batches of {self.batch_bytes} bytes, {self.needed_bytes} bytes",
            got=got,
            remedy=f"In Docker start the container with --shm-size={mebibytes}m or more; or use fewer workers, a "
            "smaller prefetch_factor or batch_size, or backend='threads', which needs none.",
        )


def shared_memory_available() -> int | None:
    """Free bytes of /dev/shm, at most this rank's share of its size; None on systems without it."""
    try:
        facts = os.statvfs(SHARED_MEMORY)
    except FileNotFoundError:
        return None
    return rank_bytes(facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize)


def check_shared_memory(in_flight: InFlight, available_bytes: int | None) -> None:
    """Refuse before the first batch, not in the middle of an epoch.

    Raises:
        ResourceError: the batches in flight and those in use do not fit.
    """
    if available_bytes is not None and in_flight.needed_bytes > available_bytes:
        raise in_flight.refused(f"{available_bytes} bytes available{of_ranks()}")
