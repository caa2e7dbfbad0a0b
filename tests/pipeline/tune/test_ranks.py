"""Ranks that agree: two or three threads that share a store, as processes do; and how many steps a window has."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.errors import ResourceError, StepError, UsageError
from wellfed.pipeline.training import MemoryProbe, Window
from wellfed.pipeline.training.probe import CANCELLED
from wellfed.pipeline.tune import ranks_rig
from wellfed.pipeline.tune.driver import Device
from wellfed.pipeline.tune.pace import Pace
from wellfed.pipeline.tune.ranks import Ranks
from wellfed.pipeline.tune.ranks_device import check_devices, joined_device, joined_limits, share_of_rank
from wellfed.pipeline.tune.ranks_rig import RanksRig, follow
from wellfed.pipeline.tune.ranks_window import RanksWindow, joined_probe
from wellfed.pipeline.tune.rig import OutOfDeviceMemoryError, UnmeasuredError
from wellfed.pipeline.tune.space import Limits

GIB = 1 << 30


def on_each(count: int, work: Callable[[Ranks], Any], **options: Any) -> list[Any]:
    """What `work` returned, or raised, on each of so many ranks."""
    store = dist.HashStore()
    found: list[Any] = [None] * count

    def run(rank: int) -> None:
        try:
            found[rank] = work(Ranks(store, rank, count, **options))
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def window(*, samples: int = 80, seconds: float = 1.0, waits: float = 0.1, **other: Any) -> Window:
    values: dict[str, Any] = {
        "util_percent": 90.0,
        "util_reason": None,
        "peak_bytes": GIB,
        "host_rss_bytes": (100, 300, 200),
        "host_rss_seconds": (0.0, 0.5, 1.0),
        **other,
    }
    return Window(
        batch_size=8,
        steps=samples // 8,
        samples=samples,
        wall_seconds=seconds,
        wait_seconds=(waits,),
        step_seconds=(0.5,),
        exhausted=False,
        util_source=None,
        util_samples=(),
        memory_reason=None,
        memory_source=None,
        memory_samples=(),
        other_process_bytes=None,
        torch_peak_reserved_bytes=None,
        **values,
    )


def test_every_rank_gets_what_all_returned() -> None:
    assert on_each(3, lambda ranks: ranks.gather(lambda: ranks.rank * 10)) == [[0, 10, 20]] * 3
    assert on_each(2, lambda ranks: ranks.agreed(lambda: object())) != [None, None]


def test_work_begins_once_all_are_there() -> None:
    began: dict[int, float] = {}
    came: dict[int, float] = {}

    def work(ranks: Ranks) -> None:
        time.sleep(0.2 * ranks.rank)
        came[ranks.rank] = time.monotonic()
        ranks.agreed(lambda: began.__setitem__(ranks.rank, time.monotonic()))

    on_each(2, work)
    assert min(began.values()) >= max(came.values())


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), torch.OutOfMemoryError, "rank 1: OutOfMemoryError: CUDA"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), torch.OutOfMemoryError, "CUDNN_STATUS_ALLOC_FAILED"),
        (OutOfDeviceMemoryError("batch size 8"), OutOfDeviceMemoryError, "batch size 8"),
        (UnmeasuredError("no files"), UnmeasuredError, "no files"),
        (StepError("a step must run", got="KeyError: 3", remedy="Mend it."), StepError, "KeyError: 3, on rank 1. Mend"),
        (StepError("a step must run"), StepError, "got rank 1"),
        (KeyError("three"), RuntimeError, "rank 1: KeyError: 'three'"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_an_error_on_one_rank_is_the_same_on_all(error: BaseException, kind: type[BaseException], text: str) -> None:
    def fail() -> None:
        raise error

    found = on_each(3, lambda ranks: ranks.agreed(fail if ranks.rank == 1 else lambda: None))
    assert [type(each) for each in found] == [kind] * 3
    assert len({str(each) for each in found}) == 1
    for each in found:
        with pytest.raises(kind, match=text):
            raise each
        # One that was raised from another would be judged by that too, here and nowhere else.
        assert each.__cause__ is None
        assert each.__context__ is None


def test_the_first_error_counts_and_later_ones_follow_from_it() -> None:
    first = threading.Event()

    def work(ranks: Ranks) -> None:
        if ranks.rank == 1:
            first.set()
            raise torch.OutOfMemoryError("CUDA out of memory")
        first.wait()
        time.sleep(0.1)
        raise StepError("a collective must end", got="connection closed by peer")

    found = on_each(2, lambda ranks: ranks.agreed(lambda: work(ranks)))
    assert [type(each) for each in found] == [torch.OutOfMemoryError] * 2


def test_a_window_ends_for_all_where_one_fails_and_the_next_attempt_is_made_together() -> None:
    attempts: list[tuple[int, int]] = []

    def attempt(ranks: Ranks, number: int) -> int:
        attempts.append((ranks.rank, number))
        go_on = ranks.pace(30.0, 1000)
        done = 0
        started = time.monotonic()
        while go_on(done, time.monotonic() - started):
            if (ranks.rank, number, done) == (1, 0, 5):
                raise torch.OutOfMemoryError("CUDA out of memory")
            if number == 1 and done == 7:
                return done
            time.sleep(0.001)
            done += 1
        raise AssertionError("neither failed nor ended")

    def twice(ranks: Ranks) -> int:
        for number in range(2):
            try:
                return ranks.agreed(lambda number=number: attempt(ranks, number))  # type: ignore[misc]
            except torch.OutOfMemoryError:
                continue
        raise AssertionError("out of memory twice")

    assert on_each(2, lambda ranks: ranks.gather(lambda: twice(ranks))) == [[7, 7]] * 2
    assert sorted(attempts) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_rank_that_fails_before_an_inner_piece_is_not_waited_for_there() -> None:
    def work(ranks: Ranks) -> None:
        if ranks.rank == 1:
            raise StepError("before the inner piece")
        ranks.agreed(lambda: None)

    def both(ranks: Ranks) -> Any:
        failure, _ = ranks.attempt(lambda: work(ranks))
        return type(failure), ranks.gather(lambda: ranks.rank)

    # and they are in step again afterwards
    assert on_each(2, both) == [(StepError, [0, 1])] * 2


def test_a_rank_that_left_or_never_came_is_an_error_and_no_hang() -> None:
    def leave(ranks: Ranks) -> Any:
        if ranks.rank == 1:
            ranks.leave(ResourceError("no more files can be opened"))
            return None
        return ranks.gather(lambda: 1)

    found, _ = on_each(2, leave)
    assert isinstance(found, ResourceError)
    assert "no more files" in str(found)
    missing, _ = on_each(2, lambda ranks: ranks.agreed(lambda: 1) if ranks.rank == 0 else None, wait_seconds=0.3)
    assert isinstance(missing, ResourceError)
    assert "nothing from rank 1 for 0.3 s" in str(missing)


def steps_of(seconds: float, most: int | None, *clocks: Callable[[int], float]) -> list[int]:
    """Steps that ranks do in a window, each of whose clocks says the seconds after so many."""

    def count(ranks: Ranks) -> int:
        go_on = ranks.pace(seconds, most)
        done = 0
        while go_on(done, clocks[ranks.rank](done)):
            done += 1
        return done

    return on_each(len(clocks), lambda ranks: ranks.gather(lambda: count(ranks)))[0]


@pytest.mark.parametrize(
    ("seconds", "most", "clocks", "steps"),
    [
        # 2 s at 20 ms a step
        (2.0, None, [lambda n: 0.02 * n, lambda n: 0.02 * n], 100),
        # the slower one's 2 s
        (2.0, None, [lambda n: 0.02 * n, lambda n: 0.04 * n], 50),
        # each is slow at a time: at the end the second one is at 10 ms + 99 * 20 ms
        (2.0, None, [lambda n: 0.02 * n, lambda n: 0.01 + 0.02 * (n - 1) if n else 0.0], 100),
        (2.0, 5, [lambda n: 0.02 * n, lambda n: 0.04 * n], 5),
        # a step that is longer than the window
        (2.0, None, [lambda n: 9.0 * n, lambda n: 9.0 * n], 1),
        # calls return at once until the device's queue is full, after 8, then in 0.1 s. After 7 steps 7 ms are seen,
        # after 14 it is 0.6 s, so after 16 there is time for (2 - 0.6 - 2 * 0.0847) / 0.0847, about 15 more
        (2.0, None, [lambda n: max(0.001 * n, 0.1 * (n - 8)), lambda n: 0.001 * n], 31),
    ],
)
def test_a_window_has_the_same_steps_on_all_ranks_and_the_slowest_ones_time(
    seconds: float, most: int | None, clocks: list[Callable[[int], float]], steps: int
) -> None:
    assert steps_of(seconds, most, *clocks) == [steps] * len(clocks)


def test_the_times_are_posted_ahead_so_that_an_even_pace_waits_for_nobody() -> None:
    asked: list[int] = []
    posts: list[int] = []
    now = 0

    def collect(number: int) -> list[float]:
        asked.append(now)
        return [0.02 * posts[number]]

    pace = Pace(lambda number, elapsed: posts.append(round(elapsed / 0.02)), collect, seconds=2.0, max_steps=None)
    while pace(now, 0.02 * now):
        now += 1
    # runs of 1, 1, 2, 4, 8, 16, 32 and 36 steps
    assert asked == [1, 2, 4, 8, 16, 32, 64, 100]
    assert posts == [1, 2, 3, 7, 14, 28, 56, 91]


def test_a_window_of_ranks_is_that_of_the_slowest_and_fullest() -> None:
    fast = window(samples=80, seconds=1.0, waits=0.4, util_percent=95.0, peak_bytes=3 * GIB)
    slow = window(samples=80, seconds=1.25, waits=0.1, util_percent=60.0, host_rss_bytes=(1000,))
    both = RanksWindow((fast, slow))
    assert (both.samples, both.wall_seconds) == (80, 1.25)
    assert both.wait_seconds == (0.4,)
    assert (both.util_percent, both.util_reason, both.peak_bytes) == (60.0, None, 3 * GIB)
    assert both.host_rss_bytes == (1200,)
    told = both.to_dict()
    assert [rank["samples_per_second"] for rank in told["ranks"]] == [80.0, 64.0]
    assert told["util_percent"] == 60.0
    unknown = RanksWindow((fast, window(util_percent=None, util_reason="no NVML", peak_bytes=None)))
    assert (unknown.util_percent, unknown.util_reason, unknown.peak_bytes) == (None, "rank 1: no NVML", None)


def probe(peak: int | None = None, **fields: Any) -> MemoryProbe:
    return MemoryProbe(batch_size=8, peak_bytes=peak, **{"out_of_memory": False, "error": None, **fields})


@pytest.mark.parametrize(
    ("probes", "expected"),
    [
        ([probe(3), probe(5)], probe(5)),
        ([probe(error=CANCELLED), probe(out_of_memory=True)], probe(out_of_memory=True)),
        ([probe(3), probe(error="no NVML")], probe(error="no NVML")),
        ([probe(error=CANCELLED), probe(error="it crashed"), probe(error=CANCELLED)], probe(error="it crashed")),
    ],
)
def test_a_probe_of_ranks_is_that_of_the_fullest_or_of_the_one_that_failed(
    probes: list[MemoryProbe], expected: MemoryProbe
) -> None:
    assert joined_probe(probes) == expected


@dataclass
class OneRig:
    """A rank's rig, of which the calls are kept."""

    rank: int
    calls: list[Any] = field(default_factory=list)

    def clock(self) -> float:
        return 7.0 + self.rank

    def compiling_seconds(self) -> float:
        return 1.0 + self.rank

    def loader_alone(self, settings: LoaderSettings, seconds: float) -> float:
        self.calls.append((settings.num_workers, seconds))
        return 100.0 - self.rank

    def ceiling(self, batch_size: int, seconds: float) -> Window:
        self.calls.append(("ceiling", batch_size))
        if batch_size > 8 and self.rank == 1:
            raise OutOfDeviceMemoryError(f"batch size {batch_size}")
        return window(seconds=1.0 + self.rank)

    @contextmanager
    def hold(self, settings: LoaderSettings, *, samples_before_boundary: int) -> Iterator[OneRig]:
        self.calls.append(("hold", samples_before_boundary))
        yield self
        self.calls.append("held")

    @property
    def epochs_crossed(self) -> int:
        return 3

    def resume(self) -> None:
        self.calls.append("resume")

    def feed(self, seconds: float) -> Window:
        return window(seconds=1.0 + self.rank)

    def worker_bytes(self) -> dict[int, int]:
        return {77: 10 + self.rank}


def led(lead: Callable[[RanksRig], Any]) -> tuple[list[Any], list[OneRig]]:
    """What each rank gave where rank 0 does this and the other follows."""
    rigs = [OneRig(0), OneRig(1)]

    def run(ranks: Ranks) -> Any:
        if ranks.rank == 1:
            return follow(rigs[1], ranks)  # type: ignore[arg-type]
        rig = RanksRig(rigs[0], ranks)  # type: ignore[arg-type]
        try:
            result = lead(rig)
        except BaseException as error:
            rig.fail(error)
            raise
        rig.end(result)
        return result

    return on_each(2, run), rigs


def test_rank_0_leads_and_the_other_follows_with_the_same_calls() -> None:
    def lead(rig: RanksRig) -> Any:
        alone = rig.loader_alone(LoaderSettings(num_workers=3), 0.5)
        slow = rig.ceiling(8, 1.0)
        with pytest.raises(OutOfDeviceMemoryError, match="batch size 16"):
            rig.ceiling(16, 1.0)
        with rig.hold(LoaderSettings(), samples_before_boundary=40) as held:
            held.resume()
            fed = held.feed(1.0)
            rig.ceiling(8, 1.0)
            workers = dict(held.worker_bytes())
            crossed = held.epochs_crossed
        return alone, slow.wall_seconds, fed.wall_seconds, workers, crossed, rig.clock(), rig.compiling_seconds()

    results, rigs = led(lead)
    assert results == [(99.0, 2.0, 2.0, {77: 10, (1 << 32) + 77: 11}, 3, 7.0, 2.0)] * 2
    assert rigs[0].calls == rigs[1].calls
    assert rigs[0].calls[3:] == [("hold", 40), "resume", ("ceiling", 8), "held"]


def test_what_ends_rank_0_ends_the_others_with_the_same_words() -> None:
    def lead(rig: RanksRig) -> None:
        rig.ceiling(8, 1.0)
        raise ResourceError("the step must fit", got="9 GiB", remedy="Use a smaller model.")

    found, _ = led(lead)
    assert [type(each) for each in found] == [ResourceError] * 2
    assert [str(each) for each in found] == ["the step must fit; got '9 GiB'. Use a smaller model."] * 2 or [
        str(each) for each in found
    ] == ["the step must fit; got 9 GiB. Use a smaller model."] * 2


def test_an_interrupt_on_a_rank_that_follows_ends_the_tune_on_all() -> None:
    def run(ranks: Ranks) -> Any:
        if ranks.rank == 1:
            ranks.interrupt()
            return follow(OneRig(1), ranks)  # type: ignore[arg-type]
        rig = RanksRig(OneRig(0), ranks)  # type: ignore[arg-type]
        while not ranks.interrupted():
            time.sleep(0.001)
        with pytest.raises(KeyboardInterrupt):
            rig.ceiling(8, 1.0)
        rig.end("the best so far")
        return "the best so far"

    assert on_each(2, run) == ["the best so far"] * 2


def test_a_signal_is_told_between_pieces_of_work_and_raised_within_one() -> None:
    ranks = Ranks(dist.HashStore(), 1, 2)
    before = signal.getsignal(signal.SIGINT)
    with ranks_rig._interrupts(ranks):
        os.kill(os.getpid(), signal.SIGINT)
        while not ranks.interrupted():
            time.sleep(0.001)
        # a second one is meant
        with pytest.raises(KeyboardInterrupt):
            _interrupt_this()
    with ranks_rig._interrupts(ranks):
        ranks.working = True
        with pytest.raises(KeyboardInterrupt):
            _interrupt_this()
    assert signal.getsignal(signal.SIGINT) is before


def _interrupt_this() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)


def test_limits_are_each_ranks_share_and_what_every_rank_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    machine = Limits(cores=9, memory_bytes=100, shm_bytes=None, open_files=50, host_bytes=40)
    share = share_of_rank(machine)
    assert share == Limits(cores=4, memory_bytes=50, shm_bytes=None, open_files=50, host_bytes=20)
    other = Limits(cores=3, memory_bytes=60, shm_bytes=7, backends=("threads",), open_files=None, host_bytes=None)
    joined = joined_limits([share, other])
    assert joined == Limits(cores=3, memory_bytes=50, shm_bytes=7, backends=("threads",), open_files=50, host_bytes=20)
    small, large = Device(1 * GIB, pin_memory=True), Device(2 * GIB, pin_memory=True)
    assert joined_device([large, small]) is small


def test_two_ranks_on_one_gpu_are_refused() -> None:
    check_devices(["host a", "host b"])
    check_devices([None, None])
    with pytest.raises(UsageError, match="ranks 0 and 2 on the same one"):
        check_devices(["host a", "host b", "host a"])


def test_errors_pickle_once_only() -> None:
    # What was agreed on in an inner piece of work goes through the outer ones as it is.
    def outer(ranks: Ranks) -> Sequence[Any]:
        def inner() -> None:
            ranks.agreed(_raise if ranks.rank == 1 else lambda: None)

        return ranks.gather(inner)

    found = on_each(2, outer)
    assert {str(each) for each in found} == {"a step must run; got 'rank 1'."} or {str(each) for each in found} == {
        "a step must run; got rank 1."
    }
    assert pickle.loads(pickle.dumps(found[0])).rule == "a step must run"


def _raise() -> None:
    raise StepError("a step must run")
