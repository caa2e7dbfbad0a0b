"""What a tune hands to the one who asked for it: the report, the tuned config, and a loader made from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..atomic import write_atomically
from ..config import TunedConfig
from ..formats import Source
from ..loader import DataLoader, ImageLoader

__all__ = ["TuneOutcome"]


@dataclass(frozen=True, kw_only=True)
class TuneOutcome:
    """What a tune found.

    Attributes:
        report: the report's JSON; `wellfed.pipeline.report.write_report(report, folder)` draws its pages.
        tuned: the configuration for a loader.
        verdict: "passed", "step_limited", "data_limited", "unmeasurable" or "regressed".
        interrupted: it was ended early, and this is the best until then.
        source: what was tuned on: the path, or the open source that was given.
        device: where the loader's batches go.
        rank: of this process; all ranks have the same report and the same settings.
    """

    report: dict[str, Any]
    tuned: TunedConfig
    verdict: str
    interrupted: bool
    source: str | Source
    device: str
    rank: int = 0

    def save(self, path: str | Path) -> None:
        """Write the tuned config to a file that `DataLoader(..., tuned=path)` reads; it is complete or not there.

        Of several ranks only rank 0 writes it.

        Raises:
            ResourceError: the place cannot be written.
        """
        if self.rank > 0:
            return
        write_atomically(Path(path), self.tuned.to_json())

    def loader(self, **overrides: Any) -> ImageLoader:
        """A loader with the tuned settings over the dataset, for training: shuffled, whole batches, `augment="train"`.

        Args:
            overrides: arguments of `DataLoader` that take the place of these.
        """
        arguments: dict[str, Any] = {
            "tuned": self.tuned,
            "shuffle": True,
            "augment": "train",
            "image_size": self.tuned.step["image_size"],
            "device": self.device,
            **overrides,
        }
        if "tail" not in arguments:
            arguments.setdefault("drop_last", True)
        return DataLoader(self.source, **arguments)
