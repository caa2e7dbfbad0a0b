"""The names of torch's DataLoader that a loader over a stored dataset has, and what to say of those it has not."""

from __future__ import annotations

from typing import Any

from ..config import LoaderConfig

__all__ = ["TorchNames"]

_TORCHS_OWN = (
    "batch_sampler",
    "collate_fn",
    "generator",
    "in_order",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "sampler",
    "timeout",
    "worker_init_fn",
)


class TorchNames:
    """What scripts and libraries ask of a loader, out of its configuration."""

    config: LoaderConfig

    @property
    def batch_size(self) -> int:
        """Samples of one rank's batch."""
        return self.config.settings.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether an epoch leaves out what fills no whole batch over all ranks."""
        return self.config.tail == "drop"

    def __getattr__(self, name: str) -> Any:
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name in ("sampler", "batch_sampler"):
            message += ": its order comes from shuffle= and seed=, and the epoch is set by loader.set_epoch(epoch)"
        if name in _TORCHS_OWN:
            message += "; where a library needs a torch DataLoader, give it wellfed.pipeline.as_torch_loader(loader)"
        raise AttributeError(message, name=name, obj=self)
