"""How the examples are started: as a user does, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def run_example(repository: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs a script of examples/ in an empty folder; what it prints, once it has ended well."""

    def run(script: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, str(repository / "examples" / script), *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(repository / ".typing")},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
