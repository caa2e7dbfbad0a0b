"""The parsers are fuzzed for a moment each; `make fuzz` and `make test-long` do it for minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PARSERS = 13


def environment(repository: Path) -> dict[str, str]:
    paths = [str(repository / ".typing"), str(repository / "tests"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def fuzz(repository: Path, keep: Path, seconds: float, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fuzz", "--seconds", str(seconds), "--keep", str(keep), *more],
        env=environment(repository),
        capture_output=True,
        text=True,
    )


def test_nothing_is_found_in_a_moment(repository: Path, tmp_path: Path) -> None:
    # Always the same changes: what new ones find is for the long run, not for somebody's unrelated commit.
    ended = fuzz(repository, tmp_path, 0.3, "--least", "0", "--seed", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("%") == PARSERS


@pytest.mark.long
@pytest.mark.timeout(PARSERS * 900)
def test_nothing_is_found_in_minutes_and_the_lines_are_reached(repository: Path, tmp_path: Path) -> None:
    ended = fuzz(repository, tmp_path, float(os.environ.get("WELLFED_FUZZ_SECONDS") or 600))
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr


FAULTY = """
import os
from pathlib import Path
from fuzz.campaign import fuzz
from fuzz.target import Target

FAULTS = {
    "raised": lambda: {}[7],
    "wrong": lambda: [].index(0),
    "crash": lambda: os.kill(os.getpid(), 11),
    "memory": lambda: b"x" * (200 << 20),
    "none": lambda: None,
}
for name, fault in FAULTS.items():
    def run(slot, data, folder, fault=fault):
        if data != b"seed":
            fault()

    target = Target(name=name, run=run, seeds=lambda: [("x", b"seed")], modules=("fuzz.mutate",))
    print(name, fuzz(target, 0.2, 1, Path.cwd() / name, []).findings)
"""


def test_faults_are_found(repository: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FAULTY], cwd=tmp_path, env=environment(repository), capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    found = dict(line.split(" ", 1) for line in ended.stdout.splitlines())
    assert "KeyError" in found["raised"]
    assert "ValueError" in found["wrong"]
    assert "ended the process: -11" in found["crash"]
    assert "took 2" in found["memory"]
    assert found["none"] == "[]"
