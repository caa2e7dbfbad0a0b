"""One configuration measured: the ceiling and every feed once a round, in a new random order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.errors import WellfedError
from wellfed.pipeline.loader import resample
from wellfed.pipeline.tune.machine.rig import MachineRig
from wellfed.pipeline.tune.rig import OutOfDeviceMemoryError, Trial, Window
from wellfed.pipeline.tune.run import opened

from ..common.windows import interleaved, kept
from .feeds import Configuration, UnknownFeedError, settings_of

Say = Callable[[str], None]
_FIRST_SECONDS = 0.5
"""Of the run that opens each loader, or compiles the step; thrown away."""


@dataclass(frozen=True)
class Plan:
    """How long and how often."""

    rounds: int
    seconds: float
    batch_size: int
    image_size: int
    seed: int


def measure_configuration(
    configuration: Configuration, feeds: Sequence[str], dataset: str, device: str, plan: Plan, say: Say
) -> dict[str, Any]:
    """Raw windows of the ceiling and of each feed, round by round, and each loader's own rate.

    A feed that cannot be described, opened or run is in `absent`, with the reason; the others go on.

    Raises:
        WellfedError: dataset, step or device cannot be opened.
        OutOfDeviceMemoryError: the step does not fit on the device.
    """
    began = time.monotonic()
    run: dict[str, Any] = {
        "configuration": configuration.name,
        "step": configuration.step,
        "images": configuration.images,
        "wanted": configuration.wanted,
        "floor": configuration.floor,
        "batch_size": plan.batch_size,
        "image_size": plan.image_size,
        "rounds": plan.rounds,
        "seconds_per_window": plan.seconds,
    }
    with opened(
        dataset, configuration.step, device, image_size=plan.image_size, seed=plan.seed, clock=time.perf_counter
    ) as on:
        run["device"] = on.accelerator.description
        if on.accelerator.torch_device.startswith("cuda"):
            run["gpu_resize"] = resample.state(torch.device(on.accelerator.torch_device))
        run["dataset"] = {"samples": len(on.source), "epoch_samples": on.rig.epoch_samples(plan.batch_size)}
        say(f"{configuration.name}: preparing the step")
        on.rig.ceiling(plan.batch_size, _FIRST_SECONDS)
        trials, absent = _trials(on.rig, feeds, plan, pin=on.accelerator.torch_device != "cpu", say=say)
        windows = _rounds(on.rig, trials, absent, plan, say)
        for trial in trials:
            on.rig.drop(trial)
        say(f"{configuration.name}: the loaders alone")
        run["ceiling"] = windows[None]
        run["feeds"] = [
            {
                "feed": trial.id,
                "settings": _settings(trial).to_dict(),
                "windows": windows[trial.id],
                "loader_alone": round(on.rig.loader_alone(_settings(trial), plan.seconds), 1),
            }
            for trial in trials
            if trial.id not in absent
        ]
        run["absent"] = absent
    run["seconds"] = round(time.monotonic() - began, 1)
    return run


def _settings(trial: Trial) -> LoaderSettings:
    assert trial.settings is not None
    return trial.settings


def _trials(
    rig: MachineRig, feeds: Sequence[str], plan: Plan, *, pin: bool, say: Say
) -> tuple[list[Trial], dict[str, str]]:
    """Those that open and feed a step, and why others do not."""
    trials, absent = [], {}
    for feed in feeds:
        say(f"opening {feed}")
        try:
            settings = settings_of(feed, batch_size=plan.batch_size, pin_memory=pin)
            trial = Trial(feed, feed, "candidate", settings, plan.batch_size)
            rig.fed(trial, _FIRST_SECONDS)
        except (UnknownFeedError, WellfedError, OutOfDeviceMemoryError) as error:
            say(f"absent: {feed}: {error}")
            absent[feed] = str(error)
            continue
        trials.append(trial)
    return trials, absent


def _rounds(
    rig: MachineRig, trials: Sequence[Trial], absent: dict[str, str], plan: Plan, say: Say
) -> dict[str | None, list[dict[str, Any]]]:
    windows: dict[str | None, list[dict[str, Any]]] = {None: [], **{trial.id: [] for trial in trials}}
    items: list[Trial | None] = [None, *trials]
    for number, item in interleaved(items, plan.rounds, seed=plan.seed):
        if item is None:
            window: Window = rig.ceiling(plan.batch_size, plan.seconds)
        elif item.id in absent:
            continue
        else:
            try:
                window = rig.fed(item, plan.seconds)
            except (WellfedError, OutOfDeviceMemoryError) as error:
                absent[item.id] = f"failed in round {number}: {error}"
                continue
        values = kept(window)
        windows[None if item is None else item.id].append(values)
        say(f"round {number}: {item.id if item else 'ceiling'}: {values['samples_per_second']:,.0f} img/s")
    return windows
