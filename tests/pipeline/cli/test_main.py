"""The command line as a whole: exit codes, what it loads, and what it prints where."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from wellfed.pipeline import __version__
from wellfed.pipeline.cli import main as command_line
from wellfed.pipeline.errors import ResourceError, UsageError

COMMANDS = ["convert", "index", "verify", "inspect", "tune", "bench", "doctor", "demo"]


def exit_code_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        command_line.main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture(autouse=True)
def _sigterm_as_it_was() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """The real `main` over commands that end in each way a command can."""
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, no_args_is_help=True)

    @app.command()
    def fine() -> None:
        typer.echo("done")

    @app.command()
    def code(number: int) -> None:
        raise typer.Exit(number)

    @app.command()
    def wrong() -> None:
        raise UsageError("the batch size must be at least 1", got=0, remedy="Give 1 or more.")

    @app.command()
    def full() -> None:
        raise ResourceError("the disk must have 2 GiB free", got="1 GiB", remedy="Free some.")

    @app.command()
    def broken() -> None:
        raise ZeroDivisionError("division by zero")

    @app.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    @app.command()
    def terminated() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    @app.command()
    def closing() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            # As torch's loader does where a signal to the whole group has ended its workers too.
            raise RuntimeError("DataLoader worker (pid 4711) is killed by signal: Terminated.")

    monkeypatch.setattr(command_line, "app", app)
    return app


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fine"], 0),
        (["code", "3"], 3),
        (["code", "4"], 4),
        (["wrong"], 2),
        (["full"], 1),
        (["broken"], 1),
        (["interrupted"], 130),
        (["terminated"], 130),
        (["closing"], 130),
        (["nonsense"], 2),
        (["fine", "--nonsense"], 2),
        (["code", "three"], 2),
    ],
)
def test_each_way_to_end_has_its_exit_code(arguments: list[str], expected: int) -> None:
    assert exit_code_of(*arguments) == expected


@pytest.mark.usefixtures("failing")
def test_an_error_is_one_paragraph_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code_of("wrong")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "wellfed: the batch size must be at least 1; got 0. Give 1 or more.\n"


@pytest.mark.parametrize("arguments", [["verify"], ["index"], ["demo", "--directory"], ["inspect"]])
def test_a_name_that_is_too_long_is_no_internal_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_code_of(*arguments, "x" * 256) == 2
    err = capsys.readouterr().err
    assert "File name too long" in err
    assert "internal error" not in err


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("arguments", [["--debug", "broken"], ["broken", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(*arguments) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.usefixtures("failing")
def test_without_debug_there_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code_of("broken")
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "ZeroDivisionError: division by zero" in err
    assert "--debug" in err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("--version") == 0
    assert capsys.readouterr().out == f"wellfed {__version__}\n"


def test_help_lists_the_commands_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("--help") == 0
    out = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in out] == []
    assert [
        command.callback.__name__ for command in command_line.app.registered_commands if command.callback
    ] == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(command, "--help") == 0
    assert f"wellfed {command}" in capsys.readouterr().out


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("paint") == 2
    assert "paint" in capsys.readouterr().err


def test_the_command_line_loads_nothing_heavy(repository: Path) -> None:
    # given a fresh interpreter, when only the command line's module is imported
    program = "import json, sys, wellfed.pipeline.cli.main; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(repository / ".typing")},
    )
    assert run.returncode == 0, run.stderr
    loaded = {name.partition(".")[0] for name in json.loads(run.stdout)}
    # then none of what takes long to import came with it
    assert loaded & {"torch", "torchvision", "torchdata", "numpy", "lmdb", "PIL", "webdataset", "fsspec"} == set()


@pytest.mark.parametrize("inside", ["signal.pause()", "exec('signal.pause()')"])
def test_ctrl_c_in_a_real_command_ends_with_130(repository: Path, tmp_path: Path, inside: str) -> None:
    # given a command of the real program, held inside by a step that says when it is reached
    program = (
        "import sys, signal, typer\n"
        "from wellfed.pipeline.cli import main as line\n"
        "app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)\n"
        "@app.callback()\n"
        "def root() -> None: pass\n"
        "@app.command()\n"
        "def wait() -> None:\n"
        "    print('reached', flush=True)\n"
        f"    {inside}\n"
        "line.app = app\n"
        "line.main(['wait'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(repository / ".typing")},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reached\n"
    # when it gets what Ctrl-C sends
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    # then it says so and ends as a shell expects
    assert process.returncode == 130
    assert err == "wellfed: interrupted.\n"
