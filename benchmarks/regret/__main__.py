"""Is what the tuner chooses within 3% of the best of a grid, in a tenth of the grid's trial seconds?

    python -m benchmarks.regret record --photos FOLDER --step resnet18 --output F [--device cuda:0] [--part I/N]
                                       [--seconds-left S]
    python -m benchmarks.regret replay F... --output G [--seeds 100]
    python -m benchmarks.regret live --recording F --tuned REPORT --output G

`record` measures a grid written by hand, and everything else that the tuner's search asks of a machine, each several
times; it is written point by point, and goes on where an earlier call stopped. `replay` runs the product's search over
that, on a virtual clock, with answers drawn anew for each seed. `live` holds one tune's report against the grid.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wellfed.pipeline.hardware import fingerprint, preflight
from wellfed.pipeline.loader.usable import usable_backends
from wellfed.pipeline.tune.model.footprint import kept_open
from wellfed.pipeline.tune.preflight import check_sharers, limits_of
from wellfed.pipeline.tune.run import Opened, opened

from ..common.dataset import convert
from ..common.versions import versions_of
from . import live
from .grid import GRID, points_of
from .record import Plan, record
from .recording import BENCHMARK, Recording
from .replay import replay, table

_LIBRARIES = ("torch", "torchvision", "numpy", "nvidia-dali-cuda120", "nvidia-dali-cuda130")


def arguments_of(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record", help="measure the grid, and what a search asks")
    one.add_argument("--photos", type=Path, required=True, help="class folders of JPEGs; converted first")
    one.add_argument("--step", required=True, help="as wellfed tune takes it")
    one.add_argument("--output", type=Path, required=True, help="JSON file; continued where it exists")
    one.add_argument("--device", default="cuda:0", help="cuda:N or simulated[:PRESET]")
    one.add_argument("--part", default="1/1", help="I/N: only every N-th point, from the I-th on")
    one.add_argument("--seconds-left", type=float, help="nothing is begun that would end after them")
    one.add_argument("--window", type=float, default=Plan.window_seconds, help="seconds of each window")
    one.add_argument("--windows", type=int, default=Plan.windows, help="of each point")
    one.add_argument("--passes", type=int, default=Plan.passes, help="over the parts of the machine")
    one.add_argument("--points", type=int, help="only so many points of the grid, for trying it out")
    one.add_argument("--image-size", type=int, default=224)
    one.add_argument("--seed", type=int, default=0, help="of order and augmentation")
    two = commands.add_parser("replay", help="run the product's search over recordings")
    two.add_argument("recordings", type=Path, nargs="+", help="parts of one step are joined")
    two.add_argument("--output", type=Path, required=True, help="JSON file")
    two.add_argument("--seeds", type=int, default=100)
    three = commands.add_parser("live", help="hold a tune's report against a recording")
    three.add_argument("--recording", type=Path, nargs="+", required=True)
    three.add_argument("--tuned", type=Path, required=True, help="the report's JSON")
    three.add_argument("--output", type=Path, required=True, help="JSON file")
    options = parser.parse_args(argv)
    if options.command == "record":
        part, _, parts = options.part.partition("/")
        if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
            parser.error("--part must be I/N with I from 1 to N")
        options.part, options.parts = int(part), int(parts)
        if options.window <= 0 or min(options.windows, options.passes, options.points or 1) < 1:
            parser.error("--window, --windows, --passes and --points must be positive")
    elif options.command == "replay" and options.seeds < 1:
        parser.error("--seeds must be positive")
    return options


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _head(on: Opened, options: argparse.Namespace) -> dict[str, Any]:
    """What must not change within a recording, and where it was made."""
    limits = limits_of(preflight(), kept_open=kept_open(on.source))
    backends = usable_backends(on.accelerator.torch_device)
    pin = on.device.pin_memory
    return {
        "step": options.step,
        "image_size": options.image_size,
        "window_seconds": options.window,
        "points": options.points or len(points_of(GRID, backends, pin_memory=pin)[0]),
        "device": on.accelerator.description,
        "driver_device": asdict(on.device),
        "limits": {**asdict(limits), "backends": list(backends)},
        "dataset": {"samples": len(on.source)},
        "machine": fingerprint(),
        "versions": versions_of(_LIBRARIES),
    }


_KEPT = ("step", "image_size", "window_seconds", "points", "driver_device")


def _record(options: argparse.Namespace) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="regret-") as work:
        data = convert(options.photos, Path(work) / "originals")
        with opened(
            data,
            options.step,
            options.device,
            image_size=options.image_size,
            seed=options.seed,
            clock=time.perf_counter,
        ) as on:
            check_sharers(on.accelerator, allowed=False)
            head = _head(on, options)
            recording = Recording.load(options.output) if options.output.exists() else Recording(head)
            changed = [name for name in _KEPT if recording.head[name] != head[name]]
            if changed:
                raise SystemExit(f"{options.output} was recorded with another {', '.join(changed)}")
            _, absent = points_of(GRID, head["limits"]["backends"], pin_memory=on.device.pin_memory)
            recording.unavailable = [
                {"settings": point.to_dict(), "reason": f"backend {point.backend} cannot run on {on.accelerator.name}"}
                for point in absent
            ]
            left = None if options.seconds_left is None else options.seconds_left - (time.monotonic() - began)
            plan = Plan(
                window_seconds=options.window,
                windows=options.windows,
                passes=options.passes,
                part=options.part,
                parts=options.parts,
                seconds_left=left,
            )
            whole = record(on.rig, recording, plan, save=lambda: recording.save(options.output), say=say)
    print(f"{options.output}: {'whole' if whole else 'not whole yet: the same command goes on'}")
    return 0


def _joined(paths: list[Path]) -> list[Recording]:
    """One for each step."""
    by_step: dict[str, list[Recording]] = {}
    for path in paths:
        recording = Recording.load(path)
        by_step.setdefault(recording.head["step"], []).append(recording)
    return [Recording.joined(parts) for parts in by_step.values()]


def _replay(options: argparse.Namespace) -> int:
    models = [replay(recording, options.seeds, say) for recording in _joined(options.recordings)]
    document = {"benchmark": BENCHMARK, "versions": versions_of(("torch", "numpy")), "models": models}
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(table(models))
    return 0


def _live(options: argparse.Namespace) -> int:
    (recording,) = _joined(options.recording)
    found = live.compare(recording, json.loads(options.tuned.read_text()))
    options.output.write_text(json.dumps({"benchmark": BENCHMARK, "live": found}, indent=1) + "\n")
    speed, best = found["samples_per_second"], found["best_samples_per_second"]
    print(
        f"{found['step']}: {speed:,.0f} img/s, the best of the grid {best:,.0f}: regret {found['regret_percent']:.1f}%"
    )
    print(f"{found['seconds_before_hold']:.0f} s before the hold, of {live.BUDGET_SECONDS:g}")
    return 0


def main(argv: list[str] | None = None) -> int:
    options = arguments_of(argv)
    return {"record": _record, "replay": _replay, "live": _live}[options.command](options)


if __name__ == "__main__":
    sys.exit(main())
