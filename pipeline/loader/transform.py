"""Callables of users: called with random numbers that are the sample's own, and their errors with the sample's name."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..config import BackendName, LoaderConfig
from ..errors import ConfigError, TransformError, UsageError, words_of
from ..formats import Mix, RepeatedSource, Source
from ..hardware.notebook import in_notebook
from .randomness import GlobalRandomness, batch_words, generator_of, transform_words

if TYPE_CHECKING:
    from .batch import BatchTask, HostBatch

__all__ = ["BatchTransform", "Transform", "auto_backend", "locate", "takes_generator"]


def takes_generator(function: Callable[..., Any]) -> bool:
    """Whether a callable has a parameter `generator`, which it then gets its random numbers by.

    Raises:
        ConfigError: it is no callable.
    """
    if not callable(function):
        raise ConfigError("a transform must be callable", got=type(function).__name__, remedy="Give a function.")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        # Some callables written in C do not say; they cannot ask for it either.
        return False
    parameter = parameters.get("generator")
    return parameter is not None and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)


def auto_backend(function: Callable[..., Any], method: str | None, otherwise: BackendName) -> BackendName:
    """Where a transform runs best: in processes if it draws from generators that a process has once, and can go there.

    Args:
        method: how worker processes start; None for the default.
    """
    if takes_generator(function):
        return otherwise
    from .processes import start_method

    try:
        _check_picklable(function, method or start_method())
    except UsageError:
        return otherwise
    return "processes"


def locate(source: Source, row: int) -> tuple[Source, int]:
    """The stored dataset that a row is of, and its row there: not of a mix, nor of a copy that measuring repeats."""
    if isinstance(source, Mix):
        source, row = source.locate(row)
    if isinstance(source, RepeatedSource):
        row %= len(source.source)
        source = source.source
    return source, row


@dataclass(frozen=True, kw_only=True)
class Transform:
    """A callable for each sample; see `DataLoader`.

    Attributes:
        function: called as function(sample) or function(sample, generator=...).
        has_own: it takes a generator, so that several threads may call it at the same time.
        seed: as in `LoaderConfig`.
    """

    function: Callable[..., Any]
    has_own: bool
    seed: int

    @classmethod
    def of(cls, function: Callable[..., Any], config: LoaderConfig) -> Transform:
        """Raises ConfigError: it is no callable; UsageError: workers could not get it."""
        transform = cls(function=function, has_own=takes_generator(function), seed=config.seed)
        if config.settings.backend == "processes" and config.settings.num_workers:
            from .processes import start_method

            _check_picklable(function, config.multiprocessing_context or start_method())
        return transform

    def run(self, batch: HostBatch, source: Source, places: Sequence[int], samples: Iterable[tuple[int, Any]]) -> None:
        """Call it for (place, sample) pairs of these places, and keep what it gives in the batch.

        Raises:
            TransformError: it raised.
        """
        task = batch.task
        keys = task.crop_keys(batch.keys.numpy().astype("uint64"))
        words = dict(zip(places, transform_words(self.seed, task.epoch, keys[list(places)]), strict=True))
        results = batch.values.results
        if self.has_own:
            for place, sample in samples:
                results[place] = self._call(task, source, place, sample, generator=generator_of(words[place]))
            return
        with GlobalRandomness() as randomness:
            for place, sample in samples:
                randomness.seed(words[place])
                results[place] = self._call(task, source, place, sample)

    def _call(self, task: BatchTask, source: Source, place: int, sample: Any, **arguments: Any) -> Any:
        try:
            return self.function(sample, **arguments)
        except Exception as error:
            stored, row = locate(source, int(task.rows[place]))
            raise TransformError(
                "a transform must take every sample",
                got=words_of(error),
                remedy="Mend the transform; its own traceback belongs to this error.",
                dataset=stored.location,
                index=row,
                path=stored.name(row),
            ) from error


@dataclass(frozen=True, kw_only=True)
class BatchTransform:
    """A callable for each batch, on its device, in the thread of the loop; see `DataLoader`."""

    function: Callable[..., Any]
    has_own: bool
    seed: int
    rank: int
    device: torch.device

    @classmethod
    def of(cls, function: Callable[..., Any], config: LoaderConfig, device: torch.device) -> BatchTransform:
        """Raises ConfigError: it is no callable."""
        return cls(
            function=function, has_own=takes_generator(function), seed=config.seed, rank=config.rank, device=device
        )

    def __call__(self, batch: Any, task: BatchTask) -> Any:
        words = batch_words(self.seed, task.epoch, task.position_after, self.rank)
        if self.has_own:
            return self.function(batch, generator=generator_of(words, self.device))
        with GlobalRandomness(self.device) as randomness:
            randomness.seed(words)
            return self.function(batch)


def _check_picklable(function: Callable[..., Any], method: str) -> None:
    if method == "fork":
        return
    module = getattr(function, "__module__", None) or type(function).__module__
    if in_notebook() and module == "__main__":
        raise _not_for_workers(f"{function!r} of a notebook, which worker processes cannot import")
    try:
        pickle.dumps(function)
    except Exception as error:
        # What it holds may raise anything on the way.
        raise _not_for_workers(f"{function!r}: {words_of(error)}") from error


def _not_for_workers(got: str) -> UsageError:
    return UsageError(
        "a transform for backend 'processes' must be picklable where workers do not start by fork",
        got=got,
        remedy="Define it by def at the top of a module (no lambda, no function inside another), or give "
        "backend='threads' and a transform that takes generator=.",
    )
