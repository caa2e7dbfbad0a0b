"""The monitor on one rank, with a clock that moves only when told to; tests/examples runs it on two."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from wellfed.pipeline.errors import ConfigError, UsageError
from wellfed.pipeline.monitor import RankMonitor
from wellfed.pipeline.training import DeviceWindow


class Batches:
    """Pairs of 4 images, each of which takes some time to come; and what a loader says of its cores."""

    worker_cores = "any cores: for a test"

    def __init__(self, clock: Any, count: int, seconds: float) -> None:
        self.clock, self.count, self.seconds = clock, count, seconds

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.count):
            self.clock.sleep(self.seconds)
            yield torch.zeros(4, 3, 2, 2), torch.zeros(4)


class Card:
    """An accelerator that counts its windows; finishing what is queued takes 1 s."""

    name, kind, torch_device, memory_total_bytes = "cuda:1", "cuda", "cuda:1", 4000
    description = {"name": "Fake", "simulated": False}  # noqa: RUF012 (as the protocol has it)

    def __init__(self, clock: Any) -> None:
        self.clock, self.open, self.closed = clock, 0, 0

    def synchronize(self) -> None:
        self.clock.sleep(1.0)

    def start_window(self) -> None:
        self.open += 1

    def end_window(self) -> DeviceWindow:
        self.open -= 1
        return DeviceWindow(util_percent=90.0, util_reason=None, peak_bytes=1000, memory_reason=None)

    def close(self) -> None:
        self.closed += 1


def train(monitor: RankMonitor, batches: Any, clock: Any, part: Any = "fed", **options: Any) -> int:
    count = 0
    for _ in monitor.watch(batches, part, **options):
        clock.sleep(0.3)
        count += 1
    return count


def test_waits_and_steps_are_told_apart(virtual_clock: Any) -> None:
    card: Any = Card(virtual_clock)
    monitor = RankMonitor(card, clock=virtual_clock)

    # when 2 of 7 batches warm up, each takes 0.1 s to come and 0.3 s to train on, and a second is queued at the end
    assert train(monitor, Batches(virtual_clock, 7, 0.1), virtual_clock, warm_up=2) == 7

    report = monitor.report()
    assert report is not None
    rank = report["ranks"][0]
    (window,) = rank["windows"]["fed"]
    assert (window["steps"], window["samples"], window["exhausted"]) == (5, 20, True)
    assert window["wait_seconds"] == [0.1] * 5
    assert window["step_seconds"] == [0.3] * 5
    assert window["wall_seconds"] == pytest.approx(3.0)
    assert rank["fed"]["samples_per_second"] == pytest.approx(20 / 3)
    assert rank["fed"]["wait_share"] == pytest.approx(0.5 / 3)
    assert (rank["fed"]["util_percent"], rank["fed"]["peak_bytes"]) == (90.0, 1000)
    assert rank["device"] == {"id": "cuda:1", "name": "Fake", "simulated": False, "memory_total_bytes": 4000}
    assert rank["worker_cores"] == "any cores: for a test"
    # The card is the caller's.
    monitor.close()
    assert (card.open, card.closed) == (0, 0)
    json.dumps(report, allow_nan=False)


def test_a_loop_that_is_left_counts_its_last_step(virtual_clock: Any) -> None:
    card: Any = Card(virtual_clock)
    monitor = RankMonitor(card, clock=virtual_clock)
    watched = monitor.watch(Batches(virtual_clock, 9, 0.1), warm_up=0)

    for number, _ in enumerate(watched):
        virtual_clock.sleep(0.3)
        if number == 2:
            break
    watched.close()  # type: ignore[attr-defined]  # a generator: for one that is dropped this happens at once

    report = monitor.report()
    assert report is not None
    (window,) = report["ranks"][0]["windows"]["fed"]
    assert (window["steps"], window["step_seconds"], window["exhausted"]) == (3, [0.3] * 3, False)
    assert card.open == 0


def test_three_parts_give_the_scaling_of_one_rank(virtual_clock: Any) -> None:
    monitor = RankMonitor("cpu", clock=virtual_clock)
    # given 4 samples a step of 0.3 s: 13.3 a second alone; 10 with waits of 0.1 s
    for _ in range(3):
        assert train(monitor, Batches(virtual_clock, 99, 0.0), virtual_clock, "own", warm_up=0, steps=2) == 2
    assert train(monitor, Batches(virtual_clock, 99, 0.0), virtual_clock, "ceiling", warm_up=1, steps=5) == 6
    assert train(monitor, Batches(virtual_clock, 8, 0.1), virtual_clock, warm_up=0) == 8

    report = monitor.report()

    assert report is not None
    assert len(report["ranks"][0]["windows"]["own"]) == 3
    found = report["scaling"]
    assert (found["one"], found["ceiling"], found["fed"]) == (
        pytest.approx(40 / 3),
        pytest.approx(40 / 3),
        pytest.approx(10.0),
    )
    assert (found["communication"], found["loader"], found["efficiency"]) == (
        pytest.approx(1.0),
        pytest.approx(0.75),
        pytest.approx(0.75),
    )
    assert report["one_gpu_source"] == "the median rank's step by itself, all ranks at once"
    assert report["not_judged"] == dict.fromkeys(("loading", "step"), "one rank has nobody to be compared with")
    # what a CPU has not is None with its reason
    fed = report["ranks"][0]["fed"]
    assert (fed["util_percent"], fed["util_reason"]) == (None, "batches stay on the CPU, so there is no GPU to watch")
    # and a figure that the caller brings stands before what was measured
    given = monitor.report(one_gpu_samples_per_second=20.0)
    assert given is not None
    assert (given["scaling"]["efficiency"], given["one_gpu_source"]) == (pytest.approx(0.5), "as given")


def test_batches_of_fields_are_counted_too(virtual_clock: Any) -> None:
    monitor = RankMonitor("cpu", clock=virtual_clock)
    for _ in monitor.watch([{"image": torch.zeros(5, 3), "class": torch.zeros(5)}, torch.zeros(6, 2)], warm_up=0):
        virtual_clock.sleep(0.5)

    report = monitor.report()
    assert report is not None
    assert report["ranks"][0]["windows"]["fed"][0]["samples"] == 11


def test_batches_that_end_while_warming_up_are_not_measured(virtual_clock: Any) -> None:
    monitor = RankMonitor("cpu", clock=virtual_clock)
    assert train(monitor, Batches(virtual_clock, 2, 0.1), virtual_clock) == 2

    report = monitor.report()
    assert report is not None
    assert report["ranks"][0]["fed"] is None
    assert report["scaling"]["reason"] is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"part": "alone"}, "part is one of 'fed', 'ceiling', 'own'; got 'alone'"),
        ({"warm_up": -1}, "warm_up is a whole number from 0"),
        ({"steps": 1.5}, "steps is a whole number from 0"),
    ],
)
def test_wrong_arguments_are_refused_at_once(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RankMonitor("cpu").watch([], **options)


def test_a_launched_rank_without_a_process_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each rank would write a report of one rank, the one over the other's.
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"WORLD_SIZE=2 and no process group\. Make the monitor after"):
        RankMonitor("cpu")
