"""Where each second goes: the same step with one more part of the pipeline at a time.

Step only; fed from encoded bytes in memory (adds decoding and the copy); from files in the page cache (adds reading);
from the storage (adds waiting for it). What a stage adds over the one before is that part's, beyond what the step
hides. The method is that of DS-Analyzer (Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB
2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from ...config import LoaderSettings
from ..rig import OutOfDeviceMemoryError, Rig, Supply, UnmeasuredError, Window, rate, wait_share

RUNS = 1 + len(get_args(Supply))
"""Windows that a table takes."""


@dataclass(frozen=True)
class Stage:
    """One line of the table.

    Attributes:
        name: "step", or where the samples came from.
        window: None where it was not measured, for `reason`.
    """

    name: str
    window: Window | None
    reason: str | None = None


@dataclass(frozen=True)
class Differential:
    """The stages of one setting, each with one part more than the one before."""

    settings: LoaderSettings
    stages: tuple[Stage, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report's `differential`; seconds are of one sample, and what is added is over the last stage measured."""
        rows, before = [], None
        for stage in self.stages:
            speed = None if stage.window is None else rate(stage.window)
            seconds = 1 / speed if speed else None
            rows.append(
                {
                    "stage": stage.name,
                    "samples_per_second": speed,
                    "seconds_per_sample": seconds,
                    "added_seconds_per_sample": None if seconds is None or before is None else seconds - before,
                    "wait_share": None if stage.window is None else wait_share(stage.window),
                    "reason": stage.reason,
                }
            )
            before = seconds if seconds is not None else before
        return {"settings": self.settings.to_dict(), "batch_size": self.settings.batch_size, "rows": rows}


def differential(rig: Rig, settings: LoaderSettings, *, seconds: float) -> Differential:
    """Measure each stage for so many seconds.

    Raises:
        OutOfDeviceMemoryError: the step itself does not fit.
    """
    stages = [Stage("step", rig.ceiling(settings.batch_size, seconds))]
    for supply in get_args(Supply):
        try:
            stages.append(Stage(supply, rig.supplied(settings, supply, seconds)))
        except UnmeasuredError as error:
            stages.append(Stage(supply, None, str(error)))
        except OutOfDeviceMemoryError:
            stages.append(Stage(supply, None, "the device's memory ran out"))
    return Differential(settings, tuple(stages))
