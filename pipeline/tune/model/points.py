"""Many settings as columns, so that thousands are predicted and ranked at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np

from ...config import BackendName, LoaderSettings

BACKENDS: tuple[str, ...] = get_args(BackendName)

_DEFAULT = LoaderSettings()


@dataclass(frozen=True)
class Points:
    """n settings; every column has shape (n,).

    Attributes:
        backend: places in `BACKENDS`.
        num_workers, prefetch_factor, batch_size: integers.
        persistent_workers, pin_memory: booleans.
        hw_decoder_load, gpu_share: shares, 0 to 1.
    """

    backend: np.ndarray
    num_workers: np.ndarray
    prefetch_factor: np.ndarray
    persistent_workers: np.ndarray
    pin_memory: np.ndarray
    batch_size: np.ndarray
    hw_decoder_load: np.ndarray
    gpu_share: np.ndarray

    @classmethod
    def of(cls, settings: Sequence[LoaderSettings]) -> Points:
        """The columns of these settings, in their order."""
        kinds = {"persistent_workers": bool, "pin_memory": bool, "hw_decoder_load": float, "gpu_share": float}
        columns: dict[str, Any] = {
            field.name: np.array([getattr(s, field.name) for s in settings], dtype=kinds.get(field.name, np.int64))
            for field in fields(cls)
            if field.name != "backend"
        }
        return cls(backend=np.array([BACKENDS.index(s.backend) for s in settings], dtype=np.int64), **columns)

    def __len__(self) -> int:
        return len(self.backend)

    def at(self, place: int) -> LoaderSettings:
        """The settings of one point."""
        values = {field.name: getattr(self, field.name)[place].item() for field in fields(self)}
        return LoaderSettings(**{**values, "backend": BACKENDS[values["backend"]]})

    def take(self, which: np.ndarray) -> Points:
        """Those of these places, or where a mask is true."""
        return Points(*(getattr(self, field.name)[which] for field in fields(self)))

    def of_backend(self, *names: str) -> np.ndarray:
        """Mask of the points of these backends, shape (n,)."""
        return np.isin(self.backend, [BACKENDS.index(name) for name in names])

    def unique_rows(self, *names: str) -> tuple[np.ndarray, np.ndarray]:
        """First places of the distinct combinations of these columns, and for each point the number of its own."""
        _, first, inverse = np.unique(
            np.stack([getattr(self, name) for name in names]), axis=1, return_index=True, return_inverse=True
        )
        return first, np.ravel(inverse)

    def smallest_first(self) -> list[np.ndarray]:
        """Columns by which ties are settled, the most important first: `search.size_key`, then torch's usual choices.

        Among equals workers are kept, batches pinned, and shares are the defaults, which were measured best.
        """
        processes = self.of_backend("processes") & (self.num_workers > 0)
        return [
            self.batch_size,
            self.num_workers,
            processes,
            self.num_workers * self.prefetch_factor,
            self.prefetch_factor,
            ~self.persistent_workers,
            ~self.pin_memory,
            np.abs(self.hw_decoder_load - _DEFAULT.hw_decoder_load),
            np.abs(self.gpu_share - _DEFAULT.gpu_share),
            self.backend,
        ]


def joined(parts: Sequence[Points]) -> Points:
    """All of them, one after another."""
    return Points(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Points)))
