"""wellfed's tuner beside what people do today to choose loader and batch size; a table, and raw values as JSON.

    python -m benchmarks.tuners --photos FOLDER --output result.json [--step resnet18] [--device auto]
                                [--budget 180] [--seconds 10] [--rounds 5] [--contestants NAME ...]

Everyone gets the same machine, dataset, step and device, and chooses in a process of its own. Then all choices are
measured in this one, interleaved, with the ceiling at each of their batch sizes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wellfed.pipeline.hardware import fingerprint

from ..common.dataset import convert, say
from ..common.versions import versions_of
from .choice import Choice, Task
from .choose import chosen_by
from .contestants import BY_NAME
from .rounds import measure_choices
from .summary import summarize, table

_LIBRARIES = ("torch", "torchvision", "pillow", "numpy", "lightning", "accelerate", "nvidia-dali-cuda120")


def arguments_of(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--photos", type=Path, required=True, help="class folders of JPEGs; converted first")
    parser.add_argument("--step", choices=("resnet18", "resnet50"), default="resnet18")
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:N or simulated[:PRESET]")
    parser.add_argument("--budget", type=float, default=180.0, help="seconds for choosing")
    parser.add_argument("--memory-cap", type=float, default=0.70, help="largest share of the device's memory")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measured window")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--contestants", nargs="+", choices=list(BY_NAME), default=list(BY_NAME))
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.seconds <= 0 or options.budget < 1:
        parser.error("--rounds and --seconds must be positive, and --budget at least 1")
    return options


def main(argv: list[str] | None = None) -> int:
    options = arguments_of(argv)
    contestants: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tuners-") as work:
        say("converting")
        task = Task(
            dataset=convert(options.photos, Path(work) / "dataset"),
            step=options.step,
            device=options.device,
            budget_seconds=options.budget,
            memory_cap=options.memory_cap,
            image_size=options.image_size,
            seed=options.seed,
        )
        for name in options.contestants:
            say(f"{name} chooses")
            contestants[name] = chosen_by(BY_NAME[name], task)
            say(f"{name}: {json.dumps(contestants[name])}")
        choices = {
            name: Choice.from_dict(outcome["choice"]) for name, outcome in contestants.items() if "choice" in outcome
        }
        measured = measure_choices(choices, task, rounds=options.rounds, seconds=options.seconds, say=say)
    run: dict[str, Any] = {
        "benchmark": "tuners",
        **{name: value for name, value in asdict(task).items() if name != "dataset"},
        "rounds": options.rounds,
        "seconds_per_window": options.seconds,
        "machine": fingerprint(),
        "versions": versions_of(_LIBRARIES),
        "contestants": contestants,
        **measured,
    }
    run["summary"] = summarize(run)
    options.output.write_text(json.dumps(run, indent=1) + "\n")
    print(table(run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
