"""Windows over worker processes that finish together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.formats import open_source
from wellfed.pipeline.training import DeviceWindow, StepSpec, measure, open_accelerator
from wellfed.pipeline.tune.machine.rig import MachineRig
from wellfed.pipeline.tune.machine.turns import whole_turns, workers_in_turn
from wellfed.pipeline.tune.rig import Trial

from .test_ranks import OnEachRank, steps_of

WORKERS, DECODING = 16, 2.0
"""Seconds that each worker takes for a batch: all together give 8 batches a second."""


class Still:
    """Of an accelerator, what the loop asks; nothing takes time on it."""

    kind = "simulated"

    def synchronize(self) -> None: ...
    def start_window(self) -> None: ...
    def copy(self, batch: Any) -> Any:
        return batch

    def end_window(self) -> Any:
        return DeviceWindow(util_percent=None, util_reason="no GPU", peak_bytes=None, memory_reason=None)


def in_step(clock: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of workers that began together: the n-th turn is there after n times DECODING."""
    number = 0
    while True:
        there = DECODING * (1 + number // WORKERS)
        clock.sleep(max(0.0, there - clock()))
        yield torch.zeros(1, 3, 1, 1, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
        number += 1


@pytest.mark.parametrize("taken", range(0, 40, 3))
def test_a_window_of_whole_turns_counts_as_many_batches_as_its_time_is_worth(virtual_clock: Any, taken: int) -> None:
    # given a step that would take 13 batches a second
    batches = in_step(virtual_clock)

    def take(images: Any, labels: Any) -> None:
        virtual_clock.sleep(0.075)

    step: Any = take

    for _ in range(WORKERS + taken):
        step(*next(batches))
    # when a window begins anywhere in a turn
    device: Any = Still()
    window = measure(
        step, batches, device, seconds=1.5, go_on=whole_turns(1.5, WORKERS), clock=virtual_clock, max_steps=None
    )
    # then it gives what the workers decode, 8 batches a second; one of 1.5 s alone gives 6.5 to 8 of them
    assert window.steps % WORKERS == 0
    assert window.samples_per_second == pytest.approx(WORKERS / DECODING, rel=0.01)


def test_a_turn_that_takes_far_longer_than_the_window_is_not_waited_for() -> None:
    go_on = whole_turns(1.0, 16)
    # a step a second
    assert [go_on(steps, float(steps)) for steps in range(6)] == [True, True, True, True, False, False]


def test_batches_come_in_turns_from_worker_processes_alone() -> None:
    assert workers_in_turn(LoaderSettings(backend="processes", num_workers=3)) == 3
    assert workers_in_turn(LoaderSettings(backend="processes", num_workers=0)) == 1
    assert workers_in_turn(LoaderSettings(backend="threads", num_workers=3)) == 1
    assert workers_in_turn(None) == 1


@pytest.mark.parametrize(
    ("seconds", "turn", "each", "steps"),
    [
        # 100 steps fill the time, and 12 more the turn
        (2.0, 16, 0.02, 112),
        # 6.4 s for a turn are as long as three windows more
        (2.0, 16, 0.4, 16),
        # 16 s are not
        (2.0, 16, 1.0, 2),
    ],
)
def test_several_ranks_end_a_window_after_the_same_whole_turns(
    on_each: OnEachRank, seconds: float, turn: int, each: float, steps: int
) -> None:
    assert steps_of(on_each, seconds, None, lambda n: each * n, lambda n: each * n / 2, turn=turn) == [steps] * 2


def test_the_rig_measures_worker_processes_in_whole_turns(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for number in range(12):
        pixels = np.full((32, 32, 3), number, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / "cat" / f"{number}.jpg")
    settings = LoaderSettings(backend="processes", num_workers=3, batch_size=4)
    spec = StepSpec(name="resnet18", image_size=32)
    with (
        closing(open_source(str(tmp_path / "photos"))) as source,
        closing(open_accelerator("simulated")) as accelerator,
    ):
        rig = MachineRig(source, spec, "simulated", accelerator)
        try:
            windows = [rig.fed(Trial("one", "one", "candidate", settings, 4), 0.3) for _ in range(2)]
        finally:
            rig.close()
    assert [window.steps % 3 for window in windows] == [0, 0]
