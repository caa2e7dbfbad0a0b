"""Device memory by batch size: probed in children from below, with a line through the peaks in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...config import LoaderSettings
from ...errors import ResourceError
from ..rig import Probe
from ..search.search import Record

_LINE_MARGIN = 0.92  # sizes are tried unprobed only where the line says they stay this far under the cap


@dataclass(frozen=True)
class Line:
    """Peak bytes = intercept + per sample * batch size."""

    intercept_bytes: float
    bytes_per_sample: float

    def at(self, batch_size: int) -> float:
        return self.intercept_bytes + self.bytes_per_sample * batch_size


def fit_line(points: Sequence[tuple[int, int]]) -> Line | None:
    """Least squares through (batch size, peak bytes); None with fewer than two sizes."""
    if len({size for size, _ in points}) < 2:
        return None
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return Line(mean_y - slope * mean_x, slope)


def holds_on_device(settings: LoaderSettings) -> bool:
    """Whether a loader takes device memory beside its batches: it decodes there, wholly or in part."""
    return settings.backend not in ("threads", "processes") and settings.num_workers > 0


def unprobed_words(chosen: Record) -> str:
    """A note on a choice whose batch size was run, and not probed by itself with its loader."""
    peak = chosen.medians()["peak_bytes"]
    seen = "" if peak is None else f", where device memory peaked at {peak / 2**30:.2f} GiB"
    return (
        f"Batch {chosen.trial.batch_size} was run beside the other trials{seen}, and not yet probed by itself: that it "
        "stays under the memory cap is not certain."
    )


def _unknown(probe: Probe) -> bool:
    return probe.peak_bytes is None and not probe.out_of_memory


@dataclass
class MemoryPlan:
    """Knows which batch sizes fit, from as few probes as will do: a child costs seconds.

    Args:
        probe: measures one batch size in a child, with the loader of settings given second.
        sizes: batch sizes to consider, ascending.
        cap_bytes: most device memory allowed.
        cap_share: the same as a share of the card.

    Attributes:
        not_begun: sizes that there was no time to consider.
    """

    probe: Callable[..., Probe]
    sizes: tuple[int, ...]
    cap_bytes: int
    cap_share: float
    probes: dict[int, Probe] = field(default_factory=dict)
    fed: dict[LoaderSettings, Probe] = field(default_factory=dict)
    not_begun: tuple[int, ...] = ()

    def start(self, *, enough: Callable[[], bool] = lambda: False, keep: Sequence[int] = ()) -> None:
        """Probe the smallest size and one further up: two points make a line.

        Args:
            enough: asked after the first probe; where true, other sizes are not begun.
            keep: sizes that are considered all the same.

        Raises:
            ResourceError: the smallest size does not fit under the cap.
        """
        first = self.sizes[0]
        if not self.check(first):
            probe = self.probes[first]
            got = "out of memory" if probe.out_of_memory else f"{(probe.peak_bytes or 0) / 2**20:.0f} MiB"
            raise ResourceError(
                f"the step must fit under the memory cap of {self.cap_bytes / 2**20:.0f} MiB "
                f"({self.cap_share:.0%} of the card) at the smallest batch size, {first}",
                got=got,
                remedy="Use a smaller model or image, give smaller batch sizes, or raise --memory-cap.",
            )
        if enough():
            self.not_begun = tuple(size for size in self.sizes if size != first and size not in keep)
            self.sizes = tuple(size for size in self.sizes if size not in self.not_begun)
            return
        if self.probes[first].peak_bytes is not None and len(self.sizes) > 1:
            # Twice the size apart is lost in the allocator's rounding; four times is not.
            self.check(next((s for s in self.sizes if s >= 4 * first), self.sizes[-1]))

    def thin_out(self, factor: int, keep: Sequence[int]) -> tuple[int, ...]:
        """Leave out sizes less than `factor` times the one kept below them; those probed and those of `keep` stay.

        Returns:
            What was left out.
        """
        kept: list[int] = []
        for size in self.sizes:
            if size in self.probes or size in keep or size >= factor * max(kept, default=0):
                kept.append(size)
        left_out = tuple(size for size in self.sizes if size not in kept)
        self.sizes = tuple(kept)
        return left_out

    def check(self, batch_size: int) -> bool:
        """Probe this size unless that is done, and say whether it stays under the cap.

        A probe without a peak (memory not measured, or the step failed) rules nothing out: the step's own run in this
        process shows what is wrong.
        """
        if batch_size not in self.probes:
            self.probes[batch_size] = self.probe(batch_size)
        return self._under_cap(self.probes[batch_size])

    def check_fed(self, settings: LoaderSettings) -> bool:
        """The same for the step fed by a loader with these settings, whose device memory then counts."""
        if settings not in self.fed:
            self.fed[settings] = self.probe(settings.batch_size, settings)
        return self._under_cap(self.fed[settings])

    def over_cap_fed(self) -> list[LoaderSettings]:
        """Those of the loaders probed so far beside which the step does not fit."""
        return [settings for settings, probe in self.fed.items() if not self._under_cap(probe)]

    def _under_cap(self, probe: Probe) -> bool:
        return not probe.out_of_memory and (probe.peak_bytes is None or probe.peak_bytes < self.cap_bytes)

    def not_over_cap(self, batch_size: int) -> bool:
        """Whether no probe of this size so far was over the cap; probes nothing."""
        return batch_size not in self.probes or self._under_cap(self.probes[batch_size])

    def rule_out(self, batch_size: int) -> None:
        """A size ran out of memory outside a probe: it and every larger one are gone."""
        self.sizes = tuple(size for size in self.sizes if size < batch_size)

    @property
    def unmeasured(self) -> str | None:
        """Why there are no peaks, where a probe had none and did not run out of memory."""
        reasons = [p.error or "no reason was given" for p in self.probes.values() if _unknown(p)]
        return reasons[0] if reasons else None

    @property
    def line(self) -> Line | None:
        """Through all peaks measured so far."""
        return fit_line([(s, p.peak_bytes) for s, p in sorted(self.probes.items()) if p.peak_bytes is not None])

    def expected(self, batch_size: int) -> float | None:
        """Peak bytes: as probed, or by the line; None where neither is known."""
        probe = self.probes.get(batch_size)
        if probe is not None and probe.peak_bytes is not None:
            return float(probe.peak_bytes)
        line = self.line
        return line.at(batch_size) if line else None

    def likely(self, batch_size: int) -> bool:
        """Whether the size may be tried: measured under the cap, or well under it by the line."""
        if batch_size not in self.sizes:
            return False
        if batch_size in self.probes:
            return self.check(batch_size)
        if any(s < batch_size and not self.check(s) for s in self.probes):
            return False
        line = self.line
        if line is not None:
            return line.at(batch_size) < _LINE_MARGIN * self.cap_bytes
        # Without a line: nothing speaks against a size where memory is not measured at all.
        return all(_unknown(probe) for probe in self.probes.values()) or self.check(batch_size)

    def largest_known(self) -> int | None:
        """The largest size that is left, where a larger one was ruled out or lies over the cap; None where all fit."""
        line = self.line
        over = [size for size, probe in self.probes.items() if probe.out_of_memory]
        if line is not None:
            over += [size for size in self.sizes if size not in self.probes and line.at(size) >= self.cap_bytes]
        over += [size for size, p in self.probes.items() if p.peak_bytes is not None and p.peak_bytes >= self.cap_bytes]
        if not over:
            return None
        return max((size for size in self.sizes if size < min(over)), default=None)

    def largest(self) -> int | None:
        """The largest size measured or expected to stay under the cap."""
        fitting = [size for size in self.sizes if self.likely(size)]
        return max(fitting, default=None)

    def to_dict(self) -> dict[str, Any]:
        """The report's `memory`."""
        line = self.line
        return {
            "cap_bytes": self.cap_bytes,
            "cap_share": self.cap_share,
            "probes": [
                {
                    "batch_size": size,
                    "peak_bytes": probe.peak_bytes,
                    "out_of_memory": probe.out_of_memory,
                    "error": probe.error,
                }
                for size, probe in sorted(self.probes.items())
            ],
            "fed_probes": [
                {
                    "settings": settings.to_dict(),
                    "peak_bytes": probe.peak_bytes,
                    "out_of_memory": probe.out_of_memory,
                    "error": probe.error,
                }
                for settings, probe in self.fed.items()
            ],
            "fit": None
            if line is None
            else {"intercept_bytes": line.intercept_bytes, "bytes_per_sample": line.bytes_per_sample},
            "largest_batch_size": self.largest(),
        }
