"""Run one command and say what it took."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a command and all its processes took.

    Attributes:
        seconds: wall time from starting the process to its end.
        user_seconds, system_seconds: CPU time.
    """

    seconds: float
    user_seconds: float
    system_seconds: float

    def to_dict(self) -> dict[str, float]:
        """JSON types, to the tenth of a millisecond."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def run_command(command: Sequence[str], environment: dict[str, str]) -> tuple[Taken, str]:
    """Run it to its end; what it took, and its stdout.

    Raises:
        RuntimeError: it failed; with the end of its stderr.
    """
    start = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        # Both are short, so a pipe's buffer holds them and nothing has to be read while the clock runs.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.stdout is not None
        assert process.stderr is not None
        out, errors = process.stdout.read().decode(), process.stderr.read().decode()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {errors[-2000:]}")
    return Taken(seconds=seconds, user_seconds=usage.ru_utime, system_seconds=usage.ru_stime), out
