"""The space of settings, bounded by what the machine has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...config import BackendName, LoaderSettings
from ...loader.engine_backend import batches_ahead
from ...loader.shared_memory import IN_USE, block_bytes
from .footprint import open_files, pinned_bytes
from .points import Points, joined

TIE = 0.02
"""Settings within this share of the best are equal, and the smaller one is taken (design section 7)."""

_PREFETCH = (2, 4, 8)
_GPU_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.66, 0.7, 0.8, 0.9)
_HARDWARE_LOADS = (0.6, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class Limits:
    """What the machine allows.

    Attributes:
        cores: usable cores.
        memory_bytes: host memory that waiting batches may take; None where not measured.
        shm_bytes: /dev/shm that batches of worker processes may take; None where not measured.
        backends: those that can run on the device.
        open_files: descriptors that a loader may take beside the dataset's; None without a limit.
        host_bytes: host memory that is available to all together; None where not measured.
    """

    cores: int
    memory_bytes: int | None
    shm_bytes: int | None
    backends: tuple[BackendName, ...] = ("threads", "processes")
    open_files: int | None = None
    host_bytes: int | None = None


def batch_bytes(batch_size: int, image_size: int) -> int:
    """Bytes of a uint8 RGB batch."""
    return batch_size * 3 * image_size * image_size


def waiting_bytes(settings: LoaderSettings, image_size: int) -> int:
    """Most bytes of finished batches waiting at once, one in the making at each worker included.

    Of worker processes never less than `InFlight` says that their loader takes.
    """
    one = batch_bytes(settings.batch_size, image_size)
    workers = max(1, settings.num_workers)
    if settings.backend not in ("threads", "processes") and settings.num_workers:
        return (batches_ahead(one, settings.prefetch_factor) + 1) * one
    if settings.backend == "processes" and settings.num_workers:
        return block_bytes(one) * (workers * settings.prefetch_factor + max(workers, IN_USE))
    return one * workers * (settings.prefetch_factor + 1)


def fits(settings: LoaderSettings, limits: Limits, image_size: int) -> bool:
    """Whether waiting batches fit into memory, for worker processes into /dev/shm, and under the open-file limit."""
    need = waiting_bytes(settings, image_size)
    held = pinned_bytes(need, batch_bytes(settings.batch_size, image_size)) if settings.pin_memory else need
    if limits.memory_bytes is not None and held > limits.memory_bytes:
        return False
    if limits.open_files is not None and open_files(settings) > limits.open_files:
        return False
    shared = settings.backend == "processes" and settings.num_workers > 0
    return not (shared and limits.shm_bytes is not None and need > limits.shm_bytes)


@dataclass(frozen=True)
class Shortage:
    """Memory that waiting batches need and a loader may not have, in `place`: "/dev/shm" or "free memory"."""

    place: str
    needed_bytes: int
    allowed_bytes: int


def shortage(settings: LoaderSettings, limits: Limits, image_size: int) -> Shortage | None:
    """What waiting batches lack; None where there is enough, whatever else does not fit."""
    need = waiting_bytes(settings, image_size)
    shared = settings.backend == "processes" and settings.num_workers > 0
    for place, allowed in (("/dev/shm", limits.shm_bytes if shared else None), ("free memory", limits.memory_bytes)):
        if allowed is not None and need > allowed:
            return Shortage(place, need, allowed)
    return None


def worker_counts(cores: int) -> list[int]:
    """0, powers of two, three quarters of the usable cores, all but one, which launches steps, and all; ascending."""
    counts = {0, cores, max(1, cores - 1), max(1, 3 * cores // 4)}
    power = 1
    while power < cores:
        counts.add(power)
        power *= 2
    return sorted(counts)


def all_points(batch_sizes: Sequence[int], limits: Limits, image_size: int, *, pin_memory: bool) -> Points:
    """Every point of the space that fits: backend, workers, prefetch, keeping workers, pinning, shares, batch size.

    A knob that does nothing for a backend has its default there, so that no setting is offered twice.

    Args:
        pin_memory: whether batches can be pinned for the device: then points are offered with and without.
    """
    parts = []
    for backend in limits.backends:
        bases = [
            base
            for batch_size in sorted(batch_sizes)
            # Without workers every backend decodes in the calling thread: one point stands for all.
            for workers in worker_counts(limits.cores)
            if workers or backend == "threads"
            for prefetch in (_PREFETCH if workers else _PREFETCH[:1])
            # What is decoded on the device needs no pinned memory.
            for pin in ((True, False) if pin_memory and backend not in ("dali", "nvjpeg") else (pin_memory,))
            if fits(
                base := LoaderSettings(
                    backend=backend,
                    num_workers=workers,
                    prefetch_factor=prefetch,
                    pin_memory=pin,
                    batch_size=batch_size,
                ),
                limits,
                image_size,
            )
        ]
        parts.append(_with_the_rest(Points.of(bases), backend))
    return joined(parts)


def _with_the_rest(bases: Points, backend: BackendName) -> Points:
    """Each point with every value of the knobs that take no host memory."""
    default = LoaderSettings()
    # Threads are there again at once; only processes are worth being started anew each epoch, for their memory.
    persistent = (True, False) if backend == "processes" else (True,)
    loads = _HARDWARE_LOADS if backend in ("dali", "hybrid") else (default.hw_decoder_load,)
    shares = _GPU_SHARES if backend == "hybrid" else (default.gpu_share,)
    place, keep, load, share = (
        axis.ravel() for axis in np.meshgrid(np.arange(len(bases)), persistent, loads, shares, indexing="ij")
    )
    return replace(bases.take(place), persistent_workers=keep.astype(bool), hw_decoder_load=load, gpu_share=share)


def size_key(settings: LoaderSettings) -> tuple[int, int, bool, int]:
    """Order in which ties are settled: batch size, then workers, then memory.

    A worker process holds torch a second time, some 300 MB, which outweighs batches waiting; a thread does not.
    """
    processes = settings.backend == "processes" and settings.num_workers > 0
    return settings.batch_size, settings.num_workers, processes, settings.num_workers * settings.prefetch_factor
