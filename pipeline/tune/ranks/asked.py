"""Whether all ranks ask for the same: rank 0 decides for all, so what another one asked for otherwise would be lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...config import TuneRequest
from ...errors import UsageError
from ...formats import Source
from ...training import Accelerator, StepSpec

__all__ = ["arguments_of", "check_same", "opened_things"]

_PLACES = ("data", "device", "schema", "schema_version")
"""What may differ: a path or a GPU of its own on each rank; what is there is compared once it is open."""


def arguments_of(request: TuneRequest) -> dict[str, Any]:
    """What every rank must ask for, by name."""
    return {name: value for name, value in request.to_dict().items() if name not in _PLACES}


def opened_things(source: Source, spec: StepSpec, accelerator: Accelerator, seed: int) -> dict[str, Any]:
    """What every rank must have open, by name; two GPUs may be of different models."""
    return {
        "dataset": f"{len(source)} samples of fingerprint {source.fingerprint[:12]}",
        "step": spec.name,
        "image_size": spec.image_size,
        "seed": seed,
        "device": "cuda" if accelerator.kind == "cuda" else accelerator.name,
    }


def check_same(found: Sequence[Mapping[str, Any]]) -> None:
    """Refuse ranks that would measure different things as if they were one.

    Args:
        found: of each rank, with the same names.

    Raises:
        UsageError: two of them differ; names what, the ranks and their values.
    """
    for name, first in found[0].items():
        for rank, other in enumerate(found):
            if other[name] != first:
                raise UsageError(
                    "all ranks measure together, so all must ask for the same",
                    got=f"{name} {first!r} on rank 0 and {other[name]!r} on rank {rank}",
                    remedy="Give every rank the same arguments; only the device's number and the dataset's path may "
                    "differ.",
                )
