"""Tasks to sides and batches back into order, with engines that decode nothing."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from wellfed.pipeline.errors import DamagedDatasetError, WorkerError
from wellfed.pipeline.loader.batch import BatchTask, HostBatch, Side
from wellfed.pipeline.loader.engine_backend import batches_ahead
from wellfed.pipeline.loader.engines import Dispatcher, EngineStream, Take
from wellfed.pipeline.loader.hybrid import spread_evenly


def tasks(count: int) -> Iterator[BatchTask]:
    for number in range(count):
        yield BatchTask(epoch=0, rows=np.array([number]), valid=np.ones(1, bool), position_after=number + 1)


def made_of(task: BatchTask) -> HostBatch:
    empty = torch.zeros(1)
    rows = torch.from_numpy(task.rows)
    return HostBatch(
        task=task, images=empty, labels=empty, rows=rows, keys=empty, boxes=empty, flips=empty, valid=empty
    )


class Echo:
    """Gives each task back as a batch; fails at one row where told to."""

    def __init__(self, side: Side, fails_at: int | None = None, gate: threading.Event | None = None) -> None:
        self.side: Side = side
        self.rows: list[int] = []
        self.ended = threading.Event()
        self._fails_at = fails_at
        self._gate = gate

    def open(self) -> None: ...

    def close(self, *, wait: bool = True) -> None: ...

    def batches(self, take: Take) -> Generator[HostBatch]:
        try:
            while (task := take(True)) is not None:
                row = int(task.rows[0])
                self.rows.append(row)
                if self._gate is not None:
                    self._gate.wait(60)
                if row == self._fails_at:
                    raise DamagedDatasetError("bytes must be there", got="none")
                yield made_of(task)
        finally:
            self.ended.set()


def rows_of(batches: Any) -> list[int]:
    return [int(batch.rows[0]) for batch in batches]


def by_threes(task: BatchTask) -> Side:
    return "gpu" if task.rows[0] % 3 else "cpu"


def test_two_sides_decode_their_tasks_and_the_batches_come_in_order() -> None:
    cpu, gpu = Echo("cpu"), Echo("gpu")
    dispatcher = Dispatcher(tasks(20), ("cpu", "gpu"), ahead=4, route=by_threes)
    stream = EngineStream((cpu, gpu), dispatcher, timeout=0)

    assert rows_of(stream) == list(range(20))
    assert cpu.rows == [0, 3, 6, 9, 12, 15, 18]
    assert gpu.rows == [1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19]
    stream.close()


def test_without_a_route_whoever_is_free_takes_the_next() -> None:
    # given a CPU side that is busy with its first batch until the GPU side has done five
    gate = threading.Event()
    cpu, gpu = Echo("cpu", gate=gate), Echo("gpu")
    # With room for one more than there are, the GPU side learns that there are no more and ends.
    dispatcher = Dispatcher(tasks(7), ("cpu", "gpu"), ahead=8, route=None)
    slow = EngineStream((cpu,), dispatcher, timeout=0)
    while not cpu.rows:
        gate.wait(0.01)
    fast = EngineStream((gpu,), dispatcher, timeout=0)
    gpu.ended.wait(60)
    gate.set()

    assert rows_of(slow) == list(range(7))
    assert (cpu.rows, gpu.rows) == ([0], [1, 2, 3, 4, 5, 6])
    slow.close()
    fast.close()


def test_no_more_tasks_are_taken_ahead_than_allowed() -> None:
    engine = Echo("gpu")
    dispatcher = Dispatcher(tasks(50), ("gpu",), ahead=3, route=None)
    stream = EngineStream((engine,), dispatcher, timeout=0)
    for taken in range(10):
        assert int(next(stream).rows[0]) == taken
        assert len(engine.rows) <= taken + 1 + 3
    stream.close()
    assert engine.ended.is_set()


def test_an_error_waits_for_its_turn_and_ends_the_stream() -> None:
    cpu, gpu = Echo("cpu"), Echo("gpu", fails_at=4)
    dispatcher = Dispatcher(tasks(20), ("cpu", "gpu"), ahead=8, route=by_threes)
    stream = EngineStream((cpu, gpu), dispatcher, timeout=0)
    gpu.ended.wait(60)

    assert rows_of(next(stream) for _ in range(4)) == [0, 1, 2, 3]
    assert not stream.ready()
    with pytest.raises(DamagedDatasetError, match="bytes must be there"):
        next(stream)
    assert list(stream) == []
    stream.close()


def test_an_error_of_the_order_itself_comes_after_the_batches_before_it() -> None:
    def broken() -> Iterator[BatchTask]:
        yield from tasks(2)
        raise ZeroDivisionError

    stream = EngineStream((Echo("gpu"),), Dispatcher(broken(), ("gpu",), ahead=4, route=None), timeout=0)
    assert rows_of(next(stream) for _ in range(2)) == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(stream)
    stream.close()


def test_a_batch_that_does_not_come_within_the_timeout_is_an_error() -> None:
    gate = threading.Event()
    stream = EngineStream((Echo("gpu", gate=gate),), Dispatcher(tasks(1), ("gpu",), ahead=2, route=None), timeout=0.05)
    with pytest.raises(WorkerError, match=r"within timeout=0\.05 seconds"):
        next(stream)
    gate.set()
    stream.close()


def test_closing_while_an_engine_waits_for_room_ends_its_thread() -> None:
    engine = Echo("gpu")
    stream = EngineStream((engine,), Dispatcher(tasks(50), ("gpu",), ahead=2, route=None), timeout=0)
    next(stream)
    stream.close()
    stream.close()

    assert engine.ended.is_set()
    assert list(stream) == []


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, "cccccccccc"),
        (1.0, "gggggggggg"),
        (0.5, "cgcgcgcgcg"),
        (0.25, "cccgcccgcc"),
        # 0.66, 1.32, 1.98, 2.64, 3.30, 3.96, 4.62, 5.28, 5.94, 6.60: the GPU's where the whole number rises.
        (0.66, "cgcggcggcg"),
        (0.1, "cccccccccg"),
    ],
)
def test_the_share_is_spread_evenly(share: float, expected: str) -> None:
    route = spread_evenly(share, 8)
    numbers = [
        BatchTask(epoch=0, rows=np.arange(4), valid=np.ones(4, bool), position_after=8 * (number + 1))
        for number in range(10)
    ]

    assert "".join(route(task)[0] for task in numbers) == expected


def test_of_many_batches_each_run_has_its_share() -> None:
    route = spread_evenly(0.66, 1)
    sides = [route(task) == "gpu" for task in tasks(1000)]

    assert sum(sides) == 660
    for start in range(990):
        assert 6 <= sum(sides[start : start + 10]) <= 7


def test_a_last_shorter_batch_counts_as_one() -> None:
    # 23 samples by five: the last batch ends at 23, and is number 4.
    short = BatchTask(epoch=3, rows=np.arange(3), valid=np.ones(3, bool), position_after=23)
    assert spread_evenly(0.2, 5)(short) == "gpu"
    assert spread_evenly(0.19, 5)(short) == "cpu"


def test_how_far_a_backend_runs_ahead_is_bounded_by_memory() -> None:
    # 2 x prefetch_factor + 4, and at most 512 MiB, but two in any case.
    assert batches_ahead(1 << 20, 2) == 8
    assert batches_ahead(100 << 20, 2) == 5
    assert batches_ahead(1 << 30, 4) == 2
