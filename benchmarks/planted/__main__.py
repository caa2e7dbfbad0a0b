"""Plant bottlenecks, tune, and see whether the verdict names them; a table, and every verdict as JSON.

    python -m benchmarks.planted --output result.json [--cause NAME ...] [--seeds 10]

The device is the simulated accelerator and the machine is made of formulas, both on a virtual clock: whole tunes of
three minutes take tenths of a second, and a seed settles the noise of everything. Exit code 1 where a verdict names
another cause.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..common.versions import versions_of
from .causes import BY_NAME, CAUSES
from .simulated import tune_simulated


def arguments_of(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--cause", nargs="+", choices=list(BY_NAME), default=list(BY_NAME))
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args(argv)
    if options.seeds < 1:
        parser.error("--seeds must be positive")
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


def main(argv: list[str] | None = None) -> int:
    options = arguments_of(argv)
    runs = []
    for cause in CAUSES:
        if cause.name in options.cause:
            print(f"{cause.name}: {options.seeds} seeds", file=sys.stderr, flush=True)
            runs += [tune_simulated(cause, seed) for seed in range(options.seeds)]
    document = {"benchmark": "planted", "simulated": True, "versions": versions_of(("torch", "numpy")), "runs": runs}
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(table(runs))
    return 0 if all(run["named"] for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
