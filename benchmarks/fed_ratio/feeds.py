"""What is trained, what is promised of it, and the loader settings that are tried."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

from wellfed.pipeline.config import BackendName, LoaderSettings

FLOOR_DEVICE = "H200"
"""Part of the product's name; the floors hold on no other card."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A model on one set of files.

    Attributes:
        name: in options and results.
        step: as `wellfed bench --step` takes it.
        images: which dataset.
        wanted: least fed ratio.
        floor: least images/s of the ceiling on an H200: a slow ceiling would flatter the ratio.
        feeds: tried where --feeds names no others.
        cuda_only: the simulated device has no such step.
    """

    name: str
    step: str
    images: Literal["originals", "resized"]
    wanted: float
    floor: float
    feeds: tuple[str, ...]
    cuda_only: bool = False


_THREADS = "threads:num_workers=15"
_DALI = "dali:num_workers=8,hw_decoder_load=0.75"


def _hybrid(num_workers: int, gpu_share: float, hw_decoder_load: float) -> str:
    return f"hybrid:num_workers={num_workers},gpu_share={gpu_share},hw_decoder_load={hw_decoder_load}"


CONFIGURATIONS = (
    Configuration(
        name="resnet50",
        step="resnet50",
        images="originals",
        wanted=0.97,
        floor=4400,
        feeds=(_THREADS, _DALI, _hybrid(11, 0.2, 0.9)),
    ),
    Configuration(
        name="resnet50-compiled",
        step="benchmarks.fed_ratio.steps:compiled_resnet50",
        images="originals",
        wanted=0.97,
        floor=6300,
        feeds=(_THREADS, _DALI, _hybrid(13, 0.1, 0.9), _hybrid(11, 0.2, 0.9)),
        cuda_only=True,
    ),
    Configuration(
        name="resnet18",
        step="resnet18",
        images="originals",
        wanted=0.90,
        floor=12300,
        feeds=(_THREADS, _DALI, _hybrid(11, 0.66, 0.9), _hybrid(15, 0.5, 1.0)),
    ),
    Configuration(
        name="resnet18-resized",
        step="resnet18",
        images="resized",
        wanted=0.95,
        floor=12300,
        feeds=(_THREADS, "dali:num_workers=8,hw_decoder_load=0.6", _hybrid(11, 0.2, 0.6)),
    ),
)
BY_NAME = {configuration.name: configuration for configuration in CONFIGURATIONS}


class UnknownFeedError(Exception):
    """A feed that this version of wellfed cannot describe, and why."""


def settings_of(feed: str, *, batch_size: int, pin_memory: bool) -> LoaderSettings:
    """Loader settings from "BACKEND" or "BACKEND:FIELD=VALUE,...", fields being those of `LoaderSettings`.

    Raises:
        UnknownFeedError: no such backend or field in this version.
        ConfigError: a value of another type or out of range.
    """
    backend, _, rest = feed.partition(":")
    if backend not in get_args(BackendName):
        raise UnknownFeedError(f"this version has no backend {backend!r}; it has {', '.join(get_args(BackendName))}")
    known = [field.name for field in dataclasses.fields(LoaderSettings)]
    values: dict[str, Any] = {"batch_size": batch_size, "pin_memory": pin_memory}
    for part in filter(None, rest.split(",")):
        name, _, text = part.partition("=")
        if name not in known:
            raise UnknownFeedError(f"loader settings have no field {name!r}; they have {', '.join(known)}")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return LoaderSettings(backend=backend, **values)  # type: ignore[arg-type]
