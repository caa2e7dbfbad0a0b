"""The bar of a conversion."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from wellfed.converters.progress import Progress
from wellfed.pipeline.cli._progress import progress_bar

with progress_bar() as show:
    before = set(sys.modules)
    show(Progress(stage="pack", done=1, total=2, found_bad=0))
print(sorted(set(sys.modules) - before))
"""


def test_drawing_imports_nothing() -> None:
    # given a process of its own, where nothing is imported yet, when a bar is drawn
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    # then all that drawing needs was there before its thread began
    assert done.stdout.strip() == "[]"
    assert "packing" in done.stderr
