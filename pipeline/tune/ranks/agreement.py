"""Ranks that agree: each piece of work begins on all of them together, and has one outcome on all.

They meet in a store of torch.distributed (a small key-value server in rank 0's process), not in collectives: a rank
that failed can still say so, nobody waits for it in an operation that cannot be left, and the step's own collectives
are never mixed with ours.
"""

from __future__ import annotations

import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Protocol, TypeVar

import torch

from ...errors import ResourceError, WellfedError, follows_interrupt, words_of
from ...training import is_out_of_memory
from ...training.process_group import ProbeGroup
from ..rig import OutOfDeviceMemoryError, UnmeasuredError
from .pace import Pace
from .store import KeptStore, serve_store
from .together import GoOn

__all__ = ["Ranks", "StepGroup", "pack_error"]

T = TypeVar("T")

WAIT_SECONDS = 600.0
"""For the other ranks, once this one is done: longer than the longest call may be without an error of its own."""

FREE_SECONDS = 10.0
"""For a rank to end its own part of what another one failed in, before its collectives are aborted."""

TOLD_SECONDS = 30.0
INTERRUPTED_SECONDS = 8.0
PART_SECONDS = 8.0
PART_BYTES = 4 << 20
"""A message to torch's TCPStore holds 8 MiB at most; a report with all its raw samples may be larger."""

_FIRST_POLL_SECONDS = 0.0002
_LONGEST_POLL_SECONDS = 0.005
_WATCH_SECONDS = 0.5
_LEFT = "left"
_INTERRUPT = "interrupt"
_ON_RANK = "_on_rank"  # an exception that all ranks have


class _OtherRankFailedError(Exception):
    """Ends this rank's part of what another one failed in; replaced by that one's error before anybody sees it."""


class StepGroup(Protocol):
    """See `training.process_group.OwnGroup`."""

    @property
    def can_abort(self) -> bool: ...
    def abort(self) -> None: ...
    def make_again(self) -> None: ...


class Ranks:
    """Implements `Together` for several ranks that share a store.

    Pieces of work may lie within each other; a rank that failed in an outer one is not waited for in an inner one.

    Args:
        store: of torch.distributed, used by nobody else.
        rank, world_size: of this process.
        host: of rank 0.
        serve: opens a store for the children of a probe, on rank 0.
        wait_seconds: for other ranks, after which one that says nothing is an error.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        *,
        host: str = "127.0.0.1",
        serve: Callable[[str], Any] = serve_store,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.store = KeptStore(store)
        self.rank = rank
        self.world_size = world_size
        self._host = host
        self._group: StepGroup | None = None
        self._serve = serve
        self._children_meet: Any = None
        self._wait_seconds = wait_seconds
        self.working = False
        self._open: list[str] = []
        self._inner = [0]
        self._windows = [0]

    def agreed(self, work: Callable[[], T]) -> T:
        """See `Together`; what it returns is this rank's own.

        Raises:
            ResourceError: a rank did not answer in time, or ended.
        """
        own: list[T] = []
        self.gather(lambda: own.append(work()))
        return own[0]

    def gather(self, work: Callable[[], T]) -> list[T]:
        """The same, and every rank gets what all of them returned, by rank; it must pickle."""
        failure, values = self.attempt(work)
        # Outside of any handler: a cause or context of this rank's own would make the error another one here.
        if failure is not None:
            raise failure
        return values

    def attempt(self, work: Callable[[], T]) -> tuple[BaseException | None, list[T]]:
        """The same; the failure is returned, and only what keeps ranks from agreeing is raised."""
        level = self._enter()
        try:
            value = self._do(level, work)
            self.put(f"{level}/end/{self.rank}", value)
            self._wait_for_ends(level)
            if self.store.check([f"{level}/failed"]):
                return pickle.loads(self.store.get(f"{level}/failure/1")), []
            return None, [self.take(f"{level}/end/{rank}") for rank in range(self.world_size)]
        finally:
            self._leave()

    def _do(self, level: str, work: Callable[[], Any]) -> Any:
        try:
            self.meet(f"{level}/begin", within=self._open[:-1])
            with self._freed():
                self.working = True
                return work()
        except _OtherRankFailedError:
            return None
        except BaseException as caught:
            error = KeyboardInterrupt() if follows_interrupt(caught) else caught
            shared = pack_error(error, self.rank)
            # The first one counts: what other ranks raise after it may only follow from it.
            number = self.store.add(f"{level}/failures", 1)
            self.store.set(f"{level}/failure/{number}", shared)
            self.store.set(f"{level}/failed", b"1")
            if isinstance(error, KeyboardInterrupt):
                self.interrupt()  # also where another rank's error came first
            return None
        finally:
            self.working = len(self._open) > 1

    def _wait_for_ends(self, level: str) -> None:
        keys = [f"{level}/end/{rank}" for rank in range(self.world_size)]
        if not self.interrupted():
            self.wait(keys, within=self._open[:-1], told=self._told(level))
            return
        try:
            # torchrun interrupts the others where one was killed, and kills them after half a minute.
            self.wait(keys, within=self._open[:-1], limit=min(INTERRUPTED_SECONDS, self._wait_seconds))
        except ResourceError:
            raise KeyboardInterrupt from None

    def _told(self, level: str) -> str | None:
        """What this rank says where the others do not come back: a group that is not ours cannot be ended."""
        if not self.store.check([f"{level}/failed"]):
            return None
        return f"wellfed: {pickle.loads(self.store.get(f'{level}/failure/1'))} The other ranks still wait in the step."

    def _enter(self) -> str:
        self._inner[-1] += 1
        above = f"{self._open[-1]}." if self._open else ""
        self._open.append(f"{above}{self._inner[-1]}")
        self._inner.append(0)
        self._windows.append(0)
        return self._open[-1]

    def _leave(self) -> None:
        self._open.pop()
        self._inner.pop()
        self._windows.pop()

    def pace(self, seconds: float, max_steps: int | None, turn: int = 1) -> GoOn:
        self._windows[-1] += 1
        window = f"{self._open[-1] if self._open else ''}/window/{self._windows[-1]}"
        self.meet(f"{window}/begin", within=self._open)
        within = tuple(self._open)

        def post(number: int, elapsed: float) -> None:
            self.store.set(f"{window}/{number}/{self.rank}", repr(elapsed))

        def collect(number: int) -> list[float]:
            keys = [f"{window}/{number}/{rank}" for rank in range(self.world_size)]
            self.wait(keys, within=within)
            return [float(self.store.get(key)) for key in keys]

        return Pace(post, collect, seconds=seconds, max_steps=max_steps, turn=turn)

    def _failed_level(self) -> str | None:
        """The innermost piece of work of this rank's that failed on some rank; None where none did."""
        levels = [level for level in reversed(tuple(self._open)) if self.store.check([f"{level}/failed"])]
        return levels[0] if levels else _LEFT if self.store.check([_LEFT]) else None

    @contextmanager
    def _freed(self) -> Iterator[None]:
        """End a collective in which this rank waits for one that failed; its own error then counts as the later one."""
        group = self._group
        if group is None or not group.can_abort or self.working:  # then an outer piece of work watches
            yield
            return
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_WATCH_SECONDS):
                failed = self._failed_level()
                # First this rank is given time to notice by itself, at the end of its step.
                if failed is not None and not over.wait(FREE_SECONDS) and self._failed_level() == failed:
                    group.abort()
                    return

        watcher = threading.Thread(target=watch, name="wellfed-ranks", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def recover(self) -> None:
        if self._group is not None:
            self._group.make_again()

    def probe_group(self) -> ProbeGroup:
        level = self._open[-1]
        if self.rank == 0:
            # One for each group of children: in a store that served another one they would find its addresses.
            self._children_meet = self._serve(self._host)
            self.store.set(f"{level}/port", str(self._children_meet.port))
        self.wait([f"{level}/port"], within=self._open)
        return ProbeGroup(
            rank=self.rank,
            world_size=self.world_size,
            host=self._host,
            port=int(self.store.get(f"{level}/port")),
            cancelled=lambda: self.store.check([f"{level}/unprobed"]) or self._failed_level() is not None,
        )

    def tell_unprobed(self) -> None:
        self.store.set(f"{self._open[-1]}/unprobed", b"1")

    def interrupt(self) -> None:
        """Somebody wants the tune to end: rank 0 looks for it before each piece of work."""
        self.store.set(_INTERRUPT, b"1")

    def interrupted(self) -> bool:
        return bool(self.store.check([_INTERRUPT]))

    def leave(self, error: BaseException) -> None:
        """This rank ends with an error outside of any piece of work: whoever waits for it raises the same."""
        # Where rank 0 is gone nobody is told, and this error is to be seen, not that one.
        with suppress(ResourceError):
            self.store.set(_LEFT, pack_error(error, self.rank))

    def use(self, group: StepGroup) -> None:
        """The group that the step's collectives use from here on."""
        self._group = group

    def part(self) -> None:
        """Rank 0 waits until the others need its store no more; one that is gone is not waited for long."""
        with suppress(ResourceError):  # rank 0 is gone, and with it whom there was to tell
            self.store.set(f"part/{self.rank}", b"1")
            poll, waited = 0.01, 0.0
            others = [f"part/{rank}" for rank in range(1, self.world_size)]
            while self.rank == 0 and waited < PART_SECONDS and not self.store.check(others):
                time.sleep(poll)
                waited += poll

    def put(self, key: str, value: Any) -> None:
        """Leave something for the other ranks, of any size."""
        data = pickle.dumps(value)
        parts = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
        for number, part in enumerate(parts):
            self.store.set(f"{key}/{number}", part)
        self.store.set(key, str(len(parts)))

    def take(self, key: str) -> Any:
        """What was put there; the key is there already."""
        return pickle.loads(b"".join(self.store.get(f"{key}/{n}") for n in range(int(self.store.get(key)))))

    def meet(self, place: str, *, within: Sequence[str] = ()) -> None:
        """Wait until all ranks are here."""
        self.store.set(f"{place}/{self.rank}", b"1")
        self.wait([f"{place}/{rank}" for rank in range(self.world_size)], within=within)

    def wait(
        self, keys: list[str], *, within: Sequence[str] = (), limit: float | None = None, told: str | None = None
    ) -> None:
        """Wait until all of these keys are there.

        Args:
            within: pieces of work in which a failure of another rank ends the waiting.
            limit: seconds without an answer that are an error; None takes those of this object.
            told: written to stderr once it takes long.
        """
        limit = self._wait_seconds if limit is None else limit
        poll, waited, before = _FIRST_POLL_SECONDS, 0.0, time.monotonic()
        while not self.store.check(keys):
            if any(self.store.check([f"{level}/failed"]) for level in within):
                raise _OtherRankFailedError
            if self.store.check([_LEFT]):
                raise pickle.loads(self.store.get(_LEFT))
            if waited > limit:
                self._not_there(keys, limit)
            if told is not None and waited > TOLD_SECONDS:
                sys.stderr.write(f"{told}\n")
                told = None
            time.sleep(poll)
            poll = min(1.5 * poll, _LONGEST_POLL_SECONDS)
            now = time.monotonic()
            # A machine that was suspended has not waited.
            waited, before = waited + min(now - before, 1.0), now

    def _not_there(self, keys: Sequence[str], limit: float) -> NoReturn:
        missing = [key.rpartition("/")[2] for key in keys if not self.store.check([key])]
        raise ResourceError(
            "all ranks measure together, so each must answer",
            got=f"nothing from rank {', '.join(missing)} for {limit:g} s",
            remedy="Call tune() on every rank, or look into that rank's log for what ended or holds it.",
        )


def pack_error(error: BaseException, rank: int | None) -> bytes:
    """An exception for all ranks; what may not pickle goes as its words.

    Args:
        rank: that it is of, to be named in it; None names none.
    """
    if isinstance(error, KeyboardInterrupt):
        return pickle.dumps(KeyboardInterrupt())
    if hasattr(error, _ON_RANK):
        return pickle.dumps(error)
    place = "" if rank is None else f"rank {rank}"
    words = ": ".join(part for part in (place, words_of(error)) if part)
    shared: BaseException
    if isinstance(error, (OutOfDeviceMemoryError, UnmeasuredError)):
        shared = type(error)(*error.args)
    elif isinstance(error, WellfedError):
        shared = pickle.loads(pickle.dumps(error))
        told = [str(part) for part in (error.got, place) if part]
        shared.__dict__["got"] = ", on ".join(told) or None
    elif is_out_of_memory(error):
        shared = torch.OutOfMemoryError(words)
    else:
        shared = RuntimeError(words)
    shared.__dict__[_ON_RANK] = rank
    shared.add_note(f"{place or 'Here'}:\n{''.join(traceback.format_exception(error))}")
    return pickle.dumps(shared)
