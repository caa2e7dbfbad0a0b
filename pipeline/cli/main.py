"""The `wellfed` command: registers one file a command and turns errors into exit codes.

Exit codes (design section 9): 0 done; 1 a failed operation; 2 wrong usage or configuration; 3 done, but samples were
rejected or a check found damage; 4 the verdict is not `passed`; 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
import traceback
from types import FrameType

import typer

from .. import __version__
from ..errors import WellfedError, follows_interrupt, words_of
from .bench import bench
from .convert import convert
from .demo import demo
from .doctor import doctor
from .index import index
from .inspect import inspect
from .tune import tune
from .verify import verify

INTERRUPTED = 130

_OF_THE_SYSTEM = {
    errno.ENOSPC: ("the disk must have room for", "Free space.", 1),
    errno.EDQUOT: ("the disk must have room for", "Free space, or ask for a larger quota.", 1),
    errno.ENAMETOOLONG: ("the system must allow a name as long as that of", "Give a shorter one.", 2),
    errno.EACCES: ("this user must have access to", "Check permissions.", 1),
    errno.EROFS: ("the file system must not be read-only for", "Give another place.", 1),
}
"""What a system call refuses where no command foresaw it: the rule, the remedy and the exit code."""

_LEAVE_SECONDS = 10.0
"""For threads that a user's step started to end by themselves, as those of a pool do at the end of the program."""

app = typer.Typer(
    name="wellfed",
    help="Keep a training GPU fed: repack a dataset once, load it fast, tune the loader and batch size by measuring.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (convert, index, verify, inspect, tune, bench, doctor, demo):
    app.command()(command)


# Newer typer carries its own click, older ones import it: this base of its usage errors is found in both.
_CommandLineError = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"wellfed {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error (accepted anywhere)."),
) -> None:
    # `debug` is taken out of the arguments by `main` before typer runs; it stands here for --help.
    del version, debug


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _code_of(error: Exception, *, debug: bool) -> int:
    """Say what happened, but for an interrupt, and give the exit code."""
    if isinstance(error, _CommandLineError):
        error.show()  # type: ignore[attr-defined]
        return int(error.exit_code)  # type: ignore[attr-defined]
    if debug:
        traceback.print_exc()
    if follows_interrupt(error):
        return INTERRUPTED
    if isinstance(error, WellfedError):
        # What another library said may have lines of its own.
        typer.echo(f"wellfed: {' '.join(line.strip() for line in str(error).splitlines())}", err=True)
        return error.exit_code
    if isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM:
        rule, remedy, code = _OF_THE_SYSTEM[error.errno]
        # Standard output may lead to a file, too, and has no name.
        name = error.filename
        place = repr(os.fsdecode(name)) if isinstance(name, (str, bytes)) else "what is written"
        typer.echo(f"wellfed: {rule} {place}; got {error.strerror}. {remedy}", err=True)
        return code
    hint = "" if debug else " Run again with --debug for the traceback."
    typer.echo(f"wellfed: internal error, please report it: {words_of(error)}.{hint}", err=True)
    return 1


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the design's codes."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    try:
        # A scheduler's SIGTERM gets the same clean end as Ctrl-C. Both in here: `start` had other handlers.
        signal.signal(signal.SIGTERM, _interrupt)
        # What runs in a shell's background has it ignored.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = app(arguments, prog_name="wellfed", standalone_mode=False)
    except typer.Exit as error:
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        code = _code_of(error, debug=debug)
    # typer turns a KeyboardInterrupt into this code by itself.
    if code == INTERRUPTED:
        # Where the interrupt fell into an exec, such as a dataclass's, Python would end itself by SIGINT and not by
        # the code given; another exec makes it forget that (CPython's unhandled_keyboard_interrupt).
        exec("")
        typer.echo("wellfed: interrupted.", err=True)
    code = code if isinstance(code, int) else 0
    _leave_in_any_case(code)
    sys.exit(code)


def _leave_in_any_case(code: int) -> None:
    """End the program with the code also where a thread of a user's step never ends, for which Python would wait."""
    own = threading.current_thread()

    def lingering() -> list[str]:
        return [t.name for t in threading.enumerate() if t is not own and not t.daemon]

    def end() -> None:
        time.sleep(_LEAVE_SECONDS)
        names = ", ".join(lingering())
        sys.stderr.write(f"wellfed: done, but the program is held by threads that the step started: {names}; ended.\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    if lingering():
        threading.Thread(target=end, name="wellfed-leave", daemon=True).start()
