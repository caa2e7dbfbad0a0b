"""Run torchdata's own tests of its stateful loader against `wellfed.pipeline.DataLoader`.

    make test-torchdata TORCHDATA_SRC=path/to/a/checkout/of/pytorch/data

torchdata's releases hold no tests, so they come from a checkout (of the tag of the installed release). Each file runs
twice: with torchdata's own loader, and with what our factory makes of the same arguments. A test that passes with the
first and not with the second is a fault of ours, and the exit code is 1. One that torchdata's own loader fails, with
this version of torch, says nothing. `not_applicable.txt` names what is left out, and why.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
Results = dict[str, dict[str, Any]]


def not_applicable() -> dict[str, str]:
    """Pattern to reason."""
    found = {}
    for line in (HERE / "not_applicable.txt").read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, reason = line.split(maxsplit=1)
            found[pattern] = reason
    return found


def run(folder: Path, tests: Sequence[str], factory: str, timeout: int) -> Results:
    """Outcome of each test, by its name."""
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "factory_plugin", "-p", "no:cacheprovider"]
        command += ["-c", os.devnull, "--rootdir", str(folder), "-o", f"timeout={timeout}", "--tb=short"]
        command += ["--continue-on-collection-errors"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "WELLFED_STATEFUL_FACTORY": factory,
            "WELLFED_STATEFUL_LEAVE_OUT": "\n".join(not_applicable()),
            "WELLFED_STATEFUL_RESULTS": str(results),
        }
        done = subprocess.run([*command, *tests], cwd=folder, env=environment, check=False)
        if not results.exists() or done.returncode not in (0, 1, 5):
            raise SystemExit(f"pytest could not run the tests of {folder} (exit code {done.returncode})")
        found: Results = json.loads(results.read_text("utf-8"))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="checkout of https://github.com/pytorch/data")
    parser.add_argument("tests", nargs="*", help="files in test/stateful_dataloader; all, if none is named")
    parser.add_argument("--timeout", type=int, default=300, metavar="SECONDS", help="of one test")
    options = parser.parse_args(arguments)
    folder = options.source.resolve() / "test" / "stateful_dataloader"
    found = options.tests or sorted(path.name for path in folder.glob("test_*.py"))
    # Not even imported, where nothing of it applies.
    files = [name for name in found if f"{name}::*" not in not_applicable()]
    if not files:
        parser.error(f"a checkout of pytorch/data has tests in test/stateful_dataloader; there are none in {folder}")

    theirs = run(folder, files, "torchdata", options.timeout)
    ours = run(folder, files, "wellfed", options.timeout)
    worse = [name for name, one in ours.items() if one["outcome"] == "failed" and passed(theirs, name)]
    if worse:
        # Some of these tests race against timeouts of their own.
        nodes = [name for name in worse if "[" not in name] or worse
        again = run(folder, nodes, "wellfed", options.timeout)
        unsteady = [name for name in worse if passed(again, name)]
        worse = [name for name in worse if name not in unsteady]
        for name in unsteady:
            print(f"passed when repeated: {name}")
    through = [name for name, one in ours.items() if one["outcome"] == "passed" and one["made"]]
    print(f"\n{len(through)} tests passed with loaders that wellfed.pipeline.DataLoader made, in {', '.join(files)}")
    print(f"{sum(passed(ours, name) and not one['made'] for name, one in ours.items())} passed without making one here")
    print(f"{sum(one['outcome'] == 'skipped' for one in ours.values())} skipped themselves")
    left_out = [name for name in found if name not in files]
    left_out += [name for name, one in ours.items() if one["outcome"] == "left out"]
    print(f"left out (not_applicable.txt): {', '.join(left_out) or 'nothing'}")
    both = [name for name, one in ours.items() if one["outcome"] == "failed" and not passed(theirs, name)]
    for name in both:
        print(f"fails with torchdata's own loader, too: {name}")
    for name in worse:
        print(f"FAILS only with ours: {name}")
    return 1 if worse or not through else 0


def passed(results: Results, name: str) -> bool:
    return results.get(name, {}).get("outcome") == "passed"


if __name__ == "__main__":
    sys.exit(main())
