"""A rig over several ranks: rank 0 decides, and what it measures, every rank measures with it at the same time.

Decisions are made once, on rank 0, from the outcomes of all ranks, so that ranks cannot decide differently. The other
ranks follow: they take each call from the store, do it on their own rig, and give what came out of it.
"""

from __future__ import annotations

import math
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import mean
from types import FrameType
from typing import Any

from ...config import LoaderSettings
from ...training.variants import Variant
from ..measure.evidence import ResizeGain
from ..rig import Cache, HeldRun, Order, Probe, Rig, Supply, Trial, Window
from .agreement import Ranks, pack_error
from .window import RanksWindow, joined_probe

__all__ = ["RanksRig", "follow"]

_PID_BITS = 32
_END = "end of the tune"
_FAIL = "error of rank 0"


@dataclass(frozen=True)
class _Outcome:
    value: Any
    compiling_seconds: float


class _Hands:
    """Does calls on this rank's rig; holds what stays open between them."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._stack = ExitStack()
        self._held: HeldRun | None = None

    def do(self, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> _Outcome:
        own = getattr(self, f"_do_{name}", None)
        work: Callable[..., Any] = getattr(self._rig, name) if own is None else own
        return _Outcome(work(*arguments, **keywords), self._rig.compiling_seconds())

    def close(self) -> None:
        self._held = None
        self._stack.close()

    def _do_hold(self, settings: LoaderSettings, samples_before_boundary: int) -> None:
        held = self._rig.hold(settings, samples_before_boundary=samples_before_boundary)
        self._held = self._stack.enter_context(held)

    def _do_held_resume(self) -> None:
        self._open_hold().resume()

    def _do_held_feed(self, seconds: float) -> tuple[Window, Mapping[int, int]]:
        held = self._open_hold()
        return held.feed(seconds), held.worker_bytes()

    def _do_held_end(self) -> None:
        self.close()

    def _open_hold(self) -> HeldRun:
        if self._held is None:
            raise ValueError("a held run is fed between its beginning and its end")
        return self._held

    @property
    def epochs_crossed(self) -> int:
        return 0 if self._held is None else self._held.epochs_crossed


class RanksRig:
    """Implements `rig.Rig` on rank 0; a context manager that ends the other ranks' following.

    Rates, samples and memory are of one rank, the slowest and the fullest.

    Args:
        rig: of this rank; not closed here.
        ranks: all of them.
    """

    def __init__(self, rig: Rig, ranks: Ranks) -> None:
        self._rig = rig
        self._ranks = ranks
        self._hands = _Hands(rig)
        self._calls = 0
        self._compiling = 0.0

    def _each(self, name: str, *arguments: Any, **keywords: Any) -> list[Any]:
        if self._ranks.interrupted():
            raise KeyboardInterrupt
        self._send((name, arguments, keywords))
        found = self._ranks.gather(lambda: self._hands.do(name, arguments, keywords))
        self._compiling = max(self._compiling, *(one.compiling_seconds for one in found))
        return [one.value for one in found]

    def _send(self, message: Any) -> None:
        self._calls += 1
        self._ranks.put(f"call/{self._calls}", message)

    def end(self, result: Any) -> None:
        """No call follows: the other ranks' `follow` returns this."""
        self._hands.close()
        self._send((_END, result))

    def fail(self, error: BaseException) -> None:
        """No call follows: the other ranks' `follow` raises this."""
        self._hands.close()
        self._send((_FAIL, pack_error(error, None)))

    def clock(self) -> float:
        return self._rig.clock()

    def compiling_seconds(self) -> float:
        """The most of any rank: the others wait for it."""
        return self._compiling

    def probe(self, batch_size: int, settings: LoaderSettings | None = None) -> Probe:
        return joined_probe(self._each("probe", batch_size, settings))

    def probe_variant(self, batch_size: int, variant: Variant) -> Probe:
        return joined_probe(self._each("probe_variant", batch_size, variant))

    def _window(self, name: str, *arguments: Any) -> Window:
        return RanksWindow(tuple(self._each(name, *arguments)))

    def ceiling(self, batch_size: int, seconds: float) -> Window:
        return self._window("ceiling", batch_size, seconds)

    def fed(self, trial: Trial, seconds: float) -> Window:
        return self._window("fed", trial, seconds)

    def beside(self, settings: LoaderSettings, every: int, seconds: float) -> Window:
        return self._window("beside", settings, every, seconds)

    def supplied(self, settings: LoaderSettings, supply: Supply, seconds: float) -> Window:
        return self._window("supplied", settings, supply, seconds)

    def drop(self, trial: Trial) -> None:
        self._each("drop", trial)

    def release_device(self) -> None:
        self._each("release_device")

    def loader_alone(self, settings: LoaderSettings, seconds: float) -> float:
        return float(min(self._each("loader_alone", settings, seconds)))

    def stock_alone(self, batch_size: int, seconds: float) -> float:
        return float(min(self._each("stock_alone", batch_size, seconds)))

    def read_rate(self, seconds: float) -> float:
        return float(min(self._each("read_rate", seconds)))

    def parallel_read_rate(self, readers: int, seconds: float) -> float:
        return float(min(self._each("parallel_read_rate", readers, seconds)))

    def sample_seconds(self, seconds: float) -> Sequence[float]:
        slowest: Sequence[float] = max(self._each("sample_seconds", seconds), key=lambda each: mean(each or [0.0]))
        return slowest

    def resize_gain(self, settings: LoaderSettings, seconds: float) -> ResizeGain | None:
        gains: list[ResizeGain | None] = self._each("resize_gain", settings, seconds)
        known = [gain for gain in gains if gain is not None]
        return min(known, key=lambda gain: gain.ratio.value) if len(known) == len(gains) else None

    def reads(self, order: Order, cache: Cache, seconds: float) -> float:
        return float(min(self._each("reads", order, cache, seconds)))

    def copy_rate(self, batch_size: int, seconds: float, *, pinned: bool) -> float:
        return float(min(self._each("copy_rate", batch_size, seconds, pinned=pinned)))

    def boundary_seconds(self, settings: LoaderSettings) -> float:
        return float(max(self._each("boundary_seconds", settings)))

    @contextmanager
    def hold(self, settings: LoaderSettings, *, samples_before_boundary: int) -> Iterator[_RanksHold]:
        self._each("hold", settings, samples_before_boundary)
        try:
            yield _RanksHold(self._each, self._hands)
        finally:
            self._each("held_end")

    def epoch_samples(self, batch_size: int) -> int:
        return self._rig.epoch_samples(batch_size)


class _RanksHold:
    def __init__(self, each: Callable[..., list[Any]], hands: _Hands) -> None:
        self._each = each
        self._hands = hands
        self._worker_bytes: Mapping[int, int] = {}

    @property
    def epochs_crossed(self) -> int:
        return self._hands.epochs_crossed

    def resume(self) -> None:
        self._each("held_resume")

    def feed(self, seconds: float) -> Window:
        found = self._each("held_feed", seconds)
        # Ranks on several machines may have the same process numbers.
        self._worker_bytes = {
            rank << _PID_BITS | pid: size for rank, (_, read) in enumerate(found) for pid, size in read.items()
        }
        return RanksWindow(tuple(window for window, _ in found))

    def worker_bytes(self) -> Mapping[int, int]:
        return self._worker_bytes


def follow(rig: Rig, ranks: Ranks) -> Any:
    """Do what rank 0 asks for until it ends, and return what it gives then.

    Ctrl-C on this rank ends the tune on all of them, at the next piece of work that may be left.

    Raises:
        WellfedError, KeyboardInterrupt: what ended rank 0.
        ResourceError: rank 0 is gone.
    """
    hands = _Hands(rig)
    number = 0
    with closing(hands), _interrupts(ranks):
        while True:
            number += 1
            ranks.wait([f"call/{number}"], limit=math.inf)
            name, *rest = ranks.take(f"call/{number}")
            if name == _END:
                return rest[0]
            if name == _FAIL:
                raise pickle.loads(rest[0])
            # Where it failed, rank 0 has the same failure, and decides what follows.
            ranks.attempt(partial(hands.do, name, *rest))


@contextmanager
def _interrupts(ranks: Ranks) -> Iterator[None]:
    """Between pieces of work an interrupt is only told to rank 0, which decides: it may have a result to give."""
    now = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or now in (signal.SIG_IGN, None):
        yield
        return
    told = False

    def tell(number: int, frame: FrameType | None) -> None:
        nonlocal told
        if told or ranks.working:
            raise KeyboardInterrupt
        told = True
        ranks.interrupt()

    signal.signal(signal.SIGINT, tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, now)
