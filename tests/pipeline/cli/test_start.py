"""An interrupt while the command is still loading, standard streams that lead nowhere, others' long messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from wellfed.pipeline.errors import words_of

INTERRUPT_AT_IMPORT = """
import os, signal, sys
target = os.environ["TEST_MODULE"]
def hook(event, args):
    if event == "import" and args[0] == target:
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(hook)
"""


@pytest.fixture
def at_import(tmp_path: Path, repository: Path) -> dict[str, str]:
    """The environment of a process that gets what Ctrl-C sends when it imports TEST_MODULE."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(INTERRUPT_AT_IMPORT)
    return {**os.environ, "PYTHONPATH": f"{tmp_path / 'hook'}{os.pathsep}{repository / '.typing'}"}


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (["--help"], "typer"),
        (["convert", "PHOTOS", "out", "--format", "webdataset"], "importlib.metadata"),
        (["convert", "PHOTOS", "out", "--format", "webdataset"], "wellfed.pipeline.cli.tune"),
        (["convert", "PHOTOS", "out", "--format", "webdataset"], "wellfed.converters.inputs.folder"),
        (["index", "PHOTOS"], "wellfed.converters.reindex"),
        (["verify", "PHOTOS"], "numpy"),
        (["inspect", "PHOTOS"], "wellfed.pipeline.formats.summary"),
        (["tune", "PHOTOS", "--step", "resnet50"], "typer"),
        (["bench", "PHOTOS", "--step", "resnet50"], "typer"),
        (["doctor"], "wellfed.pipeline.hardware"),
        (["demo"], "wellfed.pipeline.demo.run"),
    ],
)
def test_ctrl_c_while_loading_ends_with_130_and_one_line(
    at_import: dict[str, str], tmp_path: Path, arguments: list[str], module: str
) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "0.jpg").write_bytes(b"x")
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "wellfed.pipeline",
            *(str(tmp_path / "photos") if a == "PHOTOS" else a for a in arguments),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**at_import, "TEST_MODULE": module},
    )
    assert ended.returncode == 130
    assert ended.stderr.endswith("wellfed: interrupted.\n")
    assert "Traceback" not in ended.stderr
    assert "KeyboardInterrupt" not in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hook", "photos"]


def test_an_ignored_interrupt_stays_ignored(at_import: dict[str, str]) -> None:
    # What a shell starts in the background must not be ended by the terminal's Ctrl-C.
    ended = subprocess.run(
        ["sh", "-c", "trap '' INT; exec \"$0\" -m wellfed.pipeline --version", sys.executable],
        capture_output=True,
        text=True,
        timeout=60,
        env={**at_import, "TEST_MODULE": "typer"},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("wellfed ")


@pytest.fixture
def shell(tmp_path: Path, repository: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a line of bash beside a folder of one photo; `wellfed` in it is the command."""
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "cat" / "0.jpg")

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", f"wellfed() {{ '{sys.executable}' -m wellfed.pipeline \"$@\"; }}; {line}"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(repository / ".typing")},
        )

    return run


@pytest.mark.parametrize("lost", ["2> /dev/full", "2>&-", "2> >(exec 0<&-)"])
def test_a_standard_error_that_takes_no_words_ends_nothing(shell: Any, tmp_path: Path, lost: str) -> None:
    # given a log on a full disk, none at all, or one whose reader is gone
    done = shell(f"wellfed convert photos out --format webdataset {lost}")
    assert done.returncode == 0
    assert done.stdout.startswith("1 samples stored")
    assert (tmp_path / "out" / "wellfed.json").is_file()
    # the code still tells of an error that nobody reads
    assert shell(f"wellfed inspect nothing-here {lost}").returncode == 2


def test_progress_never_takes_the_place_of_output_where_standard_error_is_closed(shell: Any) -> None:
    line = "bench photos --step resnet18 --image-size 8 --device simulated --config settings.json --json"
    shell('echo \'{"batch_size": 1, "num_workers": 0}\' > settings.json')
    done = shell(f"wellfed {line} 2>&-")
    assert json.loads(done.stdout)["kind"] == "bench"


def test_what_is_opened_does_not_become_a_closed_standard_stream(shell: Any) -> None:
    seen = (
        "import os; from wellfed.pipeline.cli._streams import open_streams as o; o(); print(os.open('photos', 0) > 2)"
    )
    assert shell(f"'{sys.executable}' -c \"{seen}\" 0<&- 2>&-").stdout == "True\n"


def test_output_on_a_full_disk_is_a_clear_error(shell: Any) -> None:
    done = shell("wellfed doctor > /dev/full")
    assert done.returncode == 1
    assert (
        done.stderr
        == "wellfed: the disk must have room for what is written; got No space left on device. Free space.\n"
    )


def test_anothers_message_becomes_one_line() -> None:
    assert words_of(ValueError("first\n  second\r\n\tthird")) == "ValueError: first second third"
    assert words_of(KeyError()) == "KeyError"
    long = words_of(RuntimeError("x" * 1000))
    assert (len(long), long[-4:]) == (len("RuntimeError: ") + 300 + 3, "x...")


@pytest.mark.parametrize("stage", ["import", "make", pytest.param("length", marks=pytest.mark.long), "sample"])
def test_a_users_exception_of_many_lines_is_one_clear_error(tmp_path: Path, repository: Path, stage: str) -> None:
    raising = 'raise ValueError("no such table\\n  in line 1\\n  in line 2")'
    bodies = {name: "pass" if name != stage else raising for name in ("import", "make")}
    (tmp_path / "broken.py").write_text(
        f"{bodies['import']}\n"
        "class Data:\n"
        f"    def __len__(self):\n        {raising if stage == 'length' else 'return 3'}\n"
        f"    def __getitem__(self, row):\n        {raising}\n"
        f"def data():\n    {bodies['make']}\n    return Data()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "wellfed.pipeline", "convert", "broken:data", "out", "--format", "webdataset"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{repository / '.typing'}{os.pathsep}{tmp_path}"},
    )
    lines = [line for line in ended.stderr.splitlines() if line.strip() and not line.startswith("packing")]
    assert ended.returncode == 2
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("wellfed: ")
    assert "ValueError: no such table in line 1 in line 2" in lines[0]
