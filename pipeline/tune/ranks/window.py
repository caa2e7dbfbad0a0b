"""One window, one probe and one rate from those of all ranks: what the slowest and fullest of them allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any

from ...training.probe import CANCELLED
from ..rig import Probe, Window, rate, wait_share

__all__ = ["RanksWindow", "joined_probe"]


@dataclass(frozen=True)
class RanksWindow:
    """Implements `rig.Window` for the same window on several ranks; a trial is as fast as its slowest rank.

    Samples and rates are of one rank; together they are `len(ranks)` times as many.

    Attributes:
        ranks: by rank; with the same number of steps.
    """

    ranks: tuple[Window, ...]

    @cached_property
    def _slowest(self) -> Window:
        return min(self.ranks, key=rate)

    @cached_property
    def _waiting(self) -> Window:
        """Where steps run collectives all ranks are equally slow, and the one that waits for data is the reason."""
        return max(self.ranks, key=lambda window: sum(window.wait_seconds))

    @property
    def batch_size(self) -> int:
        return self._slowest.batch_size

    @property
    def steps(self) -> int:
        return self._slowest.steps

    @property
    def samples(self) -> int:
        return self._slowest.samples

    @property
    def wall_seconds(self) -> float:
        return self._slowest.wall_seconds

    @property
    def wait_seconds(self) -> Sequence[float]:
        return self._waiting.wait_seconds

    @property
    def step_seconds(self) -> Sequence[float]:
        return self._waiting.step_seconds

    @property
    def util_percent(self) -> float | None:
        """Of the GPU that is used least: the target holds for each; None where one was not measured."""
        found = [window.util_percent for window in self.ranks if window.util_percent is not None]
        return min(found) if len(found) == len(self.ranks) else None

    @property
    def util_reason(self) -> str | None:
        reasons = [f"rank {n}: {w.util_reason}" for n, w in enumerate(self.ranks) if w.util_percent is None]
        return reasons[0] if reasons else None

    @property
    def peak_bytes(self) -> int | None:
        found = [window.peak_bytes for window in self.ranks if window.peak_bytes is not None]
        return max(found) if len(found) == len(self.ranks) else None

    @property
    def host_rss_bytes(self) -> Sequence[int]:
        """Of all ranks together, one value a window: their samples are of different moments."""
        medians = [median(window.host_rss_bytes) for window in self.ranks if len(window.host_rss_bytes)]
        return (int(sum(medians)),) if len(medians) == len(self.ranks) else ()

    @property
    def host_rss_seconds(self) -> Sequence[float]:
        return (self.wall_seconds / 2,) if self.host_rss_bytes else ()

    def to_dict(self) -> dict[str, Any]:
        """The slowest rank's raw values, and of every rank those that tell it from the others."""
        return {
            **self._slowest.to_dict(),
            "util_percent": self.util_percent,
            "util_reason": self.util_reason,
            "peak_bytes": self.peak_bytes,
            "host_rss_bytes": list(self.host_rss_bytes),
            "host_rss_seconds": list(self.host_rss_seconds),
            "ranks": [
                {
                    "rank": number,
                    "samples_per_second": rate(window),
                    "wait_seconds": sum(window.wait_seconds),
                    "wait_share": wait_share(window),
                    "util_percent": window.util_percent,
                    "util_reason": window.util_reason,
                    "peak_bytes": window.peak_bytes,
                    "memory_reason": window.to_dict().get("memory_reason"),
                }
                for number, window in enumerate(self.ranks)
            ],
        }


def joined_probe(probes: Sequence[Any]) -> Probe:
    """The probe of the rank whose memory ran out, or whose probe has an error, or else that has the highest peak.

    Args:
        probes: `training.probe.MemoryProbe` of each rank.
    """
    told = [probe for probe in probes if probe.error != CANCELLED] or list(probes)
    full = [probe for probe in told if probe.out_of_memory]
    unknown = [probe for probe in told if probe.peak_bytes is None]
    chosen = (full or unknown or sorted(told, key=lambda probe: -probe.peak_bytes))[0]
    facts = chosen.facts or next((probe.facts for probe in probes if probe.facts is not None), None)
    result: Probe = replace(chosen, facts=facts)
    return result
