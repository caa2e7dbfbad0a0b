"""A rig that keeps what another one answers, and a rig that answers from what was kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import numpy as np

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.errors import WellfedError
from wellfed.pipeline.training.variants import Variant
from wellfed.pipeline.tune.measure.evidence import ResizeGain
from wellfed.pipeline.tune.rig import (
    Cache,
    HeldRun,
    Order,
    OutOfDeviceMemoryError,
    Probe,
    Rig,
    Supply,
    Trial,
    UnmeasuredError,
    Window,
)

from .recording import Answer, MissingCallError, Recording, key_of, stored_value


class _SearchOnly:
    """What a tune asks once the search is over: not recorded, and refused by name."""

    def probe_variant(self, batch_size: int, variant: Variant) -> Probe:
        _refuse("probe_variant")

    def supplied(self, settings: LoaderSettings, supply: Supply, seconds: float) -> Window:
        _refuse("supplied")

    def parallel_read_rate(self, readers: int, seconds: float) -> float:
        _refuse("parallel_read_rate")

    def sample_seconds(self, seconds: float) -> Sequence[float]:
        _refuse("sample_seconds")

    def resize_gain(self, settings: LoaderSettings, seconds: float) -> ResizeGain | None:
        _refuse("resize_gain")

    def boundary_seconds(self, settings: LoaderSettings) -> float:
        _refuse("boundary_seconds")

    def hold(self, settings: LoaderSettings, *, samples_before_boundary: int) -> AbstractContextManager[HeldRun]:
        _refuse("hold")


def _refuse(call: str) -> NoReturn:
    raise NotImplementedError(f"{call} follows the search, and only the search is recorded")


class _Asked(_SearchOnly):
    """Every call of a search, turned into its key and the same call of another rig."""

    def _answer(self, call: str, key: str, ask: Callable[[Rig], Any], *, opens: str | None = None) -> Any:
        raise NotImplementedError

    def probe(self, batch_size: int, settings: LoaderSettings | None = None) -> Probe:
        # With a loader, settings of one backend stand for each other: their probes differ by a few batches, cost ten
        # seconds each, and the memory of every point is in its own windows too.
        key = probe_key(batch_size, None if settings is None else settings.backend)
        return self._answer("probe", key, lambda rig: rig.probe(batch_size, settings))  # type: ignore[no-any-return]

    def ceiling(self, batch_size: int, seconds: float) -> Window:
        key = key_of("ceiling", batch_size=batch_size)
        return self._answer(  # type: ignore[no-any-return]
            "ceiling", key, lambda rig: rig.ceiling(batch_size, seconds), opens=f"step {batch_size}"
        )

    def fed(self, trial: Trial, seconds: float) -> Window:
        key = fed_key(trial.settings, trial.batch_size)
        return self._answer(  # type: ignore[no-any-return]
            "fed", key, lambda rig: rig.fed(trial, seconds), opens=f"loader {trial.id}"
        )

    def loader_alone(self, settings: LoaderSettings, seconds: float) -> float:
        key = key_of("loader_alone", settings=settings)
        return self._number("loader_alone", key, lambda rig: rig.loader_alone(settings, seconds))

    def stock_alone(self, batch_size: int, seconds: float) -> float:
        key = key_of("stock_alone", batch_size=batch_size)
        return self._number("stock_alone", key, lambda rig: rig.stock_alone(batch_size, seconds))

    def beside(self, settings: LoaderSettings, every: int, seconds: float) -> Window:
        key = key_of("beside", settings=settings, every=every)
        return self._answer(  # type: ignore[no-any-return]
            "beside", key, lambda rig: rig.beside(settings, every, seconds)
        )

    def read_rate(self, seconds: float) -> float:
        return self._number("read_rate", key_of("read_rate"), lambda rig: rig.read_rate(seconds))

    def reads(self, order: Order, cache: Cache, seconds: float) -> float:
        key = key_of("reads", order=order, cache=cache)
        return self._number("reads", key, lambda rig: rig.reads(order, cache, seconds))

    def copy_rate(self, batch_size: int, seconds: float, *, pinned: bool) -> float:
        key = key_of("copy_rate", batch_size=batch_size, pinned=pinned)
        return self._number("copy_rate", key, lambda rig: rig.copy_rate(batch_size, seconds, pinned=pinned))

    def epoch_samples(self, batch_size: int) -> int:
        key = key_of("epoch_samples", batch_size=batch_size)
        return int(self._number("epoch_samples", key, lambda rig: rig.epoch_samples(batch_size)))

    def _number(self, call: str, key: str, ask: Callable[[Rig], Any]) -> float:
        return self._answer(call, key, ask)  # type: ignore[no-any-return]


def probe_key(batch_size: int, backend: str | None = None) -> str:
    """Of a probe of the step, alone or with a loader of this backend."""
    return key_of("probe", batch_size=batch_size, backend=backend)


def fed_key(settings: LoaderSettings | None, batch_size: int) -> str:
    """Of a trial's windows."""
    return key_of("fed", settings=settings, batch_size=batch_size)


def _of_stock(key: str) -> bool:
    call, arguments = json.loads(key)
    return call == "fed" and arguments["settings"] is None


class RecordingRig(_Asked):
    """Asks a rig, and keeps each answer with the seconds that it took, errors included."""

    def __init__(self, rig: Rig, recording: Recording) -> None:
        self.recording = recording
        self._rig = rig
        self._open: set[str] = set()

    def clock(self) -> float:
        return self._rig.clock()

    def compiling_seconds(self) -> float:
        return self._rig.compiling_seconds()

    def drop(self, trial: Trial) -> None:
        self._open.discard(f"loader {trial.id}")
        self._rig.drop(trial)

    def release_device(self) -> None:
        self._open.clear()
        self._rig.release_device()

    def _answer(self, call: str, key: str, ask: Callable[[Rig], Any], *, opens: str | None = None) -> Any:
        first = opens is not None and opens not in self._open
        began = self._rig.clock()
        try:
            value = ask(self._rig)
        except (WellfedError, OutOfDeviceMemoryError, UnmeasuredError) as error:
            seconds = self._rig.clock() - began
            self.recording.add(key, Answer(seconds, first, raised=type(error).__name__, message=str(error)))
            raise
        self.recording.add(key, Answer(self._rig.clock() - began, first, stored_value(call, value)))
        if opens is not None:
            self._open.add(opens)
        return value


class PlaybackRig(_Asked):
    """Answers from a recording, on a virtual clock: each call takes one of its recorded answers at random.

    Args:
        recording: of another rig.
        seed: settles which answers are taken.

    Attributes:
        spent: virtual seconds by the call's name; those of stock torch, which is no point of a grid, as "stock".
    """

    def __init__(self, recording: Recording, *, seed: int) -> None:
        self.recording = recording
        self.spent: dict[str, float] = {}
        self._random = np.random.default_rng(seed)
        self._now = 0.0
        self._open: set[str] = set()

    def clock(self) -> float:
        return self._now

    def compiling_seconds(self) -> float:
        """None: what first calls took lies in the recorded seconds, and all of these count."""
        return 0.0

    def drop(self, trial: Trial) -> None:
        self._open.discard(f"loader {trial.id}")

    def release_device(self) -> None:
        self._open.clear()

    def _answer(self, call: str, key: str, ask: Callable[[Rig], Any], *, opens: str | None = None) -> Any:
        answers = self.recording.calls.get(key)
        if not answers:
            raise MissingCallError(key, ask)
        answer = self._one_of(answers)
        # What opening takes belongs to whichever window comes first, not to the one that was first when recorded.
        first = opens is not None and opens not in self._open
        alike = [one for one in answers if one.first == first]
        seconds = answer.seconds if opens is None or not alike else self._one_of(alike).seconds
        if opens is not None:
            self._open.add(opens)
        self._now += seconds
        spent_on = "stock" if _of_stock(key) else call
        self.spent[spent_on] = self.spent.get(spent_on, 0.0) + seconds
        return answer.replayed(call)

    def _one_of(self, answers: Sequence[Answer]) -> Answer:
        return answers[int(self._random.integers(len(answers)))]
