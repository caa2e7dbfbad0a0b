"""Processes, their memory, and paired ratios."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
Load = Callable[[str], Any]


def test_a_ratio_is_paired_by_round(load: Load) -> None:
    # given rates of 2 and 8 over 1 and 2, and of 4 over 1
    found = load("common.ratios").ratio([2.0, 8.0, 4.0], [1.0, 2.0, 1.0])
    # then each round has its own ratio
    assert found["rounds"] == [2.0, 4.0, 4.0]
    assert found["median"] == 4.0
    assert found["low"] <= 4.0 <= found["high"]


def test_a_child_that_fails_says_how_it_ended(load: Load) -> None:
    process = load("common.process")
    with pytest.raises(RuntimeError, match=r"ended with 3: it broke"):
        process.run_child(
            [sys.executable, "-c", "import sys; print('it broke', file=sys.stderr); sys.exit(3)"],
            timeout=60,
            env=dict(os.environ),
        )


def test_a_child_that_hangs_is_ended_with_its_children(load: Load) -> None:
    process = load("common.process")
    seen: set[int] = set()

    def watch(pid: int) -> None:
        seen.update(process.tree(pid))

    with pytest.raises(RuntimeError, match="did not end within"):
        process.run_child(["sh", "-c", "sleep 600 & wait"], timeout=3, env=dict(os.environ), watch=watch)

    assert len(seen) == 2
    # A killed process that is nobody's to wait for ends when the system comes to it.
    deadline = time.monotonic() + 30
    while (left := [pid for pid in seen if _runs(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_memory_of_a_tree_holds_its_children(load: Load) -> None:
    process = load("common.process")
    code = "data = bytearray(50_000_000); print(flush=True); input()"
    before = process.tree_pss(os.getpid())["Pss_Anon"]
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in process.tree(os.getpid())
        assert process.tree_pss(os.getpid())["Pss_Anon"] - before > 45_000_000
    finally:
        child.communicate(b"\n")


def test_many_rows_counts_them_and_what_they_take() -> None:
    command = [sys.executable, "-m", "benchmarks.many_rows", "--rows", "300", "--workers", "1"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=True)

    found = json.loads(ended.stdout)
    assert (found["summary"]["found"], found["summary"]["stored"], found["summary"]["rejected"]) == (300, 294, 6)
    assert found["rows_per_second"] == pytest.approx(300 / found["seconds"], rel=0.1)
    # The last reading may be of a process that has only begun, so little can be said of so short a run.
    assert 0 < found["main_peak_rss_bytes"] < 1 << 30
    assert found["samples"]
