"""Whole tunes on a machine of formulas: every verdict, the budget and the interruption."""

from __future__ import annotations

from typing import Any

import pytest

from wellfed.pipeline.config import LoaderSettings, TuneRequest
from wellfed.pipeline.errors import ResourceError
from wellfed.pipeline.tune.driver import Device, Driver
from wellfed.pipeline.tune.model.space import Limits

LIMITS = Limits(cores=2, memory_bytes=None, shm_bytes=None)
EIGHT_GIB = Device(8 << 30, pin_memory=False)


def run(rig: Any, *, limits: Limits = LIMITS, device: Device = EIGHT_GIB, **more: Any) -> Any:
    request = TuneRequest(data="set", step="resnet50", **more)
    return Driver(rig, request, limits, device).run()


def test_a_loader_that_feeds_the_step_passes(fake_rig: Any) -> None:
    # given a step of 600 samples/s at every batch size and a loader of 400 a worker
    rig = fake_rig()
    # when
    result = run(rig)
    # then two workers and the smallest batch feed it
    assert result.verdict.name == "passed"
    assert result.verdict.binds is None
    settings = result.chosen.trial.settings
    assert (settings.batch_size, settings.num_workers, settings.backend) == (16, 2, "threads")
    assert result.hold.seconds >= 60
    assert result.hold.epochs_crossed >= 1
    assert result.hold.fed.low > 0.99
    assert rig.held == 0
    assert not rig.open_trials


def test_stock_torch_is_in_the_report_and_slower(fake_rig: Any) -> None:
    result = run(fake_rig())
    stock = next(r for r in result.records if r.trial.role == "stock")
    assert stock.trial.batch_size == 64
    assert len(stock.rounds) >= 5
    comparison = next(c for c in result.comparisons if c.b == "stock")
    assert comparison.conclusion == "better"
    assert comparison.interval.value == pytest.approx(4.0, rel=0.01)


def test_every_round_measures_each_live_trial_and_its_ceiling(fake_rig: Any) -> None:
    result = run(fake_rig())
    for record in result.records:
        if record.left is None:
            assert sorted(record.rounds) == [0, 1, 2, 3, 4]
        for measurement in record.rounds.values():
            assert measurement.ceiling.batch_size == measurement.window.batch_size


def test_slow_decoding_is_data_limited_with_the_number_of_cores(fake_rig: Any) -> None:
    # given 4,600 samples/s against 350 a core: 0.9 x 4,600 / 350 = 11.8
    rig = fake_rig(step=lambda b: (4600.0, 95.0), loader=lambda s: 350.0 * max(1, s.num_workers))
    result = run(rig)
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "decode")
    assert any("12 cores like these" in line for line in result.verdict.advice)


def test_a_batch_that_cannot_reach_the_target_is_not_taken_for_a_tie(fake_rig: Any) -> None:
    # given launches of 18 ms, so that batch 16 leaves the device at 19% even on cached batches
    def step(batch: int) -> tuple[float, float]:
        seconds = max(0.018, batch / 4600)
        return batch / seconds, 100 * batch / 4600 / seconds

    result = run(fake_rig(step=step, loader=lambda s: 350.0 * max(1, s.num_workers)))
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "decode")
    assert result.chosen.trial.batch_size == 64  # 77%


def test_slow_reading_is_storage(fake_rig: Any) -> None:
    # 300 samples/s read by one thread, and the loader gets no more than two such threads give
    rig = fake_rig(loader=lambda s: 150.0 * max(1, s.num_workers), reading=160.0)
    result = run(rig)
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "storage")
    # 0.9 x 600 needed, 2 x 160 read: 1.7 times
    assert "1.7 times as fast" in result.verdict.advice[0]


def test_a_slow_copy_is_named(fake_rig: Any) -> None:
    result = run(fake_rig(share_beside=0.5, copying=500.0))
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "copy")


def test_a_loader_that_is_fast_only_by_itself_is_python(fake_rig: Any) -> None:
    result = run(fake_rig(share_beside=0.5))
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "Python")


def test_shared_memory_that_keeps_workers_away_is_memory(fake_rig: Any) -> None:
    # given room for one worker's batches on four cores, in memory
    batch = 64 * 3 * 224 * 224
    limits = Limits(cores=4, memory_bytes=4 * batch, shm_bytes=None)
    result = run(fake_rig(loader=lambda s: 200.0 * max(1, s.num_workers)), limits=limits, batch_sizes=(64,))
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "memory")


def test_growing_host_memory_is_memory(fake_rig: Any) -> None:
    result = run(fake_rig(growth_bytes_per_second=2e6))
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "memory")
    assert "MB an epoch" in result.verdict.advice[0]


def test_a_step_bound_by_launches_is_step_limited_with_its_numbers(fake_rig: Any) -> None:
    rig = fake_rig(step=lambda b: (600.0, 40.0))
    result = run(rig)
    assert result.verdict.name == "step_limited"
    assert "40% at batch" in result.verdict.summary
    assert "10.0 ms" in result.verdict.summary
    assert any("torch.compile" in line for line in result.verdict.advice)


def test_step_limited_names_the_batch_that_would_do_beyond_the_cap(fake_rig: Any) -> None:
    rig = fake_rig(step=lambda b: (10.0 * b, b / 4), loader=lambda s: 1e6)
    result = run(rig, batch_sizes=(16, 32, 64))
    assert result.verdict.name == "step_limited"
    # 16% at batch 64 grows in proportion: 70% and 5% more need 294, in steps of 16 that is 304
    assert any("batch 304 would do" in line for line in result.verdict.advice)
    assert result.verdict.binds == "launches"


def test_without_a_counter_it_is_unmeasurable_and_settings_are_still_chosen(fake_rig: Any) -> None:
    result = run(fake_rig(util_reason="a MIG slice reports none"))
    assert result.verdict.name == "unmeasurable"
    assert "a MIG slice reports none" in result.verdict.summary
    assert result.chosen.trial.settings.num_workers == 2
    assert result.hold.util is None
    assert result.hold.fed is not None


def test_nothing_better_than_the_present_settings_is_regressed(fake_rig: Any) -> None:
    present = LoaderSettings(backend="processes", num_workers=1, batch_size=32, pin_memory=False)
    rig = fake_rig(loader=lambda s: 550.0 if s == present else 300.0)
    result = run(rig, current=present)
    assert result.verdict.name == "regressed"
    assert result.chosen.trial.role == "current"
    assert result.chosen.trial.settings == present
    assert "No setting beats" in result.verdict.summary


def test_better_than_the_present_settings_is_compared_with_them(fake_rig: Any) -> None:
    present = LoaderSettings(backend="threads", num_workers=0, batch_size=64, pin_memory=False)
    result = run(fake_rig(loader=lambda s: 300.0 * max(1, s.num_workers)), current=present)
    assert result.verdict.name == "passed"
    comparison = next(c for c in result.comparisons if c.b == "current")
    assert comparison.conclusion == "better"
    assert comparison.interval.value == pytest.approx(2.0, rel=0.01)


def test_of_batch_sizes_within_two_percent_the_smallest(fake_rig: Any) -> None:
    speeds = {16: 300.0, 32: 500.0, 64: 590.0, 128: 600.0}
    rig = fake_rig(step=lambda b: (speeds.get(b, 600.0), 95.0), loader=lambda s: 5000.0)
    result = run(rig)
    assert result.chosen.trial.batch_size == 64
    # and what gains less than 2% is where the look upwards ends
    assert ("ceiling", 256) not in rig.calls


def test_a_large_batch_is_never_returned_unmeasured(fake_rig: Any) -> None:
    rig = fake_rig(step=lambda b: (b * 10.0, 95.0), loader=lambda s: 1e6)
    result = run(rig)
    size = result.chosen.trial.batch_size
    assert ("probe", size) in rig.calls
    assert result.memory.probes[size].peak_bytes < 0.7 * (8 << 30)
    # 500 + 20 b MiB under 5,734 MiB: 128 by the line (256 is over 92% of the cap)
    assert size == 128


def test_running_out_where_the_line_promised_room_falls_back(fake_rig: Any) -> None:
    rig = fake_rig(step=lambda b: (b * 10.0, 95.0), loader=lambda s: 1e6, fails_at=128)
    result = run(rig)
    assert result.chosen.trial.batch_size == 64
    assert result.verdict.name == "passed"


def test_a_probe_that_runs_out_takes_the_next_smaller(fake_rig: Any) -> None:
    rig = fake_rig(step=lambda b: (b * 10.0, 95.0), loader=lambda s: 1e6, probe_fails_at=128)
    result = run(rig)
    assert result.chosen.trial.batch_size == 64
    barred = [r for r in result.records if r.barred]
    assert all(r.trial.batch_size == 128 for r in barred)


def test_where_nothing_that_was_tried_fits_a_smaller_size_is(fake_rig: Any) -> None:
    # given a step that gains from every sample, and a line through 8 and 32 that promises 48 and 64, wrongly
    rig = fake_rig(step=lambda b: (b * 10.0, 95.0), loader=lambda s: 1e6, probe_fails_at=40)
    result = run(rig, batch_sizes=(8, 32, 48, 64))
    # then 64 and 48, where also stock torch was tried, are out, and 32 is tried in their place, beside stock torch
    assert result.chosen.trial.batch_size == 32
    assert {r.trial.batch_size for r in result.records if r.barred} == {48, 64}
    stock = [r for r in result.records if r.trial.role == "stock"]
    assert [(r.trial.batch_size, r.barred) for r in stock] == [(64, True), (32, False)]
    assert stock[1].rounds
    assert len({r.trial.id for r in result.records}) == len(result.records)
    assert {c.b for c in result.comparisons} >= {stock[1].trial.id}


def test_nothing_under_the_cap_is_an_error(fake_rig: Any) -> None:
    with pytest.raises(ResourceError, match="memory cap"):
        run(fake_rig(), memory_cap=0.05)


def test_an_interrupt_anywhere_leaves_nothing_held_and_gives_the_best_so_far(fake_rig: Any) -> None:
    whole = fake_rig()
    rounds = len([record for record in run(whole).records if record.left is None])
    outcomes = []
    for after in range(0, whole.windows, 3):
        rig = fake_rig(interrupt_after=after)
        try:
            result = run(rig)
        except KeyboardInterrupt:
            outcomes.append("nothing")
        else:
            outcomes.append("result")
            # then there is a verdict from what was measured, and every live trial had a round
            assert result.interrupted
            assert result.verdict.name == "passed"
            assert result.hold is None
            assert all(record.rounds for record in result.records if record.left is None)
            assert result.chosen.trial.settings.num_workers == 2
            assert any(note.startswith("Interrupted in ") for note in result.notes)
        assert rig.held == 0
    # nothing before the first whole round, and something at any time after it
    assert rounds > 2
    assert outcomes == sorted(outcomes)
    assert {"nothing", "result"} == set(outcomes)


def test_an_interrupt_in_the_hold_keeps_the_winner_and_says_where(fake_rig: Any) -> None:
    whole = run(fake_rig())
    ended = fake_rig()
    run(ended)
    rig = fake_rig(interrupt_after=ended.windows - 2)
    result = run(rig)
    assert result.chosen.trial.settings == whole.chosen.trial.settings
    assert any(
        "Interrupted in the hold: the best of 5 rounds was taken, and nothing was held" in n for n in result.notes
    )


def test_an_interrupted_choice_says_where_its_batch_size_was_never_probed(fake_rig: Any) -> None:
    # given larger batches that are faster: 16 and 64 are probed at first, and 128 wins the rounds
    def rig(**more: Any) -> Any:
        return fake_rig(step=lambda b: (b * 10.0, 95.0), loader=lambda s: 1e6, **more)

    whole = rig()
    run(whole)
    notes = {}
    for after in range(whole.windows):
        try:
            result = run(rig(interrupt_after=after))
        except KeyboardInterrupt:
            continue
        assert result.chosen.trial.batch_size == 128
        probed = 128 in result.memory.probes
        assert (result.chosen_probe is not None) == probed
        notes[probed] = [note for note in result.notes if "not yet probed by itself" in note]
    # 500 + 20 x 128 MiB
    assert notes[False] == [
        "Batch 128 was run beside the other trials, where device memory peaked at 2.99 GiB, and not yet probed by "
        "itself: that it stays under the memory cap is not certain."
    ]
    assert notes[True] == []


def test_an_interrupt_never_gives_a_batch_size_whose_probe_was_over_the_cap(fake_rig: Any) -> None:
    class Interrupted(fake_rig):  # type: ignore[misc]
        def probe(self, batch_size: int, settings: Any = None) -> Any:
            found = super().probe(batch_size, settings)
            if found.out_of_memory:
                driver.result.memory.probes[batch_size] = found
                raise KeyboardInterrupt
            return found

    # 64 at 640 of 800 samples/s is near enough to be among the trials
    rig = Interrupted(step=lambda b: (min(800.0, b * 10.0), 95.0), loader=lambda s: 1e6, probe_fails_at=128)
    driver: Any = Driver(rig, TuneRequest(data="set", step="resnet50"), LIMITS, EIGHT_GIB)
    result = driver.run()
    assert result.interrupted
    assert result.chosen.trial.batch_size == 64


def test_keeping_workers_is_judged_by_the_cost_of_an_epoch_boundary(fake_rig: Any) -> None:
    rig = fake_rig(loader=lambda s: (400.0 if s.backend == "processes" else 250.0) * max(1, s.num_workers))
    result = run(rig)
    assert result.chosen.trial.settings.backend == "processes"
    assert result.chosen.trial.settings.persistent_workers
    # three of each, in turn, the other kind first each time
    assert [keep for name, *rest in rig.calls if name == "boundary" for keep in rest] == [1, 0, 0, 1, 1, 0]
    assert result.rates.parts_to_dict()["boundary_seconds"] == {
        "kept": 0.1,
        "new": 4.0,
        "kept_rounds": [0.1] * 3,
        "new_rounds": [4.0] * 3,
    }
    assert (
        "persistent_workers=True: an epoch boundary takes 0.10 s with workers that are kept and 4.00 s with new ones "
        "(median of 3 each, in turn)." in result.notes
    )


def test_workers_that_cost_more_when_kept_are_started_anew_and_held_so(fake_rig: Any) -> None:
    rig = fake_rig(loader=lambda s: (400.0 if s.backend == "processes" else 250.0) * max(1, s.num_workers))
    rig.boundaries = {True: 2.0, False: 0.5}
    result = run(rig)
    assert result.chosen.trial.settings.persistent_workers is False
    assert result.chosen.trial.label.endswith("new workers each epoch")
    # none of them lived through the hold, so nothing is said of their growth
    assert result.hold.workers.slope is None
    assert any(note.startswith("persistent_workers=False: an epoch boundary takes 2.00 s") for note in result.notes)


def test_boundaries_stay_in_their_share_of_the_budget_and_what_is_missing_is_said(fake_rig: Any) -> None:
    # given boundaries of 3 s each way and 5% of 180 s for them: a pair is over at 6 s, a second one would not be at 9
    rig = fake_rig(boundary_takes=3.0, boundaries={True: 2.0, False: 0.5})
    result = run(rig)
    assert [call[0] for call in rig.calls].count("boundary") == 2
    assert result.chosen.trial.settings.persistent_workers is True
    assert result.seconds["total"] - result.seconds["hold"] <= 180.0
    assert any("was not judged, and workers are kept" in note and "needs 3 of each" in note for note in result.notes)


def test_boundaries_of_batches_that_take_seconds_are_not_begun_where_their_share_would_not_do(fake_rig: Any) -> None:
    # given 80 samples/s at batch 200 and 5% of 180 s: three batches on each side of a pair of boundaries are 15 s
    rig = fake_rig(step=lambda b: (5000.0, 95.0), loader=lambda s: 80.0 if s.backend == "processes" else 20.0)
    result = run(rig, batch_sizes=(200,))
    assert result.chosen.trial.settings.backend == "processes"
    assert "boundary" not in [call[0] for call in rig.calls]
    assert result.chosen.trial.settings.persistent_workers is True
    assert "persistent_workers was not judged: the budget left no time for epoch boundaries." in result.notes


def test_workers_are_kept_where_no_boundary_was_measured(fake_rig: Any) -> None:
    # given a search that took the settings with new workers each epoch, which it cannot tell from those that keep them
    def loader(settings: LoaderSettings) -> float:
        if settings.backend == "threads":
            return 100.0
        return 250.0 if settings.persistent_workers else 300.0

    rig = fake_rig(loader=loader, boundary_takes=100.0)
    result = run(rig)
    assert result.chosen.trial.settings.backend == "processes"
    assert result.chosen.trial.settings.persistent_workers is True
    assert any("was not judged, and workers are kept" in note for note in result.notes)


def test_present_settings_are_told_of_their_boundaries_and_left_as_they_are(fake_rig: Any) -> None:
    present = LoaderSettings(backend="processes", num_workers=1, batch_size=32, pin_memory=False)
    rig = fake_rig(loader=lambda s: 550.0 if s == present else 300.0, boundaries={True: 2.0, False: 0.5})
    result = run(rig, current=present)
    assert result.chosen.trial.settings == present
    assert any(note.startswith("persistent_workers=False: ") for note in result.notes)


def test_growth_of_long_lived_workers_has_a_slope_of_its_own(fake_rig: Any) -> None:
    def loader(s: LoaderSettings) -> float:
        return (400.0 if s.backend == "processes" else 250.0) * max(1, s.num_workers)

    result = run(fake_rig(loader=loader, worker_growth=3e5, growth_bytes_per_second=4e5))
    workers = result.hold.to_dict()["worker_memory"]
    assert workers["processes"] == 2
    assert workers["slope_bytes_per_second"] == pytest.approx(3e5, rel=1e-3)
    assert workers["low"] <= 3e5 + 1 <= workers["high"] + 2
    assert result.hold.to_dict()["host_memory"]["slope_bytes_per_second"] == pytest.approx(4e5, rel=1e-3)
    # 4e5 bytes/s for epochs of 5.3 s are under 5 MB an epoch
    assert result.verdict.name == "passed"

    # threads have no processes that could grow
    alone = run(fake_rig()).hold.to_dict()["worker_memory"]
    assert (alone["slope_bytes_per_second"], alone["processes"]) == (None, 0)
    assert alone["reason"] == "there were no worker processes whose memory could be read"


def test_growing_workers_are_named_as_such(fake_rig: Any) -> None:
    def loader(s: LoaderSettings) -> float:
        return (400.0 if s.backend == "processes" else 250.0) * max(1, s.num_workers)

    result = run(fake_rig(loader=loader, worker_growth=1.8e6, growth_bytes_per_second=2e6))
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "memory")
    # 90% of the growth, of 2 MB/s for epochs of 5.3 s
    assert "of which its 2 worker processes take 90%" in result.verdict.advice[0]
    assert "persistent_workers=False" in result.verdict.advice[0]

    result = run(fake_rig(loader=loader, worker_growth=0.0, growth_bytes_per_second=2e6))
    assert "worker processes keep theirs" in result.verdict.advice[0]
    # pages that workers inherit and write to are growth that the sum of resident pages does not see
    result = run(fake_rig(loader=loader, worker_growth=2e6))
    assert result.verdict.name == "passed"
    assert any(note.startswith("Worker processes grow by ") for note in result.notes)


@pytest.mark.parametrize("speed", [400.0, 100.0])
def test_progress_only_moves_forward(fake_rig: Any, speed: float) -> None:
    seen: list[float] = []
    rig = fake_rig(loader=lambda s: speed * max(1, s.num_workers))  # 100: data binds, which is measured after the hold
    request = TuneRequest(data="set", step="resnet50")
    Driver(rig, request, LIMITS, EIGHT_GIB, progress=lambda message, share: seen.append(share)).run()
    assert seen == sorted(seen)
    assert 0 <= seen[0] <= seen[-1] < 1
