"""Where the command begins: an interrupt ends it quietly from here on, also while its modules are still loading."""

import os
import signal
import sys
from types import FrameType

from ._streams import open_streams

_INTERRUPTED = 130


def main() -> None:
    """Load the command line and run it; see `cli.main`."""
    # Nothing is open yet, and an exception may be caught by whatever is being imported.
    for number in (signal.SIGINT, signal.SIGTERM):
        # What runs in a shell's background has the interrupt ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    open_streams()
    from .main import main as command_line

    # It makes handlers of its own.
    command_line()


def _end(number: int, frame: FrameType | None) -> None:
    sys.stderr.write("wellfed: interrupted.\n")
    sys.stderr.flush()
    os._exit(_INTERRUPTED)
