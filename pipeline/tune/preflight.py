"""Limits of the space, from what the machine has now; and whether the device is free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ResourceError
from ..hardware import Fact
from ..hardware.gpus import process_name
from ..training import Accelerator
from .model.space import Limits

MEMORY_SHARE = 0.25
"""Of the memory available: what one loader's waiting batches may take, beside the other trials, the step and caches."""

SHM_SHARE = 0.4
"""Of the free shared memory: two trials of worker processes are open at once, and torch needs some itself."""

OPEN_FILES_SHARE = 0.5
"""Of the descriptors that are left: two trials of worker processes are open at once."""

BUSY_SHARE = 0.10
"""Of the cores, by others: from here on it is told. What a machine does by itself takes less."""

OPEN_FILES_SPARE = 64
"""Left to libraries, the step and the report."""


def _value(facts: Sequence[Fact], name: str) -> Any:
    return next((fact.value for fact in facts if fact.name == name), None)


def limits_of(facts: Sequence[Fact], *, kept_open: int = 0) -> Limits:
    """Limits from `hardware.preflight()`.

    Args:
        facts: what it found.
        kept_open: files of the dataset that a process keeps open.
    """
    memory, shm = _value(facts, "memory available"), _value(facts, "shared memory free")
    files, files_now = _value(facts, "open files"), _value(facts, "open files now")
    files_left = None if files is None else max(0, files - (files_now or 0) - kept_open - OPEN_FILES_SPARE)
    return Limits(
        cores=int(_value(facts, "usable cores") or 1),
        memory_bytes=None if memory is None else int(memory * MEMORY_SHARE),
        shm_bytes=None if shm is None else int(shm * SHM_SHARE),
        open_files=None if files_left is None else int(files_left * OPEN_FILES_SHARE),
        host_bytes=memory,
    )


def check_sharers(accelerator: Accelerator, *, allowed: bool) -> str | None:
    """Refuse a device that others compute on: what is measured beside them holds for no other day.

    Args:
        allowed: the user knows; then it is only said.

    Returns:
        A note for the report; None where nobody else is there.

    Raises:
        ResourceError: somebody is there, named with process number and bytes.
    """
    sharers = accelerator.sharers()
    if sharers.processes is None:
        return f"Whether other programs use the device is not known: {sharers.reason}."
    users = []
    for process in sharers.processes:
        name = process_name(process.pid)
        size = "an unknown amount of memory" if process.used_bytes is None else _mib(process.used_bytes)
        users.append(f"process {process.pid}{f' ({name})' if name else ''} with {size}")
    if sharers.unlisted_bytes:
        users.append(f"somebody whom NVML does not list here with {_mib(sharers.unlisted_bytes)}")
    if not users:
        return None
    if not allowed:
        raise ResourceError(
            "what is measured needs the device to itself",
            got=f"{accelerator.name}, used by {', '.join(users)}",
            remedy="Wait for them, choose another --device, or give --allow-shared-gpu and read the result with care.",
        )
    return f"The device was shared with {', '.join(users)}: utilization includes their work, and speeds depend on it."


def words_on_busy_cores(share: float | None) -> str | None:
    """A note where others used the cores while the tune measured; None where they did not, or it is not known."""
    if share is None or share < BUSY_SHARE:
        return None
    return (
        f"Other programs took {share:.0%} of the cores while this was measured: speeds, the fed ratio and what binds "
        "depend on them. On an idle machine more may be reached: tune again there."
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
