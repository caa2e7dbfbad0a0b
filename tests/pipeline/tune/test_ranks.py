"""Ranks that agree: two or three threads that share a store, as processes do; and how many steps a window has."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from PIL import Image

from wellfed.pipeline.config import TuneRequest
from wellfed.pipeline.errors import ResourceError, StepError, UsageError
from wellfed.pipeline.formats import open_source
from wellfed.pipeline.hardware import preflight
from wellfed.pipeline.training import StepSpec
from wellfed.pipeline.training.simulated import SimulatedAccelerator
from wellfed.pipeline.tune.driver import Device
from wellfed.pipeline.tune.model.space import Limits
from wellfed.pipeline.tune.preflight import limits_of
from wellfed.pipeline.tune.ranks.agreement import Ranks
from wellfed.pipeline.tune.ranks.asked import arguments_of, check_same, opened_things
from wellfed.pipeline.tune.ranks.device import check_devices, joined_device, joined_limits
from wellfed.pipeline.tune.ranks.pace import Pace
from wellfed.pipeline.tune.rig import OutOfDeviceMemoryError, UnmeasuredError

GIB = 1 << 30

OnEachRank = Callable[..., list[Any]]
GIB = 1 << 30


def test_every_rank_gets_what_all_returned(on_each: OnEachRank) -> None:
    assert on_each(3, lambda ranks: ranks.gather(lambda: ranks.rank * 10)) == [[0, 10, 20]] * 3
    assert on_each(2, lambda ranks: ranks.agreed(lambda: object())) != [None, None]


def test_work_begins_once_all_are_there(on_each: OnEachRank) -> None:
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
def test_an_error_on_one_rank_is_the_same_on_all(
    on_each: OnEachRank, error: BaseException, kind: type[BaseException], text: str
) -> None:
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


def test_the_first_error_counts_and_later_ones_follow_from_it(on_each: OnEachRank) -> None:
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


def test_a_window_ends_for_all_where_one_fails_and_the_next_attempt_is_made_together(on_each: OnEachRank) -> None:
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


def test_a_rank_that_fails_before_an_inner_piece_is_not_waited_for_there(on_each: OnEachRank) -> None:
    def work(ranks: Ranks) -> None:
        if ranks.rank == 1:
            raise StepError("before the inner piece")
        ranks.agreed(lambda: None)

    def both(ranks: Ranks) -> Any:
        failure, _ = ranks.attempt(lambda: work(ranks))
        return type(failure), ranks.gather(lambda: ranks.rank)

    # and they are in step again afterwards
    assert on_each(2, both) == [(StepError, [0, 1])] * 2


def test_a_rank_that_left_or_never_came_is_an_error_and_no_hang(on_each: OnEachRank) -> None:
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


def test_an_interrupted_rank_does_not_wait_long_for_one_that_is_gone(on_each: OnEachRank) -> None:
    def work(ranks: Ranks) -> None:
        if ranks.rank == 1:
            ranks.meet("1/begin")  # and then it is killed
            return
        ranks.agreed(_interrupt)

    found = on_each(2, work, wait_seconds=0.3)
    assert [type(each) for each in found] == [KeyboardInterrupt, type(None)]


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_is_not_lost_behind_another_ranks_error(on_each: OnEachRank) -> None:
    failed = threading.Event()

    def work(ranks: Ranks) -> None:
        if ranks.rank == 1:
            failed.wait()
            time.sleep(0.1)
            raise KeyboardInterrupt
        failed.set()
        raise OutOfDeviceMemoryError("batch size 8")

    def both(ranks: Ranks) -> Any:
        failure, _ = ranks.attempt(lambda: work(ranks))
        return type(failure), ranks.interrupted()

    assert on_each(2, both) == [(OutOfDeviceMemoryError, True)] * 2


def test_what_is_raised_while_an_interrupt_closes_things_is_the_interrupt(on_each: OnEachRank) -> None:
    def work(ranks: Ranks) -> None:
        if ranks.rank == 1:
            try:
                raise KeyboardInterrupt
            finally:
                raise RuntimeError("DataLoader worker (pid 4711) is killed by signal: Terminated.")

    found = on_each(2, lambda ranks: ranks.agreed(lambda: work(ranks)))
    assert [type(each) for each in found] == [KeyboardInterrupt] * 2


class _GoneStore:
    """As one whose process has ended."""

    def __getattr__(self, name: str) -> Any:
        def broken(*arguments: Any) -> Any:
            raise dist.DistNetworkError("Broken pipe")

        return broken


def test_a_store_that_is_gone_is_said_whatever_was_asked_of_it() -> None:
    ranks = Ranks(_GoneStore(), 1, 2)
    for ask in (
        lambda: ranks.agreed(lambda: 1),
        lambda: ranks.put("call/1", "anything"),
        lambda: ranks.take("call/1"),
        lambda: ranks.wait(["call/1"]),
        ranks.interrupt,
    ):
        with pytest.raises(ResourceError, match=r"store of rank 0.*Broken pipe.*Look into rank 0's log"):
            ask()
    # then whoever ends for a reason of its own keeps it
    ranks.leave(ValueError("my own"))
    ranks.part()


def test_what_came_out_may_be_larger_than_a_message_to_the_store(on_each: OnEachRank) -> None:
    sizes = on_each(2, lambda ranks: [len(each) for each in ranks.gather(lambda: bytes(9_000_000 + ranks.rank))])
    assert sizes == [[9_000_000, 9_000_001]] * 2


@pytest.mark.parametrize(
    ("name", "others", "got"),
    [
        ("step", "mine:other", "step 'mine:build' on rank 0 and 'mine:other' on rank 2"),
        ("batch_sizes", (8, 16), r"batch_sizes None on rank 0 and \(8, 16\) on rank 2"),
        ("seed", 1, "seed 0 on rank 0 and 1 on rank 2"),
    ],
)
def test_ranks_that_ask_for_different_things_are_refused(name: str, others: Any, got: str) -> None:
    asked = arguments_of(TuneRequest(data="/node1/wds", step="mine:build", device="cuda:0"))
    elsewhere = arguments_of(TuneRequest(data="/node2/wds", step="mine:build", device="cuda:1"))
    check_same([asked, elsewhere])
    with pytest.raises(UsageError, match=got):
        check_same([asked, elsewhere, {**asked, name: others}])


def test_ranks_with_different_datasets_or_devices_are_refused(tmp_path: Path) -> None:
    for folder, count in (("two", 2), ("one", 1)):
        (tmp_path / folder / "cat").mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (8, 8)).save(tmp_path / folder / "cat" / f"{number}.png")
    spec, card = StepSpec(name="resnet18"), SimulatedAccelerator("simulated")
    with closing(open_source(str(tmp_path / "two"))) as source, closing(open_source(str(tmp_path / "one"))) as other:
        mine = opened_things(source, spec, card, 0)
        check_same([mine, opened_things(source, spec, card, 0)])
        with pytest.raises(UsageError, match=r"dataset '2 samples of fingerprint .* on rank 0 and '1 samples of"):
            check_same([mine, opened_things(other, spec, card, 0)])
        with pytest.raises(UsageError, match="device 'simulated' on rank 0 and 'simulated:h200' on rank 1"):
            check_same([mine, opened_things(source, spec, SimulatedAccelerator("simulated:h200"), 0)])


def steps_of(
    on_each: OnEachRank, seconds: float, most: int | None, *clocks: Callable[[int], float], turn: int = 1
) -> list[int]:
    """Steps that ranks do in a window, each of whose clocks says the seconds after so many."""

    def count(ranks: Ranks) -> int:
        go_on = ranks.pace(seconds, most, turn)
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
    on_each: OnEachRank, seconds: float, most: int | None, clocks: list[Callable[[int], float]], steps: int
) -> None:
    assert steps_of(on_each, seconds, most, *clocks) == [steps] * len(clocks)


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


def test_a_rank_s_share_of_the_machine_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = limits_of(preflight(nvml=None)).cores
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert limits_of(preflight(nvml=None)).cores == max(1, cores // 2)


def test_limits_are_what_every_rank_has() -> None:
    share = Limits(cores=4, memory_bytes=50, shm_bytes=None, open_files=50, host_bytes=20)
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


def test_errors_pickle_once_only(on_each: OnEachRank) -> None:
    # What was agreed on in an inner piece of work goes through the outer ones as it is.
    def outer(ranks: Ranks) -> Sequence[Any]:
        def inner() -> None:
            ranks.agreed(_raise if ranks.rank == 1 else lambda: None)

        return ranks.gather(inner)

    found = on_each(2, outer)
    assert {str(each) for each in found} == {"a step must run; got rank 1."}
    assert pickle.loads(pickle.dumps(found[0])).rule == "a step must run"


def _raise() -> None:
    raise StepError("a step must run")
