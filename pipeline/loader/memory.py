"""Whether batches fit into this machine's memory, said before they are made."""

from __future__ import annotations

from ..errors import ResourceError
from ..hardware.memory import available_memory, memory_total
from .ranks import of_ranks, rank_bytes

__all__ = ["check_host_memory", "does_not_fit", "host_memory_available"]

LEAST_BATCHES = 2
"""One that is decoded while the caller holds another."""


def host_memory_available() -> int | None:
    """Bytes that this rank's loader may count on; None where that cannot be told."""
    total, limit = memory_total()
    return rank_bytes(available_memory().value, total.value if limit.value is None else limit.value)


def check_host_memory(*, batch_size: int, batch_bytes: int, available_bytes: int | None) -> None:
    """Refuse batches that cannot fit before the system ends the process for them.

    Args:
        available_bytes: None where that cannot be told.

    Raises:
        ResourceError: two batches are larger than the memory that is available.
    """
    if available_bytes is not None and LEAST_BATCHES * batch_bytes > available_bytes:
        raise does_not_fit(batch_size, batch_bytes, f"{available_bytes} bytes available{of_ranks()}")


def does_not_fit(batch_size: int, batch_bytes: int, got: str) -> ResourceError:
    """The error for batches that are too large for memory."""
    return ResourceError(
        f"memory must hold {LEAST_BATCHES} batches of {batch_size} samples, {batch_bytes} bytes each",
        got=got,
        remedy="Use a smaller batch_size or image_size.",
    )
