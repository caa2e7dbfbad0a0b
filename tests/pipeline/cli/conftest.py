"""The command line run in this process, and a report as the tuner would give it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from wellfed.pipeline.cli import main as command_line


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def wellfed(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Ended]]:
    """Runs `wellfed ARGUMENTS` and gives its exit code, stdout and stderr."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            command_line.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, out, err)

    yield run
    signal.signal(signal.SIGTERM, before)
