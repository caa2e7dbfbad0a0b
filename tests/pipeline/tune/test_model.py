"""The bottleneck model, the space it ranks, and the points it picks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from wellfed.pipeline.config import BackendName, LoaderSettings
from wellfed.pipeline.tune.model.bottleneck import PROCESS_BYTES, Model, WorkerCurve, fit_curve
from wellfed.pipeline.tune.model.points import Points
from wellfed.pipeline.tune.model.shortlist import Shortlist
from wellfed.pipeline.tune.model.space import Limits, all_points, fits

CUDA_BACKENDS: tuple[BackendName, ...] = ("threads", "processes", "dali", "nvjpeg", "hybrid")
ON_CUDA = Limits(cores=16, memory_bytes=None, shm_bytes=None, backends=CUDA_BACKENDS)
ON_HOST = Limits(cores=4, memory_bytes=None, shm_bytes=None)
BATCH_BYTES = 64 * 3 * 224 * 224


def settings_of(backend: Any = "threads", **more: Any) -> LoaderSettings:
    return LoaderSettings(**{"backend": backend, "num_workers": 2, "batch_size": 64, **more})


def linear(single: float, cores: int = 4) -> WorkerCurve:
    return WorkerCurve(single, 0.0, cores)


def speed(model: Model, settings: LoaderSettings) -> float:
    prediction = model.predict(settings)
    assert prediction is not None
    return prediction.samples_per_second


# One H200, ResNet-18 at batch 256, as in benchmarks/results/fed_ratio_h200.json: the step alone, the loaders alone, and
# what decoding took from the step.
H200 = Model(
    ceilings={256: 12_828.6},
    curves={"threads": fit_curve({15: 8_590.3}, cores=16), "dali": WorkerCurve(22_256.7, 1.0, 16)},
    utils={256: 99.0},
    decode_costs={"dali": {0.75: 20.4e-6, 1.0: 11e-6}},
    dali_rates={0.75: 22_256.7},
    copy_rates={True: 300_000.0},
    device_bytes={256: 8e9},
)


def test_the_slower_part_decides() -> None:
    model = Model({64: 600.0}, {"threads": linear(200.0)})
    assert speed(model, settings_of(num_workers=2)) == pytest.approx(400.0)
    prediction = model.predict(settings_of(num_workers=4))
    assert prediction is not None
    assert (prediction.samples_per_second, prediction.limit) == (pytest.approx(600.0), "step")
    assert model.predict(settings_of("processes")) is None
    assert model.predict(settings_of(batch_size=32)) is None


def test_a_library_that_was_not_run_beside_the_step_takes_from_it_what_the_other_does() -> None:
    model = dataclasses.replace(
        H200, ceilings={256: 4_600.0}, curves={"nvjpeg": linear(13_000.0), "dali": linear(20_000.0)}
    )
    dali, nvjpeg = (speed(model, settings_of(name, num_workers=4, batch_size=256)) for name in ("dali", "nvjpeg"))
    assert dali == pytest.approx(1 / (1 / 4_600 + 20.4e-6))
    assert nvjpeg == pytest.approx(dali)


def test_predictions_agree_with_what_an_h200_did() -> None:
    # given the parts, then the fed runs of the same file: medians 10,167, 10,736 and 10,662 samples/s
    dali = speed(H200, settings_of("dali", num_workers=8, batch_size=256))
    mixed = speed(H200, settings_of("hybrid", num_workers=11, batch_size=256, gpu_share=0.66, hw_decoder_load=0.9))
    assert dali == pytest.approx(10_167, rel=0.03)
    assert mixed == pytest.approx(10_736, rel=0.07)
    # By hand: 1 / (1 / 12,828.6 + 0.66 x (20.4 - 9.4 x 0.15 / 0.25) us) with shares between the two that were measured.
    assert mixed == pytest.approx(1 / (1 / 12_828.6 + 0.66 * 14.76e-6), rel=1e-6)


def test_utilization_counts_decode_kernels() -> None:
    prediction = H200.predict(settings_of("dali", num_workers=8, batch_size=256))
    assert prediction is not None
    r = 1 / (1 / 12_828.6 + 20.4e-6)
    assert prediction.limit == "decoding on the device"
    assert prediction.util_percent == pytest.approx(99 * r / 12_828.6 + 100 * 20.4e-6 * r)


def test_the_launching_thread_takes_a_core_from_the_workers() -> None:
    # 10 ms a step of 64: at r samples/s r x 0.01 / 64 cores. r = 200 x (4 - r / 6,400): 775.8.
    model = Model({64: 1e6}, {"threads": linear(200.0)}, launch_seconds=0.01)
    assert speed(model, settings_of(num_workers=4)) == pytest.approx(775.8, rel=0.01)
    assert speed(model, settings_of(num_workers=3)) == pytest.approx(600.0)


def test_without_workers_decoding_and_launching_take_turns() -> None:
    model = Model({64: 1e6}, {"threads": linear(200.0)}, launch_seconds=0.064)
    # 5 ms to decode a sample and 1 ms of a launch
    assert speed(model, settings_of(num_workers=0)) == pytest.approx(1 / 0.006)
    stock = dataclasses.replace(model, stock=100.0).predict_stock(64)
    assert stock is not None
    assert stock.samples_per_second == pytest.approx(1 / 0.011)
    assert model.predict_stock(64) is None


def test_copies_bind_and_without_pinning_they_block_the_launching_thread() -> None:
    model = Model({64: 600.0}, {"threads": linear(1e5)}, launch_seconds=0.032, copy_rates={True: 500.0, False: 400.0})
    pinned = model.predict(settings_of())
    assert pinned is not None
    assert (pinned.samples_per_second, pinned.limit) == (500.0, "copy")
    # 0.5 ms of launching and 2.5 ms of copying a sample
    pageable = model.predict(settings_of(pin_memory=False))
    assert pageable is not None
    assert (pageable.samples_per_second, pageable.limit) == (pytest.approx(1 / 0.003), "launching thread")


def test_new_workers_cost_an_epoch_boundary() -> None:
    model = Model(
        {64: 600.0},
        {"processes": linear(400.0), "threads": linear(400.0)},
        boundary_seconds={True: 0.0, False: 10.0},
        epoch_samples={64: 6000},
    )
    assert speed(model, settings_of("processes")) == pytest.approx(600.0)
    assert speed(model, settings_of("processes", persistent_workers=False)) == pytest.approx(6000 / 20)
    assert speed(model, settings_of("threads", persistent_workers=False)) == pytest.approx(600.0)


def test_memory_is_the_steps_and_the_waiting_batches() -> None:
    model = Model({64: 600.0}, {"processes": linear(400.0), "dali": linear(400.0)}, device_bytes={64: 1e9})
    processes = model.predict(settings_of("processes", prefetch_factor=4))
    dali = model.predict(settings_of("dali", prefetch_factor=2))
    assert processes is not None
    assert dali is not None
    assert processes.host_bytes == 2 * PROCESS_BYTES + 2 * 5 * BATCH_BYTES
    assert processes.device_bytes == 1e9 + BATCH_BYTES
    # 2 x 2 + 4 ahead and the one in use, which lie on the device
    assert (dali.host_bytes, dali.device_bytes) == (0, 1e9 + 9 * BATCH_BYTES)


def test_the_hybrid_is_as_fast_as_the_side_that_is_slower_for_its_share() -> None:
    curves = {"threads": linear(100.0, 8), "dali": WorkerCurve(900.0, 1.0, 8), "hybrid": linear(1.0, 8)}
    model = Model({64: 5000.0}, curves)

    def predicted(share: float) -> float:
        return speed(model, settings_of("hybrid", num_workers=8, gpu_share=share))

    # Of 8 workers DALI's host gets 2 and the CPU side 6: 600 samples/s; DALI's 900 do not grow with its threads.
    assert predicted(0.5) == pytest.approx(600 / 0.5)
    assert predicted(0.8) == pytest.approx(900 / 0.8)
    assert predicted(0.0) == pytest.approx(600.0)
    assert predicted(1.0) == pytest.approx(900.0)
    # Without the sides, what the backend itself did.
    alone = Model({64: 5000.0}, {"hybrid": fit_curve({8: 640.0}, cores=8)})
    assert speed(alone, settings_of("hybrid", num_workers=8)) == pytest.approx(640.0)


def test_a_hardware_share_moves_dali_s_rate_to_the_slower_side() -> None:
    model = Model({64: 1e6}, {"dali": WorkerCurve(22_500.0, 1.0, 16)}, dali_rates={0.75: 22_500.0})

    def predicted(share: float) -> float:
        return speed(model, settings_of("dali", hw_decoder_load=share))

    # 16,875 by the engines, 5,625 by kernels
    assert predicted(0.75) == pytest.approx(22_500)
    assert predicted(1.0) == pytest.approx(16_875)
    assert predicted(0.6) == pytest.approx(5_625 / 0.4)


def test_trials_correct_the_backend_they_ran_with() -> None:
    model = Model({64: 600.0}, {"threads": linear(200.0), "processes": linear(200.0)})
    seen = [(settings_of(num_workers=2), 300.0), (settings_of(num_workers=1), 190.0)]
    better = model.corrected(seen)
    # 0.75 of 400, and 0.95 of 200: log2(3/2)^2 = 0.342 apart, so that weights are 1/0.1 and 1/0.442
    assert speed(better, settings_of(num_workers=2)) == pytest.approx(400 * 0.75**0.8156 * 0.95**0.1844, rel=1e-3)
    assert speed(better, settings_of(num_workers=1)) == pytest.approx(200 * 0.95**0.8156 * 0.75**0.1844, rel=1e-3)
    assert speed(better, settings_of("processes")) == pytest.approx(400.0)
    # A loader that keeps up shows no more than that.
    assert model.corrected([(settings_of(num_workers=4), 603.0)]).shown == ()


def test_a_trial_says_more_of_what_is_like_it() -> None:
    model = Model({256: 9e9}, {"threads": linear(400.0, 16), "dali": WorkerCurve(9e6, 1.0, 16)})
    low, high = (settings_of("hybrid", batch_size=256, num_workers=15, gpu_share=share) for share in (0.3, 0.6))
    seen = [(low, 0.7 * speed(model, low)), (high, speed(model, high))]
    near = dataclasses.replace(low, gpu_share=0.35)
    between = dataclasses.replace(low, gpu_share=0.45)
    better = model.corrected(seen)

    def share_of(settings: LoaderSettings) -> float:
        return speed(better, settings) / speed(model, settings)

    assert share_of(between) == pytest.approx(0.7**0.5)  # as far from both
    # squared distances 1/9 and 25/9, with 0.1 on each: weights 4.74 and 0.348
    assert share_of(near) == pytest.approx(0.7**0.9316, rel=1e-3)
    assert 0.7 < share_of(low) < share_of(near)


def test_the_space_holds_every_knob_and_no_setting_twice() -> None:
    points = all_points([64, 128], ON_CUDA, 224, pin_memory=True)
    assert len(points) > 3_000
    rows = np.stack([np.asarray(column, dtype=float) for column in dataclasses.astuple(points)], axis=1)
    assert len(np.unique(rows, axis=0)) == len(points)

    def values(column: str, *backends: str) -> set[Any]:
        return set(getattr(points.take(points.of_backend(*backends)), column).tolist())

    assert values("num_workers", "threads") == {0, 1, 2, 4, 8, 12, 15, 16}
    assert 0 not in values("num_workers", "processes", "dali", "nvjpeg", "hybrid")
    assert values("persistent_workers", "processes") == {True, False}
    assert values("persistent_workers", "threads", "dali") == {True}
    assert values("pin_memory", "hybrid") == {True, False}
    assert values("hw_decoder_load", "dali") == {0.6, 0.75, 0.9, 1.0}
    assert values("hw_decoder_load", "nvjpeg", "threads") == {0.75}
    assert len(values("gpu_share", "hybrid")) == 10
    assert values("gpu_share", "dali", "threads") == {0.66}
    assert values("prefetch_factor", "threads") == {2, 4, 8}


def test_points_that_do_not_fit_are_left_out() -> None:
    # 64 x 3 x 224 x 224 bytes a batch, 2 workers x (2 + 1) batches: 58 MB
    tight = Limits(cores=4, memory_bytes=None, shm_bytes=64 << 20)
    points = all_points([64], tight, 224, pin_memory=False)
    assert all(fits(points.at(place), tight, 224) for place in range(len(points)))
    assert set(points.take(points.of_backend("processes")).num_workers.tolist()) == {1, 2}
    assert set(points.pin_memory.tolist()) == {False}


def test_settings_and_columns_are_the_same() -> None:
    every = [settings_of("hybrid", gpu_share=0.3, hw_decoder_load=0.9), settings_of("nvjpeg", persistent_workers=False)]
    points = Points.of(every)
    assert [points.at(0), points.at(1)] == every


def picked(model: Model, limits: Limits, count: int, *sizes: int, **more: Any) -> list[LoaderSettings]:
    points = all_points(sizes or (64,), limits, 224, pin_memory=False)
    return [pick.settings for pick in Shortlist(points, model, **more).pick(count)]


def test_the_shortlist_starts_with_the_fewest_workers_that_feed_the_step() -> None:
    model = Model({64: 600.0}, {"threads": linear(400.0)})
    first, second, _ = picked(model, ON_HOST, 3)
    assert (first.backend, first.num_workers, first.prefetch_factor) == ("threads", 2, 2)
    assert second.num_workers == 4


def test_the_shortlist_holds_every_backend_and_another_batch_size() -> None:
    curves = {name: fit_curve({4: 400.0}, cores=4) for name in ("threads", "processes")}
    chosen = picked(Model({64: 600.0, 128: 610.0}, curves), ON_HOST, 4, 64, 128)
    assert {p.backend for p in chosen} == {"threads", "processes"}
    assert {p.batch_size for p in chosen} == {64, 128}
    assert len(set(chosen)) == 4


def test_the_shortlist_tries_the_device_s_backends_too() -> None:
    curves: dict[str, Any] = {name: fit_curve({16: 400.0}, cores=16) for name in CUDA_BACKENDS}
    # All alike: what nvJPEG does, DALI does with the same library.
    assert {p.backend for p in picked(Model({64: 600.0}, curves), ON_CUDA, 6)} == set(CUDA_BACKENDS) - {"nvjpeg"}


def test_of_equals_the_one_that_surely_takes_nothing_from_the_step_comes_first() -> None:
    curves: dict[str, Any] = {"threads": linear(100.0, 16), "dali": WorkerCurve(4_000.0, 1.0, 16)}
    # One worker of DALI feeds the step, or eight threads.
    unknown = Model({64: 600.0}, curves)
    assert picked(unknown, ON_CUDA, 1)[0].backend == "threads"
    known = dataclasses.replace(unknown, decode_costs={"dali": {0.75: 0.0}})
    assert picked(known, ON_CUDA, 1)[0].backend == "dali"


def test_what_is_predicted_far_behind_is_not_opened() -> None:
    curves = {"threads": linear(150.0), "processes": linear(110.0)}
    # Processes at 440 of 600; a batch of 128 would reach 700, and one of 32 only 400.
    model = Model({32: 400.0, 64: 590.0, 128: 600.0}, curves)
    chosen = picked(model, ON_HOST, 8, 32, 64, 128)
    assert {(p.backend, p.batch_size) for p in chosen} == {("threads", 64), ("threads", 128)}


def test_nvjpeg_is_tried_where_it_is_predicted_to_beat_dali() -> None:
    def tried(nvjpeg: float) -> set[str]:
        curves = {"dali": WorkerCurve(500.0, 1.0, 16), "nvjpeg": WorkerCurve(nvjpeg, 1.0, 16)}
        limits = dataclasses.replace(ON_CUDA, backends=("dali", "nvjpeg"))
        return {p.backend for p in picked(Model({64: 900.0}, curves), limits, 8)}

    assert tried(500.0) == {"dali"}
    assert tried(520.0) == {"dali", "nvjpeg"}


def test_where_neither_side_suffices_the_mix_comes_first() -> None:
    first = picked(H200, ON_CUDA, 4, 256)[0]
    # Threads alone give 8,600 and DALI alone 10,200; half of each gives more than either.
    assert first.backend == "hybrid"
    assert 0.3 <= first.gpu_share <= 0.6
    assert first.hw_decoder_load == 1.0


def test_what_would_not_fit_on_the_device_is_not_tried() -> None:
    model = Model({64: 600.0, 128: 900.0}, {"threads": linear(400.0)}, device_bytes={64: 1e9, 128: 2e9})
    assert {p.batch_size for p in picked(model, ON_HOST, 8, 64, 128, cap_bytes=1.5e9)} == {64}


def test_more_points_are_those_that_would_beat_the_best_by_more_than_a_tie() -> None:
    model = Model({64: 600.0}, {"threads": linear(200.0), "processes": linear(190.0)})
    points = all_points([64], ON_HOST, 224, pin_memory=False)
    shortlist = Shortlist(points, model)
    assert shortlist.better_than(595.0, set(), 3) == []
    first, second = shortlist.better_than(500.0, {settings_of(num_workers=3, pin_memory=False)}, 3)
    # 3 threads with prefetch 2 were measured; one of each backend, and the smallest of those within a tie
    assert (first.settings.backend, first.settings.num_workers) == ("threads", 3)
    assert first.settings.prefetch_factor == 4
    assert (second.settings.backend, second.settings.num_workers) == ("processes", 4)
    assert second.prediction.samples_per_second == pytest.approx(600.0)
