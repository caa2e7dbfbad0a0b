"""Runs of planted bottlenecks in real time, each in a process of its own, since affinity and mounts are a process's.

The process is this module: `python -m benchmarks.planted.live_run NAME DEVICE DATASET PLAIN BUDGET HOLD SEED`; one
JSON document is its output.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

from ..common.dataset import convert, say
from ..common.photos import make_folder, originals
from ..common.process import environment, run_child
from .live import STRAGGLERS_EVERY, STRAGGLERS_TIMES, LiveCause, Setup, live_causes

_IMAGES = 400
_RATE_SECONDS = 3.0
_OVERHEAD_SECONDS = 240.0

_MOUNTED = 'mount -t tmpfs -o size="$1" tmpfs /dev/shm && shift && exec "$@"'


def make_datasets(photos: Path | None, work: Path, causes: list[LiveCause]) -> dict[bool, str]:
    """Converted photos, by whether they have stragglers."""
    files = originals(photos, work)
    datasets: dict[bool, str] = {}
    # The plain one in any case: the loader's rate is measured on it.
    for stragglers in sorted({False, *(cause.stragglers for cause in causes)}):
        name = "stragglers" if stragglers else "plain"
        say(f"converting: {name}")
        make_folder(work / name, files, images=_IMAGES)
        if stragglers:
            # Imported where it is used: the command's own start needs no loader.
            from .wrappers import add_stragglers

            side = add_stragglers(work / name, every=STRAGGLERS_EVERY, times=STRAGGLERS_TIMES)
            say(f"stragglers are pictures of {side} pixels")
        datasets[stragglers] = convert(work / name, work / f"{name}-wds")
    return datasets


def run_live(cause: LiveCause, datasets: dict[bool, str], *, budget: float, hold: float, seed: int) -> dict[str, Any]:
    """The verdict of one cause, whether it names it, and what it rests on; or why it was not run.

    Args:
        datasets: of `make_datasets`.
    """
    base = {"cause": cause.name, "how": cause.how, "device": cause.device}
    cores = len(os.sched_getaffinity(0))
    if cores < cause.least_cores:
        return {**base, "absent": f"it needs {cause.least_cores} cores, and there are {cores}"}
    command = [sys.executable, "-m", "benchmarks.planted.live_run", cause.name, cause.device]
    command += [datasets[cause.stragglers], datasets[False], str(budget), str(hold), str(seed)]
    if cause.shm_bytes is not None:
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            return {**base, "absent": "mounting /dev/shm needs root and unshare"}
        command = ["unshare", "--mount", "sh", "-c", _MOUNTED, "sh", str(cause.shm_bytes), *command]
    try:
        out = run_child(command, timeout=2 * (budget + hold) + _OVERHEAD_SECONDS, env=environment())
    except RuntimeError as error:
        return {**base, "failed": str(error)}
    return {**base, **json.loads(out)}


@contextmanager
def planted(setup: Setup) -> Iterator[None]:
    """The tuner's loaders, devices and cores with what is planted, for as long as this is open."""
    from wellfed.pipeline.loader import ImageLoader, stock_loader
    from wellfed.pipeline.training import open_accelerator
    from wellfed.pipeline.training.simulated import PRESETS
    from wellfed.pipeline.tune import run
    from wellfed.pipeline.tune.machine import loaders

    from .wrappers import SlowTransform, Transformed, slow_copy

    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(PRESETS, {"planted": setup.preset}))  # type: ignore[arg-type]
        if setup.transform_seconds:
            slow = SlowTransform(setup.transform_seconds, setup.transform_burns)
            own = mock.patch.object(loaders, "make_loader", lambda s, c: ImageLoader(s, c, transform=slow))
            stock = mock.patch.object(
                loaders, "stock_loader", lambda source, **kw: Transformed(stock_loader(source, **kw), slow)
            )
            stack.enter_context(own)
            stack.enter_context(stock)
        if setup.copy_rate is not None:
            copy_rate = setup.copy_rate

            def opened(device: str) -> Any:
                accelerator = open_accelerator(device)
                slow_copy(accelerator, copy_rate)
                return accelerator

            stack.enter_context(mock.patch.object(run, "open_accelerator", opened))
        if setup.cores is not None:
            before = os.sched_getaffinity(0)
            stack.callback(os.sched_setaffinity, 0, before)
            os.sched_setaffinity(0, sorted(before)[: setup.cores])
        yield


def tune_live(cause: LiveCause, dataset: str, plain: str, *, budget: float, hold: float, seed: int) -> dict[str, Any]:
    """A whole tune of the product with the cause planted, in this process.

    Args:
        plain: the dataset that the loader's rate is measured on, by which plants are sized.
    """
    from wellfed.pipeline.config import TuneRequest
    from wellfed.pipeline.formats import open_source
    from wellfed.pipeline.tune import run_tune

    from .wrappers import SlowStorage, loader_rate

    cores = len(os.sched_getaffinity(0))
    rate = loader_rate(plain, workers=cores, seconds=_RATE_SECONDS)
    setup = cause.setup(rate, cores)
    source = open_source(dataset) if setup.storage_rate is None else SlowStorage(dataset, setup.storage_rate)
    request = TuneRequest(
        data=dataset,
        step="resnet50",
        device="simulated:planted" if setup.device == "simulated" else setup.device,
        budget_seconds=budget,
        hold_seconds=hold,
        seed=seed,
        **setup.request,
    )
    try:
        with planted(setup):
            found = run_tune(request, source=source, progress=lambda message, share: say(f"{share:4.0%} {message}"))
    finally:
        source.close()
    return {"loader_rate": rate, "cores": cores, "setup": asdict(setup), **_kept(cause, found.report)}


def _kept(cause: LiveCause, report: dict[str, Any]) -> dict[str, Any]:
    """What a verdict rests on, the raw steps and waits of each window left out."""
    trials = [
        {name: trial[name] for name in ("label", "role", "predicted_samples_per_second", "median", "left")}
        for trial in report["trials"]
    ]
    held = report["hold"]
    return {
        "named": cause.named_by(report["verdict"]),
        "verdict": report["verdict"],
        "chosen": report["tuned"]["settings"],
        "measured": report["tuned"]["measured"],
        "ceilings": report["ceilings"],
        "loader_rates": report["loader_rates"],
        "parts": report["parts"],
        "trials": trials,
        "hold": {name: value for name, value in held.items() if name != "windows"},
        "seconds": report["seconds"],
        "machine": report["machine"],
        "versions": report["versions"],
    }


def main(arguments: list[str]) -> None:
    name, device, dataset, plain, budget, hold, seed = arguments
    cause = live_causes(device)[name]
    found = tune_live(cause, dataset, plain, budget=float(budget), hold=float(hold), seed=int(seed))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
