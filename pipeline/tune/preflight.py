"""Limits of the space, from what the machine has now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..hardware import Fact
from .space import Limits

MEMORY_SHARE = 0.25
"""Of the memory available: what one loader's waiting batches may take, beside the other trials, the step and caches."""

SHM_SHARE = 0.4
"""Of the free shared memory: two trials of worker processes are open at once, and torch needs some itself."""


def _value(facts: Sequence[Fact], name: str) -> Any:
    return next((fact.value for fact in facts if fact.name == name), None)


def limits_of(facts: Sequence[Fact]) -> Limits:
    """Limits from `hardware.preflight()`."""
    memory, shm = _value(facts, "memory available"), _value(facts, "shared memory free")
    return Limits(
        cores=int(_value(facts, "usable cores") or 1),
        memory_bytes=None if memory is None else int(memory * MEMORY_SHARE),
        shm_bytes=None if shm is None else int(shm * SHM_SHARE),
    )
