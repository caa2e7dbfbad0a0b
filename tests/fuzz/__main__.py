"""Fuzz the parsers: `PYTHONPATH=tests python -m fuzz [TARGET ...]`; see --help.

For each parser: executions, inputs kept, lines reached. Exit code 1: a finding, or fewer lines than must be.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from wellfed.pipeline.errors import WellfedError

from . import archives, binaries, datasets, images, tables, values
from .campaign import Outcome, fuzz, unpack
from .target import Target

TARGETS: tuple[Target, ...] = (
    *images.TARGETS,
    *datasets.TARGETS,
    *archives.TARGETS,
    *tables.TARGETS,
    *binaries.TARGETS,
    *values.TARGETS,
)
LEAST_PERCENT = 90
CORPUS = Path(__file__).parent / "corpus"


def main() -> int:
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz the parsers, each in a process.")
    parser.add_argument("targets", nargs="*", choices=[*names, []], help=f"all, or some of: {', '.join(names)}")
    seconds = float(os.environ.get("WELLFED_FUZZ_SECONDS", 600))
    parser.add_argument("--seconds", type=float, default=seconds, help="for each [WELLFED_FUZZ_SECONDS, or 600]")
    parser.add_argument("--seed", type=int, default=None, help="of the random changes; printed where not given")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--keep", type=Path, default=None, help="folder for corpus and findings [a temporary one]")
    parser.add_argument("--replay", type=Path, help="read one input that a finding names, with its traceback")
    parser.add_argument("--least", type=float, default=LEAST_PERCENT, help="percent of the lines [%(default)s]")
    parser.add_argument("--missed", action="store_true", help="show the lines that were not reached")
    given = parser.parse_args()
    chosen = [target for target in TARGETS if not given.targets or target.name in given.targets]
    if given.replay is not None:
        return replay(chosen[0], given.replay)
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    keep = given.keep or Path(tempfile.mkdtemp(prefix="wellfed-fuzz-"))
    print(f"seed {seed}; {given.seconds:g} s for each of {len(chosen)} parsers; inputs kept in {keep}", flush=True)

    print(f"{'parser':<12}{'executions':>12}{'corpus':>8}{'lines':>14}{'percent':>9}", flush=True)
    failed = False
    # Forked, so that what all parsers need is imported once.
    with ProcessPoolExecutor(max(1, given.jobs), get_context("fork")) as pool:
        for outcome in pool.map(campaign, ((target.name, given.seconds, seed, keep) for target in chosen)):
            lines = f"{outcome.covered}/{outcome.lines}"
            shown = (
                f"{outcome.target:<12}{outcome.executions:>12,}{outcome.corpus:>8}{lines:>14}{outcome.percent:>8.1f}%"
            )
            print(shown, flush=True)
            if outcome.percent < given.least:
                print(f"  FAILED: at least {given.least:g}% of the lines must be reached")
                failed = True
            if given.missed or outcome.percent < given.least:
                for path, line in outcome.missed:
                    print(f"  not reached: {Path(path).name}:{line}")
            for finding in outcome.findings:
                print(f"  FINDING: {finding}", flush=True)
                failed = True
    return int(failed)


def campaign(task: tuple[str, float, int, Path]) -> Outcome:
    """Fuzz the target of a name."""
    name, seconds, seed, keep = task
    target = next(each for each in TARGETS if each.name == name)
    starts = [unpack(path.read_bytes()) for path in sorted((CORPUS / name).glob("*"))]
    return fuzz(target, seconds, seed, keep / name, starts)


def replay(target: Target, path: Path) -> int:
    """Read one input, with a traceback where it raises what it must not."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            target.run(*unpack(path.read_bytes()), Path(folder))
        except WellfedError as error:
            print(f"{type(error).__name__}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
