"""What is asked of everyone, and what each hands back: a loader and a batch size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.formats import RepeatedSource, Source
from wellfed.pipeline.tune.machine.loaders import repeat_times


@dataclass(frozen=True, kw_only=True)
class Task:
    """The same for everyone.

    Attributes:
        dataset: where the stored dataset is.
        step: "resnet18" or "resnet50".
        device: as `open_accelerator` takes it.
        budget_seconds: for choosing.
        memory_cap: largest share of the device's memory.
        image_size: pixels.
        seed: of orders, crops and random choices.
    """

    dataset: str
    step: str
    device: str
    budget_seconds: float
    memory_cap: float
    image_size: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class TorchLoader:
    """torch's DataLoader over the stored images: Pillow, torchvision's transforms, shuffled, whole batches.

    Attributes:
        num_workers: processes; they stay for the next epoch where there are any.
        pin_memory: whether batches are put into page-locked memory.
    """

    num_workers: int
    pin_memory: bool


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a contestant would train with.

    Attributes:
        batch_size: samples in a step.
        loader: torch's, or wellfed's, whose settings hold the batch size too.
        details: JSON types worth keeping: a verdict, what was tried.
    """

    batch_size: int
    loader: TorchLoader | LoaderSettings
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        kind = "torch" if isinstance(self.loader, TorchLoader) else "wellfed"
        values = asdict(self.loader) if isinstance(self.loader, TorchLoader) else self.loader.to_dict()
        return {"batch_size": self.batch_size, "loader": kind, "settings": values, "details": dict(self.details)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Choice:
        values = data["settings"]
        loader = (
            TorchLoader(**values) if data["loader"] == "torch" else LoaderSettings.from_dict(values, where="settings")
        )
        return cls(batch_size=data["batch_size"], loader=loader, details=data["details"])


def repeated(source: Source, batch_size: int) -> Source:
    """The source as the tuner repeats it: to an epoch of at least 200 batches."""
    times = repeat_times(len(source), batch_size)
    return source if times == 1 else RepeatedSource(source, times)
