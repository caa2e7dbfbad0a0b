"""A process of its own for each value, and what it and its children take while they live."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def environment(**more: str) -> dict[str, str]:
    """This process's environment, with which a child imports the benchmarks and what this process can import."""
    path = os.pathsep.join(map(str, (REPOSITORY, *filter(None, sys.path))))
    return {**os.environ, "PYTHONPATH": path, **more}


def run_child(
    command: Sequence[str],
    *,
    timeout: float,
    env: dict[str, str],
    watch: Callable[[int], None] | None = None,
    period_seconds: float = 0.25,
) -> str:
    """Run to the end in a session of its own; its stdout.

    Args:
        watch: called with the process's number every `period_seconds`.

    Raises:
        RuntimeError: it failed, or took longer than `timeout` seconds and was ended with all its children.
    """
    deadline = time.monotonic() + timeout
    with subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            while True:
                try:
                    wait = period_seconds if watch else deadline - time.monotonic()
                    out, errors = process.communicate(timeout=max(0.0, wait))
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() >= deadline:
                        raise RuntimeError(f"{' '.join(command)} did not end within {timeout:.0f} s") from None
                    if watch is not None:
                        watch(process.pid)
        finally:
            # Whatever it left behind would slow the next one down.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise RuntimeError(f"ended with {process.returncode}: {errors.decode(errors='replace').strip()[-2000:]}")
    return out.decode()


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                with contextlib.suppress(OSError):
                    found += map(int, Path(f"/proc/{parent}/task/{task}/children").read_text().split())
    return found


def tree_pss(pid: int) -> dict[str, int]:
    """Bytes of memory of a process and all below it, shared pages divided among those that map them.

    Returns:
        "Pss" and its parts "Pss_Anon", "Pss_File", "Pss_Shmem"; a process that ends meanwhile is left out.
    """
    total = {"Pss": 0, "Pss_Anon": 0, "Pss_File": 0, "Pss_Shmem": 0}
    for member in tree(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in total:
                    total[name] += int(rest.split()[0]) * 1024
    return total


def tree_cpu_seconds(pid: int) -> float:
    """User and system time of a process and all below it that still live or were waited for."""
    ticks = 0
    for member in tree(pid):
        with contextlib.suppress(OSError):
            # After the name, which may hold spaces, fields 14 to 17: own and waited-for children's user and system.
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
