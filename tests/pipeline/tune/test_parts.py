"""Model, space, memory and budget, each by itself."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import pytest

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.errors import ResourceError
from wellfed.pipeline.hardware import Fact
from wellfed.pipeline.hardware.nvml import GpuProcess, Reading
from wellfed.pipeline.training.sharing import Sharers, find_sharers
from wellfed.pipeline.tune import preflight
from wellfed.pipeline.tune.budget import Budget
from wellfed.pipeline.tune.footprint import kept_open
from wellfed.pipeline.tune.memory import MemoryPlan, fit_line
from wellfed.pipeline.tune.model import Model, fit_curve
from wellfed.pipeline.tune.preflight import check_sharers, limits_of
from wellfed.pipeline.tune.space import Limits, all_points, fits, shortlist, waiting_bytes, worker_counts

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


def test_the_slower_part_decides() -> None:
    model = Model({64: 600.0}, {"threads": fit_curve({1: 200.0}, cores=4)})
    settings = LoaderSettings(backend="threads", num_workers=2, batch_size=64)
    assert model.predict(settings) == pytest.approx(400.0)
    assert model.predict(LoaderSettings(backend="threads", num_workers=4, batch_size=64)) == pytest.approx(600.0)
    assert model.predict(LoaderSettings(backend="processes", batch_size=64)) is None
    assert model.predict(LoaderSettings(backend="threads", batch_size=32)) is None


def test_worker_counts() -> None:
    assert worker_counts(1) == [0, 1]
    assert worker_counts(2) == [0, 1, 2]
    assert worker_counts(16) == [0, 1, 2, 4, 8, 12, 16]


def test_shared_memory_bounds_processes_and_not_threads() -> None:
    # 64 x 3 x 224 x 224 bytes a batch, 4 workers x (2 + 1) batches.
    processes = LoaderSettings(backend="processes", num_workers=4, prefetch_factor=2, batch_size=64)
    threads = LoaderSettings(backend="threads", num_workers=4, prefetch_factor=2, batch_size=64)
    assert waiting_bytes(processes, 224) == 64 * 3 * 224 * 224 * 12
    tight = Limits(cores=4, memory_bytes=None, shm_bytes=64 << 20)
    assert not fits(processes, tight, 224)
    assert fits(threads, tight, 224)
    points = all_points([64], tight, 224, pin_memory=False)
    assert {p.num_workers for p in points if p.backend == "threads"} == {0, 1, 2, 3, 4}
    assert all(p.num_workers <= 2 for p in points if p.backend == "processes")


def test_limits_come_from_the_facts() -> None:
    facts = [Fact("usable cores", 16), Fact("memory available", 1000), Fact("shared memory free", None)]
    limits = limits_of(facts)
    assert (limits.cores, limits.memory_bytes, limits.shm_bytes) == (16, 250, None)


def test_the_open_file_limit_bounds_worker_processes_and_not_threads() -> None:
    # 1,024 less 30 in use, 128 shards and 64 to spare: 802, of which a loader may take half.
    facts = [Fact("usable cores", 16), Fact("open files", 1024), Fact("open files now", 30)]
    limits = limits_of(facts, kept_open=128)
    assert limits.open_files == 401
    points = all_points([64], limits, 224, pin_memory=False)
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


def test_the_shortlist_starts_with_the_fewest_workers_that_feed_the_step() -> None:
    model = Model({64: 600.0}, {"threads": fit_curve({1: 400.0, 4: 1600.0}, cores=4)})
    chosen = shortlist(all_points([64], ROOMY, 224, pin_memory=False), model, count=3)
    first, predicted = chosen[0]
    assert (first.backend, first.num_workers, first.prefetch_factor) == ("threads", 2, 2)
    assert predicted == pytest.approx(600.0)
    assert [p.num_workers for p, _ in chosen[1:2]] == [4]


def test_the_shortlist_holds_every_backend_and_another_batch_size() -> None:
    curves = {name: fit_curve({4: 400.0}, cores=4) for name in ("threads", "processes")}
    model = Model({64: 600.0, 128: 610.0}, curves)
    chosen = [p for p, _ in shortlist(all_points([64, 128], ROOMY, 224, pin_memory=False), model, count=4)]
    assert {p.backend for p in chosen} == {"threads", "processes"}
    assert {p.batch_size for p in chosen} == {64, 128}
    assert len(set(chosen)) == 4


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


ON_CUDA = Limits(
    cores=4, memory_bytes=None, shm_bytes=None, backends=("threads", "processes", "dali", "nvjpeg", "hybrid")
)


def test_the_space_holds_the_backends_that_the_device_can_run() -> None:
    points = all_points([64], ON_CUDA, 224, pin_memory=True)
    assert {point.backend for point in points} == {"threads", "processes", "dali", "nvjpeg", "hybrid"}
    assert {point.backend for point in points if point.num_workers == 0} == {"threads"}
    assert {point.gpu_share for point in points if point.backend == "hybrid"} == {0.66, 0.33, 0.5, 0.8}
    # A share is the hybrid's: elsewhere it would make two points of one.
    assert {point.gpu_share for point in points if point.backend != "hybrid"} == {0.66}
    assert {point.backend for point in all_points([64], ROOMY, 224, pin_memory=True)} == {"threads", "processes"}


def test_backends_that_decode_on_the_device_wait_with_a_bounded_number_of_batches() -> None:
    # 2 x 2 + 4 ahead and the one in use, of 64 x 3 x 224 x 224 bytes, whatever the workers.
    for workers in (1, 8):
        settings = LoaderSettings(backend="dali", num_workers=workers, prefetch_factor=2, batch_size=64)
        assert waiting_bytes(settings, 224) == 9 * 64 * 3 * 224 * 224


def test_the_hybrid_is_as_fast_as_the_side_that_is_slower_for_its_share() -> None:
    curves = {
        "threads": fit_curve({1: 100.0, 8: 800.0}, cores=8),
        "dali": fit_curve({1: 900.0, 8: 900.0}, cores=8),
        "hybrid": fit_curve({1: 1.0}, cores=8),
    }
    model = Model({64: 5000.0}, curves)

    def predicted(share: float) -> float | None:
        return model.predict(LoaderSettings(backend="hybrid", num_workers=8, batch_size=64, gpu_share=share))

    # Of 8 workers DALI's host gets 2 and the CPU side 6: 600 samples/s. Faster than linear counts as linear, so DALI's
    # flat 900 is 900 at any number.
    assert predicted(0.5) == pytest.approx(600 / 0.5)
    assert predicted(0.8) == pytest.approx(900 / 0.8)
    assert predicted(0.66) == pytest.approx(900 / 0.66)
    assert predicted(0.0) == pytest.approx(600.0)
    assert predicted(1.0) == pytest.approx(900.0)
    # Without the sides, what the backend itself did.
    assert Model({64: 5000.0}, {"hybrid": fit_curve({8: 640.0}, cores=8)}).predict(
        LoaderSettings(backend="hybrid", num_workers=8, batch_size=64)
    ) == pytest.approx(640.0)


def test_the_shortlist_tries_the_device_s_backends_too() -> None:
    curves: dict[str, Any] = {name: fit_curve({4: 400.0}, cores=4) for name in ON_CUDA.backends}
    chosen = [
        p for p, _ in shortlist(all_points([64], ON_CUDA, 224, pin_memory=True), Model({64: 600.0}, curves), count=6)
    ]
    assert {p.backend for p in chosen} == set(ON_CUDA.backends)
