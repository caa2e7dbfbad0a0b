from __future__ import annotations

from typing import Any

import pytest

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.tune.rig import Trial
from wellfed.pipeline.tune.search.search import Measurement, Record, Search, Targets, choose, compare

NO_TARGETS = Targets(util_percent=0.0, fed_ratio=0.0, cap_bytes=None)


def trial(name: str, *, batch: int = 64, workers: int = 2, role: Any = "candidate") -> Trial:
    settings = None if role == "stock" else LoaderSettings(batch_size=batch, num_workers=workers)
    return Trial(name, name, role, settings, batch)


@pytest.fixture
def measurement(fake_window: Any) -> Any:
    def make(
        speed: float, *, ceiling: float = 1000.0, util: float | None = 90.0, peak: int | None = 10, top: float = 95.0
    ) -> Measurement:
        def window(rate: float, percent: float | None) -> Any:
            return fake_window(
                batch_size=64,
                steps=1,
                samples=rate,
                wall_seconds=1.0,
                wait_seconds=(0.25,),
                step_seconds=(0.1,),
                util_percent=percent,
                util_reason=None,
                peak_bytes=peak,
            )

        return Measurement(window(speed, util), window(ceiling, top))

    return make


def record(measure: Any, which: Trial, speeds: list[float], **more: Any) -> Record:
    return Record(which, {number: measure(speed, **more) for number, speed in enumerate(speeds)})


def conclusion(a: Record, b: Record) -> str:
    comparison = compare(a, b)
    assert comparison is not None
    return comparison.conclusion


def test_rounds_are_interleaved_and_start_with_another_trial_each_time(measurement: Any) -> None:
    search = Search([trial("a"), trial("b"), trial("c")], rounds=3)
    order = []
    while (asked := search.ask()) is not None:
        order.append(asked.id)
        search.tell(asked, measurement(100.0))
    assert "".join(order) == "abcbcacab"


def test_losers_leave_the_sooner_the_slower_and_stock_and_present_stay(measurement: Any) -> None:
    speeds = {"fast": 500.0, "near": 465.0, "slow": 430.0, "slowest": 300.0, "present": 200.0, "stock": 100.0}
    trials = [trial(name) for name in ("fast", "near", "slow", "slowest")]
    trials += [trial("present", role="current"), trial("stock", role="stock")]
    search = Search(trials, rounds=5)
    while (asked := search.ask()) is not None:
        search.tell(asked, measurement(speeds[asked.id]))
    rounds = {r.trial.id: len(r.rounds) for r in search.records}
    # 0.60 of the leader after one round, 0.86 after two, 0.93 after three
    assert rounds == {"fast": 5, "near": 3, "slow": 2, "slowest": 1, "present": 5, "stock": 5}
    assert search.record(trials[3]).left == "left after 1 round at 0.60 of fast"
    assert search.record(trials[1]).left == "left after 3 rounds at 0.93 of fast"


def test_a_trial_that_comes_later_gets_as_many_rounds(measurement: Any) -> None:
    search = Search([trial("a"), trial("b")], rounds=5)
    order = []
    while (asked := search.ask()) is not None:
        order.append(asked.id)
        search.tell(asked, measurement(100.0))
        if len(order) == 2:
            assert search.ask() is not None  # round 2 has begun
            search.add(trial("late"))
    assert {r.trial.id: sorted(r.rounds) for r in search.records} == {
        "a": [0, 1, 2, 3, 4, 5],
        "b": [0, 1, 2, 3, 4, 5],
        "late": [1, 2, 3, 4, 5],
    }
    with pytest.raises(ValueError, match="late"):
        search.add(trial("late"))


def test_better_and_worse_need_five_rounds_and_an_interval_without_one(measurement: Any) -> None:
    fast = record(measurement, trial("fast"), [110.0, 112.0, 108.0, 111.0, 109.0])
    slow = record(measurement, trial("slow"), [100.0, 101.0, 99.0, 100.0, 100.0])
    comparison = compare(fast, slow)
    assert comparison is not None
    assert comparison.conclusion == "better"
    assert conclusion(slow, fast) == "worse"
    noisy = record(measurement, trial("noisy"), [90.0, 130.0, 80.0, 120.0, 100.0])
    assert conclusion(noisy, slow) == "no difference"
    four = record(measurement, trial("four"), [110.0, 112.0, 108.0, 111.0])
    assert conclusion(four, slow) == "no difference"


def test_the_fastest_wins_where_it_is_clearly_faster(measurement: Any) -> None:
    small = record(measurement, trial("small", batch=32), [90.0] * 5)
    large = record(measurement, trial("large", batch=64), [100.0] * 5)
    assert choose([small, large], NO_TARGETS) is large


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (trial("other", batch=32, workers=8), "other"),  # a smaller batch counts before workers
        (trial("other", batch=64, workers=1), "other"),
        (trial("other", batch=64, workers=4), "best"),
        (trial("other", batch=128, workers=1), "best"),
    ],
)
def test_within_two_percent_the_smaller_wins(measurement: Any, other: Trial, expected: str) -> None:
    best = record(measurement, trial("best"), [100.0] * 5)
    near = record(measurement, other, [98.5] * 5)
    winner = choose([best, near], NO_TARGETS)
    assert winner is not None
    assert winner.trial.id == expected


def test_an_interval_that_holds_one_is_a_tie_within_three_percent(measurement: Any) -> None:
    large = record(measurement, trial("large", batch=128), [100.0, 110.0, 90.0, 105.0, 95.0])
    small = record(measurement, trial("small", batch=64), [97.5, 95.0, 99.0, 101.0, 93.0])
    assert choose([large, small], NO_TARGETS) is small
    # 5% lost for sure is not made good by an interval that noise has made wide
    slower = record(measurement, trial("slower", batch=64), [95.0, 92.0, 99.0, 97.0, 93.0])
    assert choose([large, slower], NO_TARGETS) is large


def test_targets_come_before_speed(measurement: Any) -> None:
    fast = record(measurement, trial("fast"), [200.0] * 5, util=60.0)
    fed = record(measurement, trial("fed"), [100.0] * 5, util=80.0)
    big = record(measurement, trial("big"), [150.0] * 5, util=80.0, peak=99)
    targets = Targets(util_percent=70.0, fed_ratio=0.9, cap_bytes=50)
    assert choose([fast, fed, big], targets) is fed
    # Where none meets them, the fastest whose step could.
    assert choose([fast, big], targets) is fast
    unable = record(measurement, trial("unable", batch=16), [200.0] * 5, util=20.0, top=40.0)
    assert choose([unable, fast], targets) is fast


def test_stock_torch_is_never_chosen(measurement: Any) -> None:
    stock = record(measurement, trial("stock", role="stock"), [500.0] * 5)
    ours = record(measurement, trial("ours"), [100.0] * 5)
    assert choose([stock, ours], NO_TARGETS) is ours
    assert choose([stock], NO_TARGETS) is None


def test_a_barred_trial_is_never_chosen(measurement: Any) -> None:
    search = Search([trial("a"), trial("b")], rounds=1)
    while (asked := search.ask()) is not None:
        search.tell(asked, measurement(200.0 if asked.id == "a" else 100.0))
    search.bar(search.records[0].trial, "does not fit")
    winner = choose(search.records, NO_TARGETS)
    assert winner is not None
    assert winner.trial.id == "b"


def test_a_round_keeps_its_raw_values(measurement: Any) -> None:
    row = measurement(900.0).to_dict()
    assert row["fed_ratio"] == pytest.approx(0.9)
    assert row["wait_share"] == pytest.approx(0.25)
    assert row["ceiling_samples_per_second"] == 1000.0
    assert row["window"]["samples"] == 900.0
