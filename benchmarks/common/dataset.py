"""The dataset that a benchmark of training loads: photos, converted by the product's own command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .process import environment


def convert(photos: Path, out: Path, options: Sequence[str] = ()) -> str:
    """Convert class folders of JPEGs to a WebDataset with these options of `wellfed convert`; its path."""
    command = [sys.executable, "-m", "wellfed.pipeline", "convert", str(photos), str(out), "--format", "webdataset"]
    subprocess.run([*command, "--json", *options], env=environment(), check=True, stdout=subprocess.DEVNULL)
    return str(out)
