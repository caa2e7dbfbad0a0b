"""Model, space, memory and budget, each by itself."""

from __future__ import annotations

import dataclasses
import os
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.errors import ResourceError
from wellfed.pipeline.hardware import Fact
from wellfed.pipeline.hardware.nvml import GpuProcess, Reading
from wellfed.pipeline.loader.shared_memory import InFlight, block_bytes
from wellfed.pipeline.training import StepSpec, open_accelerator
from wellfed.pipeline.training.sharing import Sharers, find_sharers
from wellfed.pipeline.tune import preflight
from wellfed.pipeline.tune.budget import Budget
from wellfed.pipeline.tune.machine.rig import MachineRig
from wellfed.pipeline.tune.measure.differential import differential
from wellfed.pipeline.tune.measure.memory import MemoryPlan, fit_line
from wellfed.pipeline.tune.measure.parts import Plan, measure_parts
from wellfed.pipeline.tune.model.bottleneck import fit_curve
from wellfed.pipeline.tune.model.footprint import kept_open
from wellfed.pipeline.tune.model.space import Limits, all_points, fits, waiting_bytes, worker_counts
from wellfed.pipeline.tune.preflight import check_sharers, limits_of, words_on_busy_cores

ROOMY = Limits(cores=4, memory_bytes=None, shm_bytes=None)


def test_contention_is_fitted_from_two_counts() -> None:
    # r(w) = 100 w / (1 + 0.1 (w - 1)): 100 at one, 400 / 1.3 at four, 200 / 1.1 at two.
    curve = fit_curve({1: 100.0, 4: 400 / 1.3}, cores=8)
    assert curve.single == pytest.approx(100.0)
    assert curve.contention == pytest.approx(0.1)
    assert curve.rate(2) == pytest.approx(200 / 1.1)


def test_workers_beyond_the_cores_add_nothing_and_none_is_one() -> None:
    curve = fit_curve({1: 100.0, 2: 200.0}, cores=2)
    assert curve.rate(8) == curve.rate(2) == pytest.approx(200.0)
    assert curve.rate(0) == pytest.approx(100.0)


def test_faster_than_linear_is_taken_as_linear() -> None:
    assert fit_curve({1: 100.0, 4: 500.0}, cores=4).rate(2) == pytest.approx(250.0)


def test_worker_counts() -> None:
    assert worker_counts(1) == [0, 1]
    assert worker_counts(2) == [0, 1, 2]
    assert worker_counts(16) == [0, 1, 2, 4, 8, 12, 15, 16]


def test_shared_memory_bounds_processes_and_not_threads() -> None:
    # 64 x 3 x 224 x 224 bytes a batch, 4 workers x (2 + 1) batches.
    processes = LoaderSettings(backend="processes", num_workers=4, prefetch_factor=2, batch_size=64)
    threads = LoaderSettings(backend="threads", num_workers=4, prefetch_factor=2, batch_size=64)
    assert waiting_bytes(processes, 224) == 64 * 3 * 224 * 224 * 12
    # One worker: 2 under way and 2 in use; of 8 pixels a batch takes 1,536 bytes, and a page.
    one = LoaderSettings(backend="processes", num_workers=1, prefetch_factor=2, batch_size=8)
    assert waiting_bytes(one, 8) == 4 * 4096
    tight = Limits(cores=4, memory_bytes=None, shm_bytes=64 << 20)
    assert not fits(processes, tight, 224)
    assert fits(threads, tight, 224)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_the_tuner_counts_no_less_shared_memory_than_the_loader_asks_for(workers: int, prefetch: int) -> None:
    settings = LoaderSettings(backend="processes", num_workers=workers, prefetch_factor=prefetch, batch_size=7)
    batch = block_bytes(7 * 3 * 33 * 33)
    loader = InFlight(workers=workers, prefetch_factor=prefetch, batch_bytes=batch)

    assert waiting_bytes(settings, 33) >= loader.needed_bytes


def test_limits_come_from_the_facts() -> None:
    facts = [Fact("usable cores", 16), Fact("memory available", 1000), Fact("shared memory free", None)]
    limits = limits_of(facts)
    assert (limits.cores, limits.memory_bytes, limits.shm_bytes) == (16, 250, None)


def test_the_open_file_limit_bounds_worker_processes_and_not_threads() -> None:
    # 1,024 less 30 in use, 128 shards and 64 to spare: 802, of which a loader may take half.
    facts = [Fact("usable cores", 16), Fact("open files", 1024), Fact("open files now", 30)]
    limits = limits_of(facts, kept_open=128)
    assert limits.open_files == 401
    found = all_points([64], limits, 224, pin_memory=False)
    points = [found.at(place) for place in range(len(found))]
    # 8 and 5 a worker and batch on its way: 16 x (2 + 1) take 248, 16 x (4 + 1) 408.
    processes = {(p.num_workers, p.prefetch_factor) for p in points if p.backend == "processes"}
    assert (16, 2) in processes
    assert (16, 4) not in processes
    assert (12, 4) in processes
    assert (16, 4) in {(p.num_workers, p.prefetch_factor) for p in points if p.backend == "threads"}
    assert limits_of([Fact("usable cores", 16)]).open_files is None


def test_page_locked_batches_are_rounded_up_to_powers_of_two() -> None:
    # A batch of 80 x 3 x 224 x 224 bytes is 11.5 MiB, 16 page-locked: 12 of them 192 MiB instead of 138.
    settings = LoaderSettings(backend="threads", num_workers=4, prefetch_factor=2, batch_size=80, pin_memory=True)
    limits = Limits(cores=4, memory_bytes=191 << 20, shm_bytes=None)
    assert not fits(settings, limits, 224)
    assert fits(dataclasses.replace(settings, pin_memory=False), limits, 224)
    assert fits(settings, dataclasses.replace(limits, memory_bytes=192 << 20), 224)


class Rows:
    def __init__(self, index: np.ndarray) -> None:
        self.index = index

    def __len__(self) -> int:
        return len(self.index)


def test_a_folder_keeps_one_file_open_and_tars_their_shards() -> None:
    shards: Any = Rows(np.array([(0,), (2,), (1,)], dtype=[("shard", "u4")]))
    files: Any = Rows(np.array([(0,)], dtype=[("key", "u8")]))
    assert kept_open(shards) == 3
    assert kept_open(files) == 1


def user(pid: int, size: int | None, computes: bool = True) -> GpuProcess:
    return GpuProcess(pid, size, computes)


def shared(processes: Any, used: int = 0, *, own: frozenset[int] = frozenset(), own_bytes: int | None = 0) -> Sharers:
    return find_sharers(Reading(processes), Reading((80 << 30, used, 0)), own_pids=own, own_bytes=own_bytes)


def test_who_else_is_on_the_gpu() -> None:
    # Before this process has used the device everybody listed is somebody else, whatever the number.
    assert shared([user(7, 1)]).processes == (user(7, 1),)
    # A desktop draws and computes nothing.
    assert shared([user(7, 1, computes=False)]).processes == ()
    # Afterwards this process is in the list,
    assert shared([user(7, 1), user(8, 2)], own=frozenset({8}), own_bytes=None).processes == (user(7, 1),)
    # or, in a container, under a number of the host's: alone there it is this one, two are one too many.
    assert shared([user(7, 1)], own=frozenset({8}), own_bytes=None).processes == ()
    assert len(shared([user(7, 1), user(9, 1)], own=frozenset({8}), own_bytes=None).processes or ()) == 2
    # Memory in use by nobody in the list is a neighbour's container; the driver's own is not.
    assert shared([], 9 << 30).unlisted_bytes == 9 << 30
    assert shared([], 300 << 20).unlisted_bytes == 0
    unknown = find_sharers(Reading(None, "no"), Reading(None), own_pids=frozenset(), own_bytes=0)
    assert (unknown.processes, unknown.reason) == (None, "no")


class Card:
    name = "cuda:0"

    def __init__(self, sharers: Sharers) -> None:
        self.found = sharers

    def sharers(self) -> Sharers:
        return self.found


def test_a_shared_gpu_is_refused_by_name_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    this = os.getpid()
    card: Any = Card(Sharers(processes=(user(this, 3 << 30), user(1 << 30, None)), unlisted_bytes=1 << 30))
    monkeypatch.setattr(preflight, "process_name", lambda pid: "train.py" if pid == this else None)
    with pytest.raises(ResourceError, match="--allow-shared-gpu") as caught:
        check_sharers(card, allowed=False)
    assert f"process {this} (train.py) with 3072 MiB, process {1 << 30} with an unknown amount" in str(caught.value)
    assert "whom NVML does not list here with 1024 MiB" in str(caught.value)
    note = check_sharers(card, allowed=True)
    assert note is not None
    assert f"process {this} (train.py)" in note
    free: Any = Card(Sharers(processes=()))
    assert check_sharers(free, allowed=False) is None
    unknown: Any = Card(Sharers(processes=None, reason="no NVML"))
    assert check_sharers(unknown, allowed=False) == "Whether other programs use the device is not known: no NVML."


def plan(rig: Any, sizes: tuple[int, ...], cap_mebi: int) -> MemoryPlan:
    return MemoryPlan(probe=rig.probe, sizes=sizes, cap_bytes=cap_mebi << 20, cap_share=0.7)


def test_a_line_through_two_small_probes_says_what_fits(fake_rig: Any) -> None:
    rig = fake_rig()  # 500 + 20 b MiB
    memory = plan(rig, (16, 32, 64, 128, 256, 512), 6000)
    memory.start()
    assert rig.calls == [("probe", 16), ("probe", 64)]
    assert memory.expected(256) == pytest.approx((500 + 20 * 256) * 2**20)
    # 5,620 MiB at 256 is over 92% of the cap: not without a probe.
    assert memory.likely(128)
    assert not memory.likely(256)
    assert memory.check(256)
    assert memory.likely(256)
    assert memory.largest() == 256


def test_out_of_memory_in_a_probe_rules_out_all_above(fake_rig: Any) -> None:
    memory = plan(fake_rig(probe_fails_at=64), (16, 32, 64, 128), 60_000)
    memory.start()
    assert not memory.likely(64)
    assert not memory.likely(128)
    assert memory.likely(32)  # probed, since one point makes no line


def test_nothing_under_the_cap_is_an_error_with_the_numbers(fake_rig: Any) -> None:
    with pytest.raises(ResourceError, match=r"600 MiB .*smallest batch size, 16; got '?820 MiB"):
        plan(fake_rig(), (16, 32), 600).start()


def test_memory_that_is_not_measured_rules_nothing_out(fake_rig: Any) -> None:
    memory = plan(fake_rig(probe_error="no NVML"), (16, 1024), 6000)
    memory.start()
    assert memory.likely(1024)
    assert memory.unmeasured == "no NVML"
    assert memory.to_dict()["fit"] is None


def test_a_line_needs_two_sizes() -> None:
    assert fit_line([(16, 100)]) is None
    line = fit_line([(10, 100), (20, 150)])
    assert line is not None
    assert (line.intercept_bytes, line.bytes_per_sample) == (50.0, 5.0)


def test_a_budget_sets_the_length_of_a_measurement() -> None:
    now = [10.0]
    budget = Budget(60.0, lambda: now[0], started=10.0)
    assert budget.slice_seconds == pytest.approx(60 / 90)
    assert Budget(180.0, lambda: 0.0, 0.0).slice_seconds == 2.0
    assert Budget(5.0, lambda: 0.0, 0.0).slice_seconds == 0.4
    now[0] = 40.0
    assert budget.left == 30.0
    assert budget.rates_done()


def test_the_time_left_decides_how_many_candidates_are_tried() -> None:
    # 120 s left hold 24 windows of 2 s with what goes with them: 5 for stock torch, 6 for those that stay
    assert Budget(180.0, lambda: 60.0, 0.0).candidates(5, fixed=1, most=20) == 13
    assert Budget(180.0, lambda: 60.0, 0.0).candidates(5, fixed=1, most=8) == 8
    assert Budget(180.0, lambda: 160.0, 0.0).candidates(5, fixed=1, most=8) == 2


def test_backends_that_decode_on_the_device_wait_with_a_bounded_number_of_batches() -> None:
    # 2 x 2 + 4 ahead and the one in use, of 64 x 3 x 224 x 224 bytes, whatever the workers.
    for workers in (1, 8):
        settings = LoaderSettings(backend="dali", num_workers=workers, prefetch_factor=2, batch_size=64)
        assert waiting_bytes(settings, 224) == 9 * 64 * 3 * 224 * 224


CUDA = Limits(cores=8, memory_bytes=None, shm_bytes=None, backends=("threads", "processes", "dali", "nvjpeg", "hybrid"))


def measured(rig: Any, limits: Limits = CUDA, *, stop: Any = lambda: False, pin_memory: bool = True) -> Any:
    memory = plan(rig, (64, 256), 60_000)
    memory.start()
    return measure_parts(rig, memory, limits, Plan(0.5, 224, pin_memory, 70.0, (), stop))


def test_decoding_beside_the_step_is_measured_at_two_hardware_shares(fake_rig: Any) -> None:
    # given a step of 1,000 samples/s (saturated from batch 64 on) from which DALI takes 200 us an image at a share of
    # 0.75 and 100 us at 1.0, and of which 4 workers give 900: less than the step takes, so every second batch
    costs = {0.75: 200e-6, 1.0: 100e-6}
    rig = fake_rig(
        step=lambda b: (1000.0, 95.0),
        loader=lambda s: 900.0 if s.backend == "dali" else 100.0 * s.num_workers,
        decode_cost=lambda s: costs[s.hw_decoder_load],
    )
    rates = measured(rig)
    assert [call for call in rig.calls if call[0] == "beside"] == [
        ("beside", "dali", 0.75, 2),
        ("beside", "dali", 1.0, 2),
    ]
    assert rates.decode_costs()["dali"] == pytest.approx(costs)
    # Beside the step with half of the images: 1 / (1 / 1000 + 0.5 x 200 us), far from what either side could give.
    model = rates.model(8)
    prediction = model.predict(LoaderSettings(backend="hybrid", num_workers=8, batch_size=64, gpu_share=0.5))
    assert prediction is not None
    assert prediction.samples_per_second == pytest.approx(1 / 1.1e-3)


def test_reading_is_measured_cold_and_warm_in_both_orders_or_says_why_not(fake_rig: Any) -> None:
    rates = measured(fake_rig(reading=1000.0), ROOMY)
    assert rates.reads == {
        ("random", "warm"): 1000.0,
        ("sequential", "warm"): 1000.0,
        ("random", "cold"): 50.0,
        ("sequential", "cold"): 250.0,
    }
    without = measured(fake_rig(no_cold="tmpfs keeps its pages"), ROOMY)
    assert without.reads["random", "cold"] == "tmpfs keeps its pages"
    assert {"order": "random", "cache": "cold", "samples_per_second": None, "reason": "tmpfs keeps its pages"} in (
        without.parts_to_dict()["reading"]
    )


def test_where_time_is_short_only_a_ceiling_and_one_loader_are_measured(fake_rig: Any) -> None:
    rig = fake_rig()
    rates = measured(rig, stop=lambda: True)
    assert len(rates.ceilings) == 1
    assert len(rates.loaders) == 1
    assert rates.beside == []
    assert set(rates.reads.values()) == {"the time for measuring parts was over"}


def test_copies_are_measured_pinned_and_not_where_batches_can_be_pinned(fake_rig: Any) -> None:
    rates = measured(fake_rig(copying=9000.0, pageable=4000.0))
    assert (rates.copy_rates, rates.copy_rate) == ({True: 9000.0, False: 4000.0}, 9000.0)
    assert measured(fake_rig(), ROOMY, pin_memory=False).copy_rates == {False: 1_000_000.0}


def test_a_differential_says_what_each_part_adds(fake_rig: Any) -> None:
    # given a step of 600 samples/s and loaders of 500 from memory, 450 from files and 250 from the storage
    rig = fake_rig(loader=lambda s: 500.0, wobble=(1.0,))
    table = differential(rig, LoaderSettings(batch_size=64), seconds=1.0).to_dict()
    assert [row["stage"] for row in table["rows"]] == ["step", "bytes", "files", "storage"]
    assert [row["samples_per_second"] for row in table["rows"]] == pytest.approx([600, 500, 450, 250])
    added = [row["added_seconds_per_sample"] for row in table["rows"]]
    assert added[0] is None
    assert added[1:] == pytest.approx([1 / 500 - 1 / 600, 1 / 450 - 1 / 500, 1 / 250 - 1 / 450])


def test_a_stage_that_cannot_be_measured_keeps_its_reason(fake_rig: Any) -> None:
    rig = fake_rig(no_cold="LMDB's pages stay")
    last = differential(rig, LoaderSettings(batch_size=64), seconds=1.0).to_dict()["rows"][-1]
    assert (last["samples_per_second"], last["reason"]) == (None, "LMDB's pages stay")


def test_cores_that_others_use_are_told() -> None:
    assert words_on_busy_cores(None) is None
    assert words_on_busy_cores(0.09) is None
    assert (words_on_busy_cores(0.433) or "").startswith("Other programs took 43% of the cores while this was measured")


@pytest.mark.parametrize(
    ("pauses", "seconds", "rate"),
    [
        # 2 workers that began together: 64 samples after 0.41 s and after 0.6 s more, again and again; a window of
        # 0.4 s would hold the first of them alone and say 156
        ((0.41, 0.6), 0.4, 4 * 64 / 2.02),
        # where even four take more than four windows, what came is what there is
        ((1.0, 1.0), 0.4, 2 * 64 / 2.0),
        # a fast loader takes its time and no longer
        ((0.1, 0.1), 0.8, 8 * 64 / 0.8),
    ],
)
def test_a_slow_loader_alone_is_measured_over_several_batches(
    monkeypatch: pytest.MonkeyPatch, pauses: tuple[float, float], seconds: float, rate: float
) -> None:
    class Pausing:
        def __init__(self) -> None:
            self.now, self.number = 0.0, 0

        def __next__(self) -> Any:
            self.now = round(self.now + pauses[(self.number + 1) % 2], 6)
            self.number += 1
            return torch.zeros((64, 3, 2, 2), dtype=torch.uint8), torch.zeros(64, dtype=torch.int64)

        def close(self) -> None: ...

    feed = Pausing()
    spec = StepSpec(name="resnet50", image_size=32)
    with closing(open_accelerator("simulated")) as accelerator:
        rig = MachineRig(SimpleNamespace(), spec, "simulated", accelerator, clock=lambda: feed.now)  # type: ignore[arg-type]
        monkeypatch.setattr(rig._loaders, "feed", lambda settings, batch_size: feed)
        found = rig.loader_alone(LoaderSettings(num_workers=2, batch_size=64), seconds)
    assert found == pytest.approx(rate)
