"""The space of settings: bounded by what the machine has, and the points worth measuring picked from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import BackendName, LoaderSettings
from ..loader.engine_backend import batches_ahead
from .footprint import open_files, pinned_bytes
from .model import Model

TIE = 0.02
"""Settings within this share of the best are equal, and the smaller one is taken (design section 7)."""

_PREFETCH = (2, 4)
_GPU_SHARES = (0.66, 0.33, 0.5, 0.8)  # the default first: other backends have it too, unused
_WORTH = 0.85  # predictions err, but not by more than this without the two-point fit showing it
_HEADROOM = 1.05  # a loader must be this much faster than the step to feed it despite jitter


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
    """Most bytes of finished batches waiting at once, one in the making at each worker included."""
    one = batch_bytes(settings.batch_size, image_size)
    workers = max(1, settings.num_workers)
    if settings.backend not in ("threads", "processes") and settings.num_workers:
        return (batches_ahead(one, settings.prefetch_factor) + 1) * one
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


def worker_counts(cores: int) -> list[int]:
    """0, powers of two, three quarters and all of the usable cores, ascending."""
    counts = {0, cores, max(1, 3 * cores // 4)}
    power = 1
    while power < cores:
        counts.add(power)
        power *= 2
    return sorted(counts)


def all_points(
    batch_sizes: Sequence[int], limits: Limits, image_size: int, *, pin_memory: bool
) -> list[LoaderSettings]:
    """Every point of the space that fits, smallest first.

    Workers are kept between epochs throughout; what that saves is measured once, as the cost of an epoch boundary.
    """
    points = []
    for batch_size in sorted(batch_sizes):
        for workers in worker_counts(limits.cores):
            for backend in limits.backends:
                # Without workers every backend decodes in the calling thread: one point stands for all.
                if workers == 0 and backend != "threads":
                    continue
                for prefetch in _PREFETCH if workers else _PREFETCH[:1]:
                    for share in _GPU_SHARES if backend == "hybrid" else _GPU_SHARES[:1]:
                        point = LoaderSettings(
                            backend=backend,
                            num_workers=workers,
                            prefetch_factor=prefetch,
                            persistent_workers=True,
                            pin_memory=pin_memory,
                            batch_size=batch_size,
                            gpu_share=share,
                        )
                        if fits(point, limits, image_size):
                            points.append(point)
    return points


def size_key(settings: LoaderSettings) -> tuple[int, int, bool, int]:
    """Order in which ties are settled: batch size, then workers, then memory.

    A worker process holds torch a second time, some 300 MB, which outweighs batches waiting; a thread does not.
    """
    processes = settings.backend == "processes" and settings.num_workers > 0
    return settings.batch_size, settings.num_workers, processes, settings.num_workers * settings.prefetch_factor


def shortlist(points: Sequence[LoaderSettings], model: Model, *, count: int) -> list[tuple[LoaderSettings, float]]:
    """The points to measure, best prediction first, different enough that each can teach something.

    First the smallest point within a tie of the best; then, while places are left, the same with all workers, the best
    of every other backend, the next larger and the next smaller batch size, deeper prefetch, and the rest by their
    predictions.

    Returns:
        (settings, predicted samples/s) pairs, at most `count`.
    """
    scored = [(point, rate) for point in points if (rate := model.predict(point)) is not None]
    if not scored or count < 1:
        return []
    best = max(rate for _, rate in scored)

    def enough(point: LoaderSettings) -> bool:
        """Whether the loader outruns the step with some headroom, or nothing faster exists with this backend."""
        curve = model.curves[point.backend]
        wanted = _HEADROOM * model.ceilings[point.batch_size]
        return curve.rate(point.num_workers) >= min(wanted, 0.98 * curve.rate(curve.cores))

    near = [(p, r) for p, r in scored if r >= (1 - TIE) * best]
    near.sort(key=lambda pair: (not enough(pair[0]), size_key(pair[0]), -pair[1]))
    chosen = [near[0]]
    top = near[0][0]

    def add(pool: list[tuple[LoaderSettings, float]]) -> None:
        fresh = [pair for pair in pool if pair not in chosen]
        if fresh and len(chosen) < count:
            chosen.append(min(fresh, key=lambda pair: (-round(pair[1] / best / TIE), size_key(pair[0]))))

    same_batch = [(p, r) for p, r in scored if p.batch_size == top.batch_size and p.num_workers > 0]
    most = max((p.num_workers for p, _ in same_batch), default=0)
    # With all workers whatever was predicted: beside the step fewer may not do, and a short measurement errs.
    for backend in (top.backend, *sorted({p.backend for p, _ in scored} - {top.backend})):
        add([(p, r) for p, r in same_batch if p.backend == backend and p.num_workers == most])
    larger = min((p.batch_size for p, _ in scored if p.batch_size > top.batch_size), default=0)
    smaller = max((p.batch_size for p, _ in scored if p.batch_size < top.batch_size), default=0)
    for size in (larger, smaller):
        add([(p, r) for p, r in scored if p.batch_size == size and p.backend == top.backend and enough(p)])
    add([(p, r) for p, r in same_batch if p.num_workers == top.num_workers and p.prefetch_factor > top.prefetch_factor])
    rest = [(p, r) for p, r in scored if r >= _WORTH * best]
    while len(chosen) < count and any(pair not in chosen for pair in rest):
        add(rest)
    return chosen
