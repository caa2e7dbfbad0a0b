"""The grid that the tuner's choice is held against: written by hand for 16 cores, without the tuner's space."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from wellfed.pipeline.config import LoaderSettings as At


def _dali(batch_size: int, workers: int, load: float) -> At:
    return At(backend="dali", num_workers=workers, batch_size=batch_size, hw_decoder_load=load)


def _hybrid(batch_size: int, workers: int, share: float, load: float = 0.75) -> At:
    return At(backend="hybrid", num_workers=workers, batch_size=batch_size, gpu_share=share, hw_decoder_load=load)


GRID: tuple[At, ...] = (
    At(backend="threads", num_workers=4, batch_size=256),
    At(backend="threads", num_workers=8, batch_size=256),
    At(backend="threads", num_workers=12, batch_size=256),
    At(backend="threads", num_workers=15, batch_size=256),
    At(backend="threads", num_workers=16, batch_size=256),
    At(backend="threads", num_workers=15, batch_size=256, prefetch_factor=4),
    At(backend="threads", num_workers=15, batch_size=256, pin_memory=False),
    At(backend="processes", num_workers=4, batch_size=256),
    At(backend="processes", num_workers=8, batch_size=256),
    At(backend="processes", num_workers=12, batch_size=256),
    At(backend="processes", num_workers=16, batch_size=256),
    At(backend="processes", num_workers=16, batch_size=256, prefetch_factor=4),
    At(backend="processes", num_workers=16, batch_size=256, persistent_workers=False),
    _dali(256, 4, 0.6),
    _dali(256, 4, 0.75),
    _dali(256, 4, 0.9),
    _dali(256, 4, 1.0),
    _dali(256, 8, 0.6),
    _dali(256, 8, 0.75),
    _dali(256, 8, 0.9),
    _dali(256, 8, 1.0),
    _dali(256, 16, 0.6),
    _dali(256, 16, 0.75),
    _dali(256, 16, 0.9),
    _dali(256, 16, 1.0),
    At(backend="nvjpeg", num_workers=4, batch_size=256),
    At(backend="nvjpeg", num_workers=8, batch_size=256),
    _hybrid(256, 11, 0.2, 0.75),
    _hybrid(256, 11, 0.33, 0.75),
    _hybrid(256, 11, 0.5, 0.75),
    _hybrid(256, 11, 0.66, 0.75),
    _hybrid(256, 11, 0.8, 0.75),
    _hybrid(256, 11, 0.2, 1.0),
    _hybrid(256, 11, 0.33, 1.0),
    _hybrid(256, 11, 0.5, 1.0),
    _hybrid(256, 11, 0.66, 1.0),
    _hybrid(256, 11, 0.8, 1.0),
    _hybrid(256, 15, 0.2, 0.75),
    _hybrid(256, 15, 0.33, 0.75),
    _hybrid(256, 15, 0.5, 0.75),
    _hybrid(256, 15, 0.66, 0.75),
    _hybrid(256, 15, 0.8, 0.75),
    _hybrid(256, 15, 0.2, 1.0),
    _hybrid(256, 15, 0.33, 1.0),
    _hybrid(256, 15, 0.5, 1.0),
    _hybrid(256, 15, 0.66, 1.0),
    _hybrid(256, 15, 0.8, 1.0),
    At(backend="threads", num_workers=15, batch_size=128),
    At(backend="threads", num_workers=16, batch_size=128),
    At(backend="processes", num_workers=16, batch_size=128),
    _dali(128, 8, 0.75),
    _dali(128, 8, 1.0),
    _hybrid(128, 11, 0.33),
    _hybrid(128, 11, 0.5),
    _hybrid(128, 11, 0.66),
    At(backend="threads", num_workers=15, batch_size=512),
    At(backend="threads", num_workers=16, batch_size=512),
    At(backend="processes", num_workers=16, batch_size=512),
    _dali(512, 8, 0.75),
    _dali(512, 8, 1.0),
    _hybrid(512, 11, 0.33),
    _hybrid(512, 11, 0.5),
    _hybrid(512, 11, 0.66),
    At(backend="threads", num_workers=15, batch_size=64),
    At(backend="processes", num_workers=16, batch_size=64),
    _dali(64, 8, 0.75),
    At(backend="threads", num_workers=15, batch_size=1024),
    At(backend="processes", num_workers=16, batch_size=1024),
    _dali(1024, 8, 0.75),
)


def points_of(grid: Sequence[At], backends: Sequence[str], *, pin_memory: bool) -> tuple[list[At], list[At]]:
    """Points that a machine with these backends can run, each once, and those that it cannot.

    Args:
        pin_memory: whether host batches can be pinned for the device; where not, no point has them pinned.
    """
    able = [point for point in grid if point.backend in backends]
    if not pin_memory:
        able = [dataclasses.replace(point, pin_memory=False) for point in able]
    return list(dict.fromkeys(able)), [point for point in grid if point.backend not in backends]
