"""The held run: the winner alone, across an epoch boundary, with the ceiling measured in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ...config import LoaderSettings
from ..machine.worker_memory import NOT_READ, WorkerMemory, worker_memory
from ..rig import Rig, Window, rate
from ..statistics import Interval, mean_interval, ratio_of_means, slope

GROWTH_BYTES_PER_EPOCH = 5_000_000
"""Host memory may grow by less than this an epoch (design section 10)."""

_GROUPS = 3
_WARM_SHARE = 1 / 3  # first caches fill

_SETTLING_BATCHES = 100
"""Growth of worker processes counts after so many (design section 10): of a slow loader they take most of a hold."""


@dataclass(frozen=True)
class Hold:
    """What the winner did.

    Attributes:
        seconds: fed time.
        epochs_crossed: epoch boundaries within it.
        samples_per_second: over the fed time.
        util: mean GPU-Util with its interval; None where a window lacks it.
        util_reason: why it is None.
        fed: fed ratio with its interval.
        peak_bytes: most device memory of any window; None where not measured.
        host_slope: bytes/s of host memory after the first third; None with too few windows.
        workers: memory of the worker processes among it.
        epoch_seconds: how long an epoch takes at this speed.
        windows, ceilings: raw.
        crossed_in: numbers of the windows that an epoch boundary lies in.
    """

    seconds: float
    epochs_crossed: int
    samples_per_second: float
    util: Interval | None
    util_reason: str | None
    fed: Interval | None
    peak_bytes: int | None
    host_slope: Interval | None
    epoch_seconds: float
    windows: tuple[Window, ...]
    ceilings: tuple[Window, ...]
    crossed_in: tuple[int, ...] = ()
    workers: WorkerMemory = NOT_READ

    @property
    def grows(self) -> bool:
        """Whether host memory grows: even the low end of the slope's interval is not negligible over an epoch."""
        return self._is_growth(self.host_slope)

    @property
    def workers_grow(self) -> bool:
        """The same of the worker processes alone."""
        return self._is_growth(self.workers.slope)

    @property
    def workers_growth_share(self) -> float | None:
        """What worker processes take of the growth of host memory, 0..1; None where either was not seen."""
        whole, part = self.host_slope, self.workers.slope
        if whole is None or part is None or whole.value <= 0:
            return None
        return min(1.0, max(0.0, part.value / whole.value))

    def words_on_workers(self) -> str | None:
        """A note where worker processes grow and the sum of resident memory does not show it."""
        line = self.workers.slope
        if line is None or self.grows or not self.workers_grow:
            return None
        low, value, high = (x * self.epoch_seconds / 1e6 for x in (line.low, line.value, line.high))
        return (
            f"Worker processes grow by {value:.0f} MB an epoch ({low:.0f} to {high:.0f}), by pages that they inherited "
            "and no longer share: keep samples in arrays instead of Python lists, or use persistent_workers=False."
        )

    def _is_growth(self, line: Interval | None) -> bool:
        return line is not None and line.low > 0 and line.low * self.epoch_seconds >= GROWTH_BYTES_PER_EPOCH

    def to_dict(self) -> dict[str, Any]:
        """The report's `hold`."""
        line = self.host_slope
        return {
            "seconds": self.seconds,
            "epochs_crossed": self.epochs_crossed,
            "samples_per_second": self.samples_per_second,
            "util_percent": None if self.util is None else self.util.value,
            "util_low": None if self.util is None else self.util.low,
            "util_reason": self.util_reason,
            "fed_ratio": None if self.fed is None else self.fed.value,
            "fed_low": None if self.fed is None else self.fed.low,
            "peak_bytes": self.peak_bytes,
            "host_memory": None
            if line is None
            else {"slope_bytes_per_second": line.value, "low": line.low, "high": line.high, "grows": self.grows},
            "worker_memory": {**self.workers.to_dict(), "grows": self.workers_grow},
            "epoch_seconds": self.epoch_seconds,
            "ceiling_samples_per_second": [rate(window) for window in self.ceilings],
            "crossed_in_windows": list(self.crossed_in),
            "windows": [window.to_dict() for window in self.windows],
        }


def window_seconds(hold_seconds: float) -> float:
    """Length of one window: a twelfth, between 0.5 s and 6 s (NVML's utilization needs some seconds)."""
    return min(6.0, max(0.5, hold_seconds / 12))


def hold(
    rig: Rig,
    settings: LoaderSettings,
    *,
    seconds: float,
    expected_samples_per_second: float,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Hold:
    """Run the step on the loader for at least `seconds`, with a ceiling before, between and after.

    Args:
        expected_samples_per_second: places the epoch boundary at two fifths of the run.
        progress: called with the share done.

    Raises:
        OutOfDeviceMemoryError: the step did not fit.
    """
    length = window_seconds(seconds)
    before = math.ceil(expected_samples_per_second * seconds * 0.4)
    windows: list[Window] = []
    starts: list[float] = []
    crossed_in: list[int] = []
    workers: list[Mapping[int, int]] = []
    fed_seconds = 0.0
    ceilings = [rig.ceiling(settings.batch_size, length / 2)]
    with rig.hold(settings, samples_before_boundary=before) as run:
        group = 1
        while fed_seconds < seconds:
            run.resume()
            while fed_seconds < min(seconds, seconds * group / _GROUPS):
                starts.append(rig.clock())
                before_window = run.epochs_crossed
                windows.append(run.feed(length))
                workers.append(run.worker_bytes())
                if run.epochs_crossed > before_window:
                    crossed_in.append(len(windows) - 1)
                fed_seconds += windows[-1].wall_seconds
                if progress is not None:
                    progress(min(1.0, fed_seconds / seconds))
            ceilings.append(rig.ceiling(settings.batch_size, length / 2))
            group += 1
        crossed = run.epochs_crossed
    first = _warm_from(windows, settings, crossed_in)
    found = _summary(rig, settings, windows, ceilings, starts, crossed, seed, first)
    middles = [start + window.wall_seconds / 2 for start, window in zip(starts, windows, strict=True)]
    grown = worker_memory(middles, workers, first=first)
    return replace(found, crossed_in=tuple(crossed_in), workers=grown)


def _summary(
    rig: Rig,
    settings: LoaderSettings,
    windows: list[Window],
    ceilings: list[Window],
    starts: list[float],
    crossed: int,
    seed: int,
    first: int,
) -> Hold:
    fed_seconds = sum(window.wall_seconds for window in windows)
    speed = sum(window.samples for window in windows) / fed_seconds
    utils = [window.util_percent for window in windows]
    known = [util for util in utils if util is not None]
    peaks = [window.peak_bytes for window in windows if window.peak_bytes is not None]
    reasons = [window.util_reason for window in windows if window.util_percent is None]
    ceiling_rates = [rate(window) for window in ceilings]
    return Hold(
        seconds=fed_seconds,
        epochs_crossed=crossed,
        samples_per_second=speed,
        util=mean_interval(known, seed=seed) if len(known) == len(utils) else None,
        util_reason=reasons[0] if reasons else None,
        fed=ratio_of_means([rate(w) for w in windows], ceiling_rates, seed=seed) if min(ceiling_rates) > 0 else None,
        peak_bytes=max(peaks, default=None),
        host_slope=_host_slope(windows, starts, first),
        epoch_seconds=rig.epoch_samples(settings.batch_size) / speed,
        windows=tuple(windows),
        ceilings=tuple(ceilings),
    )


def _warm_from(windows: list[Window], settings: LoaderSettings, crossed_in: list[int]) -> int:
    """The first window whose memory counts: a third of the run later, and of worker processes 100 batches later.

    Where they are new each epoch, that is of what follows the last boundary: they settle anew, which is no growth from
    epoch to epoch.
    """
    count = len(windows)
    first = int(count * _WARM_SHARE)
    if settings.backend != "processes" or not settings.num_workers:
        return first
    begun = crossed_in[-1] + 1 if crossed_in and not settings.persistent_workers else 0
    if begun:
        first = max(first, begun + math.ceil((count - begun) * _WARM_SHARE))
    settled, batches = begun, 0
    while settled < count and batches < _SETTLING_BATCHES:
        batches += windows[settled].steps
        settled += 1
    return max(first, settled)


def _host_slope(windows: list[Window], starts: list[float], first: int) -> Interval | None:
    """One point a window (its median): samples within a window are not independent, and would feign precision."""
    late = [
        (start + window.wall_seconds / 2, median(window.host_rss_bytes))
        for start, window in list(zip(starts, windows, strict=True))[first:]
        if len(window.host_rss_bytes)
    ]
    return slope([x for x, _ in late], [y for _, y in late])
