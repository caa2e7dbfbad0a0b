"""Plant bottlenecks, tune, and see whether the verdict names them; a table, and every verdict as JSON.

    python -m benchmarks.planted --output result.json [--cause NAME ...] [--seeds 10]
    python -m benchmarks.planted --live --photos FOLDER --output result.json [--cause NAME ...] [--device cuda]

Without --live the device is the simulated accelerator and the machine is made of formulas, both on a virtual clock:
whole tunes of three minutes take tenths of a second, and a seed settles the noise of everything. With it each cause is
tuned once in real time, with real loaders on real files; on the CPU beside the simulated accelerator, and with --device
cuda those that need a GPU. Causes are added to the output as they are done, and take the place of earlier runs of
theirs. Exit code 1 where a verdict names another
cause.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..common.dataset import say
from ..common.versions import versions_of
from .causes import BY_NAME, CAUSES
from .live import live_causes
from .live_run import make_datasets, run_live
from .simulated import tune_simulated


def arguments_of(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--cause", nargs="+", help="some of the causes alone")
    parser.add_argument("--seeds", type=int, default=10, help="of each cause, on the virtual clock")
    parser.add_argument("--live", action="store_true", help="in real time")
    parser.add_argument("--photos", type=Path, help="folder of JPEGs, live; made ones where it is left out")
    parser.add_argument("--device", choices=("simulated", "cuda"), default="simulated", help="live")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of a tune, live")
    parser.add_argument("--hold", type=float, default=12.0, help="seconds, live")
    options = parser.parse_args(argv)
    if options.seeds < 1:
        parser.error("--seeds must be positive")
    known = live_causes(options.device) if options.live else BY_NAME
    options.cause = options.cause or list(known)
    if unknown := sorted(set(options.cause) - set(known)):
        parser.error(f"--cause {', '.join(unknown)}: choose from {', '.join(known)}")
    return options


def table(runs: list[dict[str, Any]]) -> str:
    """One row a cause: how often it was named, and the first verdict."""
    lines = ["| planted | named | verdict | binds |", "|---|---|---|---|"]
    for cause in dict.fromkeys(run["cause"] for run in runs):
        mine = [run for run in runs if run["cause"] == cause]
        named = sum(run["named"] for run in mine)
        verdict = mine[0]["verdict"]
        lines.append(f"| {cause} | {named} of {len(mine)} | {verdict['name']} | {verdict['binds'] or 'nothing'} |")
    return "\n".join(lines)


def live_table(runs: list[dict[str, Any]]) -> str:
    """One row a cause: what was planted, what the verdict says, and whether that is right."""
    lines = ["| planted | how | verdict | binds | its first advice | right |", "|---|---|---|---|---|---|"]
    for run in runs:
        start = f"| {run['cause']} | {run['how']} |"
        if "verdict" not in run:
            lines.append(f"{start} not run: {run.get('absent') or run['failed']} | | | |")
            continue
        verdict = run["verdict"]
        advice = verdict["advice"][0] if verdict["advice"] else verdict["summary"]
        right = "yes" if run["named"] else "**no**"
        lines.append(f"{start} {verdict['name']} | {verdict['binds'] or 'nothing'} | {advice} | {right} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    options = arguments_of(argv)
    return _live(options) if options.live else _simulated(options)


def _simulated(options: argparse.Namespace) -> int:
    runs = []
    for cause in CAUSES:
        if cause.name in options.cause:
            say(f"{cause.name}: {options.seeds} seeds")
            runs += [tune_simulated(cause, seed) for seed in range(options.seeds)]
    document = {"benchmark": "planted", "simulated": True, "versions": versions_of(("torch", "numpy")), "runs": runs}
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(table(runs))
    return 0 if all(run["named"] for run in runs) else 1


def _stored(output: Path, device: str, again: set[str]) -> list[dict[str, Any]]:
    """Runs of an output that exists, without those of the causes that run again."""
    if not output.exists():
        return []
    document = json.loads(output.read_text())
    if (document.get("benchmark"), document.get("live"), document.get("device")) != ("planted", True, device):
        raise SystemExit(f"{output} holds something else than live results of this benchmark with --device {device}")
    return [run for run in document["runs"] if run["cause"] not in again]


def _live(options: argparse.Namespace) -> int:
    order = list(live_causes(options.device))
    causes = [cause for cause in live_causes(options.device).values() if cause.name in options.cause]
    runs = _stored(options.output, options.device, {cause.name for cause in causes})
    with tempfile.TemporaryDirectory(prefix="planted-") as work:
        datasets = make_datasets(options.photos, Path(work), causes)
        for cause in causes:
            say(f"{cause.name}: {cause.how}")
            runs.append(run_live(cause, datasets, budget=options.budget, hold=options.hold, seed=0))
            document = {"benchmark": "planted", "live": True, "device": options.device, "runs": runs}
            runs.sort(key=lambda run: order.index(run["cause"]))
            # Now, and not at the end: a call that is cut off keeps what it has.
            options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(live_table(runs))
    return 0 if all(run.get("named", "absent" in run) for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
