"""What a budget means, on a virtual clock: what is begun, what is left out, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from wellfed.pipeline.config import LoaderSettings, TuneRequest
from wellfed.pipeline.tune.driver import Device, Driver
from wellfed.pipeline.tune.model.space import Limits

TWO_CORES = Limits(cores=2, memory_bytes=None, shm_bytes=None)


def run(rig: Any, *, limits: Limits = TWO_CORES, **more: Any) -> Any:
    request = TuneRequest(data="set", step="resnet50", **more)
    return Driver(rig, request, limits, Device(8 << 30, pin_memory=False)).run()


def test_a_short_budget_ends_with_the_best_so_far_and_says_so(fake_rig: Any) -> None:
    rig = fake_rig()
    result = run(rig, budget_seconds=14.0)
    assert result.chosen is not None
    assert result.seconds["total"] - result.seconds["hold"] < 14.0 + 6.0
    assert any("The budget of 14 s ended" in note for note in result.notes)
    assert all(c.conclusion == "no difference" for c in result.comparisons)


def test_the_budget_holds_on_a_machine_with_many_cores(fake_rig: Any) -> None:
    limits = Limits(cores=16, memory_bytes=None, shm_bytes=None)
    result = run(fake_rig(step=lambda b: (min(4600.0, 70.0 * b), 95.0)), limits=limits, budget_seconds=180.0)
    assert result.seconds["total"] - result.seconds["hold"] <= 180.0 + 5.0
    assert len(result.chosen.rounds) >= 5


def test_the_budget_holds_where_one_step_takes_longer_than_a_measurement(fake_rig: Any) -> None:
    # given a step so slow that each measurement takes 9 s instead of the 2 s asked for
    class Slow(fake_rig):  # type: ignore[misc]
        def _window(self, batch: int, speed: float, util: float | None, seconds: float, waits: float) -> Any:
            return super()._window(batch, speed, util, max(seconds, 9.0), waits)

    result = run(Slow(), budget_seconds=180.0)
    assert result.seconds["total"] - result.seconds["hold"] <= 180.0
    assert result.verdict.name == "passed"


def slow(fake_rig: Any, least: float, **more: Any) -> Any:
    """A machine with a step so slow that each measurement takes this long instead of the 2 s asked for."""

    class Slow(fake_rig):  # type: ignore[misc]
        def _window(self, batch: int, speed: float, util: float | None, seconds: float, waits: float) -> Any:
            return super()._window(batch, speed, util, max(seconds, least), waits)

    return Slow(**more)


def in_budget(result: Any) -> float:
    """Seconds that count: neither those of the hold, nor of compiling."""
    seconds = result.seconds
    return float(seconds["total"] - seconds["hold"] - seconds["compiling"])


@pytest.mark.parametrize("current", [None, LoaderSettings(backend="processes", num_workers=1, batch_size=32)])
def test_the_first_round_ends_with_the_budget_once_there_is_a_choice(fake_rig: Any, current: Any) -> None:
    # given measurements of 22 s, and 180 s: there is no time for a whole round of the settings that were picked
    result = run(slow(fake_rig, 22.0), current=current, batch_sizes=(16, 32, 64))
    untried = [record for record in result.records if record.left == "not tried: the budget was over before"]
    tried = [record for record in result.records if record.rounds]
    assert untried
    assert len(untried) + len(tried) == len(result.records)
    # then a candidate was measured, and whatever it is compared with
    roles = {record.trial.role for record in tried}
    assert roles == ({"candidate", "stock"} if current is None else {"candidate", "stock", "current"})
    assert in_budget(result) <= 180.0 + 22.0
    assert any(
        f"ended in the first round: {len(untried)} of {len(result.records)} settings were not tried" in note
        for note in result.notes
    )
    assert all(c.conclusion == "no difference" for c in result.comparisons)


def test_a_step_too_slow_for_the_budget_gets_the_least_there_is_and_is_told(fake_rig: Any) -> None:
    # given measurements of 50 s: the step, a loader (2 s), a candidate, stock torch and their ceiling are 200 s
    result = run(slow(fake_rig, 50.0))
    assert [len(record.rounds) for record in result.records if record.left is None] == [1, 1]
    assert in_budget(result) == pytest.approx(210, abs=15)
    assert any("more than the budget of 180 s" in note for note in result.notes)


def test_probes_that_take_the_budget_leave_out_larger_batches_and_name_them(fake_rig: Any) -> None:
    # given a probe of 70 s: a second one would end at 140, past the half that probing and measuring parts have
    rig = fake_rig(probe_takes=70.0)
    result = run(rig, batch_sizes=(16, 32, 64))
    assert [call[1] for call in rig.calls if call[0] == "probe"] == [16]
    assert result.chosen.trial.batch_size == 16
    assert in_budget(result) <= 180.0
    assert any(note.startswith("Batch sizes 32, 64 were not tried") for note in result.notes)

    # the user's own size is looked at in any case
    present = LoaderSettings(backend="threads", num_workers=1, batch_size=64, pin_memory=False)
    rig = fake_rig(probe_takes=70.0)
    result = run(rig, batch_sizes=(16, 32, 64), current=present)
    assert [call[1] for call in rig.calls if call[0] == "probe"] == [16, 64]
    assert any(record.trial.role == "current" and record.rounds for record in result.records)


def test_the_winners_own_probe_is_in_the_budget(fake_rig: Any) -> None:
    rig = fake_rig(step=lambda b: (b * 10.0, 95.0), loader=lambda s: 1e6, probe_takes=14.0, wobble=(1.0, 0.9, 0.95))
    result = run(rig)
    assert result.chosen.trial.batch_size == 128
    assert ("probe", 128) in rig.calls
    assert in_budget(result) <= 180.0


def test_compiling_is_beside_the_budget_and_as_long_as_it_at_most(fake_rig: Any) -> None:
    # given first calls of 65 s, each with 60 that only compiling takes
    rig = fake_rig(step=lambda b: (min(600.0, 8.0 * b), 95.0), compile_takes=65.0)
    result = run(rig)
    assert in_budget(result) <= 180.0
    # two probes and one size reach 180 s; then only stock torch's size follows, here 64, and the hold's own first call
    assert [call for call in rig.calls if call[0] == "probe"] == [("probe", 16), ("probe", 64)]
    assert sorted(result.rates.ceilings) == [16, 64]
    assert result.seconds["compiling"] == 5 * 60.0
    assert result.verdict.name == "passed"
    assert result.chosen.trial.batch_size == 64
    assert len(result.chosen.rounds) >= 5
    assert any("Compiling the step took 240 s of first calls" in note for note in result.notes)
    # those less than four times the one below are not worth compiling for
    assert any(note.startswith("Batch sizes 32, 128, 512 were left out: the step compiles") for note in result.notes)
    assert any(note.startswith("Batch sizes 256, 1024 were not tried") for note in result.notes)
