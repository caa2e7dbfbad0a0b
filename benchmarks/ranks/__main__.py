"""Whether several GPUs of one machine are fed together: tune on all, then the step on cached batches and fed, in turn.

    python -m benchmarks.ranks --data WEBDATASET --output result.json --gpus 2 4 [--step resnet50] [--device auto]
                               [--budget 3m] [--rounds 5] [--seconds 4] [--tuned FILE]

For each number of GPUs: `wellfed tune` under torchrun, unless --tuned gives its result; then rounds on all GPUs and
on one, with the tuned settings on each. Scaling against one GPU is told apart: communication (the ceiling of each of W
GPUs over the ceiling of one) times the loader's part (the fed ratio of W GPUs). Aims: fed ratio at least 0.95,
utilization of every GPU above 70%. The reference steps are bf16, channels-last, SGD, of DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..common.dataset import say
from ..common.versions import versions_of
from .summary import summarize, table

_LIBRARIES = ("torch", "torchvision", "numpy", "nvidia-dali-cuda120", "nvidia-dali-cuda130")


def arguments_of(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a converted dataset")
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--gpus", type=int, nargs="+", default=[2], help="how many, each at least 2")
    parser.add_argument("--step", default="resnet50")
    parser.add_argument("--device", default="auto", help="auto (each rank its own GPU) or simulated[:PRESET]")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-sizes", help="for the tune, as 64,128,256")
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--hold", default="60s")
    parser.add_argument("--tuned", type=Path, help="a tuned config of these GPUs, instead of a tune")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measured window")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.seconds <= 0 or min(options.gpus) < 2:
        parser.error("--rounds and --seconds must be positive, and --gpus at least 2")
    return options


def _launch(ranks: int, module: str, *arguments: object) -> int:
    """The exit code of a module on so many ranks; one needs no launcher."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    return subprocess.run([sys.executable, *launcher, "-m", module, *map(str, arguments)], check=False).returncode


def _tune(options: argparse.Namespace, ranks: int, output: Path, report: Path) -> dict[str, Any]:
    """The report of a tune on so many ranks; torchrun ends with 1 where the verdict is not `passed`."""
    sizes = () if options.batch_sizes is None else ("--batch-sizes", options.batch_sizes)
    _launch(
        ranks,
        *("wellfed.pipeline", "tune", options.data, "--step", options.step, "--device", options.device),
        *("--budget", options.budget, "--hold", options.hold, "--image-size", options.image_size),
        *("--seed", options.seed, "--output", output, "--report", report, *sizes),
    )
    if not output.exists():
        raise SystemExit(f"the tune on {ranks} GPUs gave no settings; its words are above")
    found: dict[str, Any] = json.loads((report / "report.json").read_text("utf-8"))
    return found


def _measure(options: argparse.Namespace, ranks: int, tuned: Path, output: Path) -> dict[str, Any]:
    say(f"measuring {options.step} on {ranks}")
    code = _launch(
        ranks,
        *("benchmarks.ranks.measure", options.data, options.step, options.device, tuned),
        *(options.rounds, options.seconds, options.seed, output),
    )
    if code:
        raise SystemExit(f"measuring on {ranks} ended with {code}; its words are above")
    found: dict[str, Any] = json.loads(output.read_text("utf-8"))
    return found


def main(argv: list[str] | None = None) -> int:
    options = arguments_of(argv)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        work = Path(folder)
        for ranks in options.gpus:
            tuned, report = options.tuned, None
            if tuned is None:
                say(f"tuning {options.step} on {ranks}")
                tuned = work / f"tuned-{ranks}.json"
                report = _tune(options, ranks, tuned, work / f"report-{ranks}")
            many = _measure(options, ranks, tuned, work / f"{ranks}.json")
            one = _measure(options, 1, tuned, work / f"{ranks}-one.json")
            runs.append({"many": many, "one": one, "tune": report, "summary": summarize(many, one)})
            document = {"benchmark": "ranks", "versions": versions_of(_LIBRARIES), "runs": runs}
            # Now, and not at the end: a call that is cut off keeps what it has.
            options.output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    print(table([run["summary"] for run in runs]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
