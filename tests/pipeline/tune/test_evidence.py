"""What is measured only where a verdict rests on it, and the advice that comes of it."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wellfed.pipeline.config import LoaderSettings, TuneRequest
from wellfed.pipeline.formats import open_source
from wellfed.pipeline.training import StepSpec, open_accelerator
from wellfed.pipeline.tune.driver import Device, Driver
from wellfed.pipeline.tune.machine.rig import MachineRig
from wellfed.pipeline.tune.measure.evidence import ResizeGain, SlowSamples, read_in_parallel, slow_samples
from wellfed.pipeline.tune.model.space import Limits
from wellfed.pipeline.tune.statistics import Interval


def run(rig: Any, *, cores: int = 2, memory: int = 8 << 30, shm: int | None = None, **request: Any) -> Any:
    limits = Limits(cores=cores, memory_bytes=None, shm_bytes=shm)
    return Driver(
        rig, TuneRequest(data="set", step="resnet50", **request), limits, Device(memory, pin_memory=False)
    ).run()


def slow_loader(settings: LoaderSettings) -> float:
    return 100.0 * max(1, settings.num_workers)


def test_stragglers_are_few_slow_and_costly() -> None:
    # 2 of 100 take 50 ms instead of 1: 100 of 198 ms
    found = slow_samples([0.001] * 98 + [0.05] * 2)
    assert found is not None
    assert found == SlowSamples(100, 0.02, 50.0, found.time_share)
    assert found.time_share == pytest.approx(100 / 198)
    # one may be the machine's own, 3% of the time is not much, 10% of the samples are not few, 15 are too few to say
    assert slow_samples([0.001] * 99 + [0.05]) is None
    assert slow_samples([0.001] * 998 + [0.015] * 2) is None
    assert slow_samples([0.001] * 90 + [0.05] * 10) is None
    assert slow_samples([0.001] * 13 + [0.05] * 2) is None
    assert slow_samples([0.001 + 0.00001 * n for n in range(500)]) is None


def test_cores_are_counted_by_the_faster_of_what_the_loader_gave_alone_and_beside_the_step(fake_rig: Any) -> None:
    # alone 2 cores gave 200/s, and 320 beside a step of 600: 160 a core, so 540 need 4 cores and not 6
    result = run(fake_rig(loader=slow_loader, share_beside=1.6, wobble=(1.0,)))
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "decode")
    assert result.verdict.advice[0] == (
        "Decode binds: 4 cores like these would reach the target (540 samples/s at 160 a core; 2 here give 320)."
    )


def test_what_smaller_images_would_bring_is_said_with_its_samples(fake_rig: Any) -> None:
    # given 200 samples/s of 540 needed, and 3 times as many from smaller images
    rig = fake_rig(loader=slow_loader, gain=ResizeGain(256, 512, Interval(3.04, 2.9, 3.2)))
    result = run(rig)
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "decode")
    assert result.verdict.advice[0] == (
        "Decode binds: 6 cores like these would reach the target (540 samples/s at 100 a core; 2 here give 200); "
        "on this machine `--image resize:256` gives 3.0x (measured on 512 of your samples), which would reach it."
    )
    # and it took the bounded time that a budget of 3 minutes gives it
    assert [call[2] for call in rig.calls if call[0] == "resize"] == [20.0]


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (ResizeGain(256, 512, Interval(1.8, 1.7, 1.9)), "gives 1.8x (measured on 512 of your samples)."),
        (ResizeGain(256, 40, Interval(1.01, 0.98, 1.04)), "would not help: 1.01x (measured on 40 of your samples)."),
        # a gain that was seen, and may be noise, is neither promised nor denied
        (
            ResizeGain(256, 40, Interval(1.44, 0.76, 3.13)),
            "; whether `--image resize:256` would help is open: 1.4x, 0.8x to 3.1x (measured on 40 of your samples).",
        ),
        (None, "2 here give 200)."),
    ],
)
def test_a_gain_that_does_not_reach_or_does_not_help_is_said_as_such(
    fake_rig: Any, gain: ResizeGain | None, words: str
) -> None:
    result = run(fake_rig(loader=slow_loader, gain=gain))
    assert result.verdict.advice[0].endswith(words)


def test_resizing_is_measured_in_batches_that_a_slow_loader_gives_in_time(fake_rig: Any) -> None:
    # given 16 samples/s of 540 needed: a batch of 16 takes a second, half of a measurement of 2 s is for four of them
    sizes: list[int] = []

    class Noting(type(fake_rig())):  # type: ignore[misc]
        def resize_gain(self, settings: LoaderSettings, seconds: float) -> None:
            sizes.append(settings.batch_size)

    run(Noting(loader=lambda s: 8.0 * max(1, s.num_workers)))
    run(Noting(loader=slow_loader))
    # then 16 x 2 / 4 samples; and the chosen batch where that is quick
    assert sizes == [8, 16]


SHM = 10 << 20


def held_by_the_interpreter(settings: LoaderSettings) -> float:
    """Threads take turns, processes do not: 100 samples/s, or 90 each."""
    return 100.0 if settings.backend == "threads" else 90.0 * max(1, settings.num_workers)


def test_processes_that_shared_memory_keeps_out_are_what_binds(fake_rig: Any) -> None:
    # given 162 samples/s needed, and 10 MiB of shared memory: 2 workers take 13.8 MiB at batch 16 with prefetch 2,
    # and 9.2 MiB with prefetch 1, at which they were measured
    rig = fake_rig(step=lambda b: (180.0, 95.0), loader=held_by_the_interpreter)
    result = run(rig, shm=SHM)
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "memory")
    assert result.verdict.advice[0] == (
        "Memory binds: 2 processes alone give 180 samples/s in small batches, which would reach it (162 are needed, 1 "
        "threads give 100), but at batch 16 they take 14 MiB of /dev/shm, of which a loader may have 10 MiB: give the "
        "container more (--shm-size), or use a smaller batch."
    )
    assert ("alone", "processes", 2) in rig.calls


def test_shared_memory_is_not_blamed_where_processes_would_be_no_faster(fake_rig: Any) -> None:
    # given the same, and threads that are as fast as processes
    rig = fake_rig(step=lambda b: (300.0, 95.0), loader=lambda s: 90.0 * max(1, s.num_workers))
    result = run(rig, shm=SHM)
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "decode")


def test_a_backend_of_which_not_one_worker_fits_is_named(fake_rig: Any) -> None:
    rig = fake_rig(step=lambda b: (180.0, 95.0), loader=held_by_the_interpreter)
    result = run(rig, shm=2 << 20)
    # one worker of batch 16 with prefetch 2: 2 under way and 2 in use, of 16 x 150,528 bytes each
    assert result.notes[0] == (
        "Backend 'processes' was not tried: at batch 16 the batches of one worker take 9 MiB of /dev/shm, of which a "
        "loader may have 2 MiB."
    )


def test_resizing_is_measured_only_where_decoding_binds(fake_rig: Any) -> None:
    for rig in (fake_rig(), fake_rig(loader=slow_loader, reading=100.0), fake_rig(share_beside=0.5)):
        run(rig)
        assert not [call for call in rig.calls if call[0] == "resize"]


def test_readers_that_share_a_disk_are_storage_though_one_alone_is_fast(fake_rig: Any) -> None:
    # given 8 cores, of which one reads 250 samples/s, and all together no more: 8 x 250 would be enough
    rig = fake_rig(loader=lambda s: min(240.0, 100.0 * max(1, s.num_workers)), reading=250.0, reading_together=250.0)
    result = run(rig, cores=8)
    assert (result.verdict.name, result.verdict.binds) == ("data_limited", "storage")
    assert "reading gives 250 samples/s with" in result.verdict.advice[0]
    # 540 / 250
    assert "storage 2.2 times as fast would do" in result.verdict.advice[0]


def test_stragglers_are_named_in_the_advice(fake_rig: Any) -> None:
    result = run(fake_rig(loader=slow_loader, samples=(0.001,) * 98 + (0.05,) * 2))
    assert result.verdict.binds == "decode"
    assert "Stragglers: 2.0% of 100 samples take 50 times the median, and 51% of the time" in result.verdict.advice[1]


def test_a_cap_that_keeps_the_batch_too_small_is_memory(fake_rig: Any) -> None:
    # given 1.6 points of utilization a sample in a batch, so that 46 would do, and room for 32: 0.5 + 0.02 x b GiB
    rig = fake_rig(step=lambda b: (min(600.0, 10.0 * b), min(95.0, 1.6 * b)), loader=lambda s: 1e6)
    result = run(rig, memory=int(1.7 * (1 << 30)))
    assert (result.verdict.name, result.verdict.binds) == ("step_limited", "memory")
    assert "About batch 48 would do, but under the memory cap only 32 fits" in result.verdict.advice[0]


def test_the_batch_that_would_do_lies_between_two_that_were_measured(fake_rig: Any) -> None:
    # given 50% at 64 and 100% at 128, where the user allows batches up to 64 only
    utils = {16: 12.5, 32: 25.0, 64: 50.0}
    result = run(fake_rig(step=lambda b: (100.0 * b, utils[b]), loader=lambda s: 1e6), batch_sizes=(16, 32, 64))
    assert result.verdict.binds == "launches"
    # 73.5 / 50 x 64 = 94.1: in steps of 16, 96
    assert "About batch 96 would do, if memory allows it, or torch.compile at batch 64." in result.verdict.advice[0]
    assert result.verdict.summary.startswith("The step launches too little work at batch 64")


def photos(folder: Path, width: int, height: int, count: int = 24) -> Path:
    (folder / "cat").mkdir(parents=True)
    draw = np.random.default_rng(0)
    for number in range(count):
        pixels = draw.integers(0, 255, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((width, height)).save(folder / "cat" / f"{number}.jpg", quality=85)
    return folder


def test_the_machine_measures_what_smaller_images_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = tmp_path / "temporary"
    # given what a tune left that was killed while it measured this
    (places / "wellfed-resize-killed" / "stored").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(places))
    settings = LoaderSettings(num_workers=1, batch_size=8)
    with closing(open_accelerator("simulated")) as accelerator:
        for width, height, larger in ((1600, 1200, True), (60, 40, False)):
            source = open_source(str(photos(tmp_path / str(width), width, height)))
            with MachineRig(source, StepSpec(name="resnet50", image_size=64), "simulated", accelerator) as rig:
                gain = rig.resize_gain(settings, 3.0)
                seconds = rig.sample_seconds(0.2)
                together = rig.parallel_read_rate(2, 0.1)
            source.close()
            # 64 x 256 / 224 = 73; nothing is left behind
            assert (gain is not None) == larger
            if gain is not None:
                assert gain.side == 73
                assert 1 <= gain.samples <= 24
                assert gain.ratio.low > 1.5
            assert list(places.iterdir()) == []
            assert len(seconds) > 3
            assert min(seconds) > 0
            assert together > 0


def test_an_error_of_a_reading_thread_is_raised() -> None:
    class Broken:
        def __len__(self) -> int:
            return 10

        def read(self, row: int) -> bytes:
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        read_in_parallel(Broken(), 2, 1.0, seed=0, clock=lambda: 0.0)  # type: ignore[arg-type]
