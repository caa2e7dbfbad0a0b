"""The loaders that a tune opens: of the dataset repeated to full epochs, on several ranks of each rank's part."""

from __future__ import annotations

import math

from ...config import LoaderConfig, LoaderSettings
from ...formats import RepeatedSource, Source
from ...loader import ImageLoader, make_loader, stock_loader
from ...training import ProbeLoader
from ..ranks.together import Together
from .feed import Feed

__all__ = ["MIN_EPOCH_BATCHES", "STALL_SECONDS", "Loaders", "repeat_times"]

MIN_EPOCH_BATCHES = 200
"""Smaller sets are repeated to this many batches an epoch (design section 7)."""

STALL_SECONDS = 120.0
"""For one call of the step, and for one batch of a loader."""


def repeat_times(samples: int, batch_size: int) -> int:
    """How often a set of this many samples is repeated so that an epoch has at least 200 batches.

    Args:
        samples: of the set.
        batch_size: of all ranks together.
    """
    return max(1, math.ceil(MIN_EPOCH_BATCHES * batch_size / samples))


class Loaders:
    """Opens loaders that differ in their settings alone; whoever opens one closes it.

    Args:
        source: the dataset; not closed here.
        torch_device: where batches go.
        image_size: side of the square crops, in pixels.
        seed: of order and augmentation.
        together: the ranks, each of which has its part of the dataset.
    """

    def __init__(self, source: Source, torch_device: str, *, image_size: int, seed: int, together: Together) -> None:
        self._source = source
        self._torch_device = torch_device
        self._image_size = image_size
        self._seed = seed
        self._together = together

    def open(self, settings: LoaderSettings, source: Source | None = None) -> ImageLoader:
        """A loader with these settings, of another source where one is given."""
        config = LoaderConfig(
            settings=settings,
            shuffle=True,
            seed=self._seed,
            tail="drop",
            augment="train",
            image_size=self._image_size,
            device=self._torch_device,
            timeout=STALL_SECONDS,
            rank=self._together.rank,
            world_size=self._together.world_size,
        )
        return make_loader(self._repeated(settings.batch_size, source), config)

    def feed(self, settings: LoaderSettings | None, batch_size: int) -> Feed:
        """The same as endless batches; without settings it is stock torch's loader."""
        if settings is not None:
            return Feed(self.open(settings))
        return Feed(
            stock_loader(
                self._repeated(batch_size),
                batch_size=batch_size,
                image_size=self._image_size,
                seed=self._seed + self._together.rank,
            )
        )

    def of_probe(self, settings: LoaderSettings, batch_size: int) -> ProbeLoader:
        """What a probe's child process opens."""
        times = repeat_times(len(self._source), batch_size)
        return ProbeLoader(data=self._source.location, settings=settings, seed=self._seed, times=times)

    def epoch_samples(self, batch_size: int) -> int:
        """Samples of an epoch on this rank."""
        ranks = self._together.world_size
        return len(self._source) * repeat_times(len(self._source), batch_size * ranks) // ranks

    def position_before_end(self, loader: ImageLoader, samples: int) -> int:
        """Position, in whole batches of all ranks, from which this one has about so many samples left in the epoch."""
        batch_size = loader.config.settings.batch_size
        left = max(1, math.ceil(samples / batch_size))
        return max(0, len(loader) - left) * batch_size * self._together.world_size

    def _repeated(self, batch_size: int, source: Source | None = None) -> Source:
        source = source or self._source
        times = repeat_times(len(source), batch_size * self._together.world_size)
        return source if times == 1 else RepeatedSource(source, times)
