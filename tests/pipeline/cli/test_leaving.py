"""A thread of the user's that never ends does not hold the command."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading, time
from wellfed.pipeline.cli import main
main._LEAVE_SECONDS = 0.1
threading.Thread(target=time.sleep, args=(1e6,), name="forever").start()
main.main(["inspect", "no-such-folder"])
"""


def test_a_thread_that_never_ends_is_named_and_the_exit_code_kept() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "held by threads that the step started: forever" in done.stderr
