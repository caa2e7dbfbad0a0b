"""The few points worth measuring, picked from the predictions of all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ...config import LoaderSettings
from .bottleneck import Model, Predictions
from .points import Points
from .prediction import Prediction
from .space import TIE

_WORTH = 0.85  # predictions err, but not by more than this without the two-point fit showing it
_HEADROOM = 1.05  # a loader must be this much faster than the step to feed it despite jitter
_SHARE_STEP = 0.15
_FEW = 4  # what is close to others by its settings is better proposed once those have been measured
_LOOK = 0.75  # another backend or batch size is looked at from this share of the best prediction on


@dataclass(frozen=True)
class Pick:
    """A point to measure and what is predicted of it."""

    settings: LoaderSettings
    prediction: Prediction


class Shortlist:
    """Ranks the points by a model and hands out those that differ enough to teach something.

    Args:
        points: all that may be chosen.
        model: their batch sizes and backends, where it knows them.
        cap_bytes: points predicted to take more device memory are left out; None for no cap.
        unfit: settings whose loader did not fit beside the step: they are left out, and those that hold no less there.
    """

    def __init__(
        self, points: Points, model: Model, *, cap_bytes: float | None = None, unfit: Sequence[LoaderSettings] = ()
    ) -> None:
        found = model.predict_all(points)
        known = ~np.isnan(found.samples_per_second)
        if cap_bytes is not None:
            known &= ~(found.device_bytes >= cap_bytes)  # what is not known may fit
        for settings in unfit:
            known &= ~_no_smaller(points, settings)
        self._model = model
        self._points = points.take(known)
        self._rate = found.samples_per_second[known]
        self._enough = _enough(points, found, model)[known]
        # Of equals, what surely takes nothing from the step goes before what may.
        self._order = [model.takes_unknown(self._points), *self._points.smallest_first()]

    def __len__(self) -> int:
        return len(self._points)

    def pick(self, count: int) -> list[Pick]:
        """The points to measure, the most promising first, at most `count`.

        First the smallest point within a tie of the best; then, while places are left, the same with all workers, the
        best of every other backend, the next larger and the next smaller batch size, another share for the device and
        deeper prefetch; where these are but a few, more by their predictions. Other backends and batch sizes that are
        predicted far behind are left out: opening a loader costs more than its window. So is nvJPEG where DALI, which
        decodes with the same library, is predicted to do as well.
        """
        if not len(self) or count < 1:
            return []
        points, chosen = self._points, self._first()
        top = chosen[0]
        of_batch = (points.batch_size == points.batch_size[top]) & (points.num_workers > 0)
        most = points.num_workers[of_batch].max(initial=0)
        own = points.backend == points.backend[top]
        # With all workers whatever was predicted: beside the step fewer may not do, and a short measurement errs.
        pools = [of_batch & own & (points.num_workers == most)]
        outdone = self._outdone(of_batch)
        promising = (self._rate >= _LOOK * self._rate.max()) & ~outdone
        pools += [of_batch & (points.backend == backend) for backend in self._by_rate(of_batch & ~own & promising)]
        sizes = np.unique(points.batch_size)
        for near in (sizes[sizes > points.batch_size[top]][:1], sizes[sizes < points.batch_size[top]][-1:]):
            pools.append(own & np.isin(points.batch_size, near) & self._enough & promising)
        like = own & of_batch & (points.num_workers == points.num_workers[top])
        pools.append(like & (np.abs(points.gpu_share - points.gpu_share[top]) >= _SHARE_STEP))
        pools.append(like & (points.prefetch_factor > points.prefetch_factor[top]))
        for pool in pools:
            self._add(chosen, pool, count)
        worth = (self._rate >= _WORTH * self._rate.max()) & ~outdone
        while len(chosen) < min(count, _FEW) and self._add(chosen, worth, count):
            pass
        return [self._pick(place) for place in chosen]

    def better_than(self, speed: float, measured: Collection[LoaderSettings], count: int) -> list[Pick]:
        """Points not yet measured that are predicted to beat this many samples/s by more than a tie, the best first.

        At most `count`, each of another backend or batch size than those before it.
        """
        pool = self._rate > (1 + TIE) * speed
        chosen: list[int] = []
        while len(chosen) < count and (place := self._best(pool)) is not None:
            points = self._points
            alike = (points.backend == points.backend[place]) & (points.batch_size == points.batch_size[place])
            if points.at(place) in measured:
                pool = pool & (np.arange(len(pool)) != place)
                continue
            chosen.append(place)
            pool = pool & ~alike
        return [self._pick(place) for place in chosen]

    def _pick(self, place: int) -> Pick:
        settings = self._points.at(place)
        prediction = self._model.predict(settings)
        if prediction is None:
            raise AssertionError("a point without a prediction was ranked")
        return Pick(settings, prediction)

    def _first(self) -> list[int]:
        near = np.flatnonzero(self._rate >= (1 - TIE) * self._rate.max())
        keys = [~self._enough, *self._order, -self._rate]
        return [int(near[np.lexsort([key[near] for key in reversed(keys)])[0]])]

    def _best(self, mask: np.ndarray) -> int | None:
        """The best prediction, and of those within a tie the smallest."""
        pool = np.flatnonzero(mask)
        if not len(pool):
            return None
        keys = [-np.round(self._rate / self._rate.max() / TIE), *self._order]
        return int(pool[np.lexsort([key[pool] for key in reversed(keys)])[0]])

    def _outdone(self, mask: np.ndarray) -> np.ndarray:
        """Points of nvJPEG, where the mask's best of them is not predicted to beat the best of DALI."""
        nvjpeg, dali = self._points.of_backend("nvjpeg"), self._points.of_backend("dali")
        best = [float(self._rate[mask & backend].max(initial=0.0)) for backend in (nvjpeg, dali)]
        return nvjpeg & (best[0] <= (1 + TIE) * best[1])

    def _by_rate(self, mask: np.ndarray) -> list[int]:
        """The backends of these points, the one with the best prediction first."""
        backends = self._points.backend
        best = {int(b): float(self._rate[mask & (backends == b)].max()) for b in np.unique(backends[mask])}
        return sorted(best, key=lambda backend: (-best[backend], backend))

    def _add(self, chosen: list[int], mask: np.ndarray, count: int) -> bool:
        """Add the best of the mask that is not chosen yet, where there is room."""
        if len(chosen) >= count:
            return False
        fresh = mask.copy()
        fresh[chosen] = False
        place = self._best(fresh)
        if place is None:
            return False
        chosen.append(place)
        return True


def _no_smaller(points: Points, settings: LoaderSettings) -> np.ndarray:
    """Points of the same backend that hold at least as much on the device: no value is below the settings' own."""
    mask = points.of_backend(settings.backend)
    for name in ("batch_size", "num_workers", "prefetch_factor", "gpu_share"):
        mask = mask & (getattr(points, name) >= getattr(settings, name))
    return mask


def _enough(points: Points, found: Predictions, model: Model) -> np.ndarray:
    """Where the loader outruns the step with some headroom, or nothing faster exists with this backend."""
    enough = np.zeros(len(points), dtype=bool)
    ceiling = np.array([model.ceilings.get(int(size), np.nan) for size in points.batch_size])
    first, inverse = points.unique_rows("backend", "batch_size")
    for number in range(len(first)):
        mine = inverse == number
        fastest = np.nanmax(found.loader[mine], initial=0.0)
        with np.errstate(invalid="ignore"):
            enough[mine] = (found.loader >= np.minimum(_HEADROOM * ceiling, 0.98 * fastest))[mine]
    return enough
