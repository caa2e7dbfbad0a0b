"""torch Datasets: handed to torchdata's StatefulDataLoader, which resumes in mid-epoch."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from ..config import LoaderSettings

__all__ = ["TORCH_POSITIONAL", "stateful_loader", "with_tuned"]

TORCH_POSITIONAL = (
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
)
"""Arguments of torch.utils.data.DataLoader after the dataset, in its order."""


def with_tuned(arguments: dict[str, Any], settings: LoaderSettings) -> dict[str, Any]:
    """The caller's arguments, completed from tuned settings where they were left out."""
    complete = {"num_workers": settings.num_workers, "pin_memory": settings.pin_memory and torch.cuda.is_available()}
    if "batch_sampler" not in arguments:
        complete["batch_size"] = settings.batch_size
    complete |= arguments
    if complete["num_workers"] > 0:  # torch refuses both without workers
        complete.setdefault("persistent_workers", settings.persistent_workers)
        complete.setdefault("prefetch_factor", settings.prefetch_factor)
    return complete


def stateful_loader(dataset: Any, arguments: dict[str, Any]) -> Any:
    """torchdata's StatefulDataLoader over a torch Dataset.

    torchdata 0.11 calls the deprecated torch.set_vital, which some torch builds no longer have (torchtitan #2735):
    its warning is not the user's concern, and its absence must not be.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
        from torchdata.stateful_dataloader import StatefulDataLoader

        if hasattr(torch, "set_vital"):
            return StatefulDataLoader(dataset, **arguments)
        torch.set_vital = _nothing  # type: ignore[attr-defined]
        try:
            return StatefulDataLoader(dataset, **arguments)
        finally:
            del torch.set_vital  # type: ignore[attr-defined]


def _nothing(*args: Any) -> bool:
    return True
