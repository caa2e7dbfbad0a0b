"""How much of its own speed a training step keeps when a loader feeds it; a table, and every raw value as JSON.

    python -m benchmarks.fed_ratio --output result.json --photos FOLDER [--configurations NAME ...] [--feeds FEED ...]
                                   [--device cuda] [--rounds 5] [--seconds 1.5] [--limit-seconds 540]

The ceiling is the same step object on a rotation of three uint8 batches that lie on the device; each round measures it
and every feed once, in a new random order, and a ratio is paired within its round. Steps: bf16 autocast, channels-last,
SGD, normalization on the device. Each configuration is added to the output as soon as it is done, so one call can hold
some and the next the others. A feed is BACKEND:FIELD=VALUE,... with the fields of LoaderSettings.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from wellfed.pipeline.hardware import fingerprint

from ..common.dataset import convert, say
from ..common.versions import versions_of
from .feeds import BY_NAME, CONFIGURATIONS
from .run import Plan, measure_configuration
from .summary import summarize, table

_IMAGE_OPTIONS = {"originals": (), "resized": ("--image", "resize:256")}
_LIBRARIES = ("torch", "torchvision", "numpy", "nvidia-dali-cuda120", "nvidia-dali-cuda130")


def arguments_of(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file; runs are added where it exists")
    parser.add_argument("--photos", type=Path, required=True, help="class folders of JPEGs; converted first, both ways")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or simulated[:PRESET]")
    parser.add_argument("--configurations", nargs="+", choices=list(BY_NAME), default=list(BY_NAME))
    parser.add_argument("--feeds", nargs="+", help="instead of each configuration's own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measured window")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--limit-seconds",
        type=float,
        default=540.0,
        help="no configuration is begun that would, taking as long as the longest so far, end after them",
    )
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.seconds <= 0 or options.batch_size < 1:
        parser.error("--rounds, --seconds and --batch-size must be positive")
    return options


def _stored(output: Path) -> dict[str, Any]:
    if not output.exists():
        return {"benchmark": "fed_ratio", "runs": []}
    document: dict[str, Any] = json.loads(output.read_text())
    if document.get("benchmark") != "fed_ratio":
        raise SystemExit(f"{output} holds something else than results of this benchmark")
    return document


def main(argv: list[str] | None = None) -> int:
    options = arguments_of(argv)
    document = _stored(options.output)
    plan = Plan(options.rounds, options.seconds, options.batch_size, options.image_size, options.seed)
    simulated = options.device.partition(":")[0] == "simulated"
    began, longest, runs, left_out = time.monotonic(), 0.0, [], []
    with tempfile.TemporaryDirectory(prefix="fed-ratio-") as work:
        datasets: dict[str, str] = {}
        for configuration in CONFIGURATIONS:
            if configuration.name not in options.configurations:
                continue
            if simulated and configuration.cuda_only:
                left_out.append(f"{configuration.name}: not run: the simulated device has no such step")
                continue
            if time.monotonic() - began + longest > options.limit_seconds:
                left_out.append(f"{configuration.name}: not run: --limit-seconds {options.limit_seconds:g}")
                continue
            if configuration.images not in datasets:
                say(f"converting {configuration.images}")
                datasets[configuration.images] = convert(
                    options.photos, Path(work) / configuration.images, *_IMAGE_OPTIONS[configuration.images]
                )
            feeds = options.feeds or configuration.feeds
            run = measure_configuration(configuration, feeds, datasets[configuration.images], options.device, plan, say)
            run |= {"machine": fingerprint(), "versions": versions_of(_LIBRARIES)}
            run["summary"] = summarize(run)
            longest = max(longest, run["seconds"])
            runs.append(run)
            document["runs"].append(run)
            # Now, and not at the end: a call that is cut off keeps what it has.
            options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(table(runs))
    print("".join(f"\n{line}\n" for line in left_out), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
