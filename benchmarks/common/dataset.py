"""The stored dataset that training benchmarks load, and where they say how far they got."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .process import environment


def convert(photos: Path, out: Path, *options: str) -> str:
    """Convert class folders of JPEGs to WebDataset shards by the command; returns where they are.

    Args:
        options: more of the command's.
    """
    command = [sys.executable, "-m", "wellfed.pipeline", "convert", str(photos), str(out), "--format", "webdataset"]
    subprocess.run([*command, "--json", *options], env=environment(), check=True, stdout=subprocess.DEVNULL)
    return str(out)


def say(text: str) -> None:
    """Progress, to stderr."""
    print(text, file=sys.stderr, flush=True)
