"""Whether batches fit into this machine's memory, said before they are made."""

from __future__ import annotations

from ..errors import ResourceError

__all__ = ["check_host_memory", "does_not_fit"]

LEAST_BATCHES = 2
"""One that is decoded while the caller holds another."""


def check_host_memory(*, batch_size: int, batch_bytes: int, available_bytes: int | None) -> None:
    """Refuse batches that cannot fit before the system ends the process for them.

    Args:
        available_bytes: None where that cannot be told.

    Raises:
        ResourceError: two batches are larger than the memory that is available.
    """
    if available_bytes is not None and LEAST_BATCHES * batch_bytes > available_bytes:
        raise does_not_fit(batch_size, batch_bytes, f"{available_bytes} bytes available")


def does_not_fit(batch_size: int, batch_bytes: int, got: str) -> ResourceError:
    """The error for batches that are too large for memory."""
    return ResourceError(
        f"memory must hold {LEAST_BATCHES} batches of {batch_size} samples, {batch_bytes} bytes each",
        got=got,
        remedy="Use a smaller batch_size or image_size.",
    )
