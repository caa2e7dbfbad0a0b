"""What tune, bench and demo say at their end, and where they may write."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, ResourceError, UsageError, words_of

if TYPE_CHECKING:
    from ..config import LoaderSettings, TunedConfig

__all__ = [
    "check_output",
    "check_report_folder",
    "load_config",
    "load_settings",
    "print_json",
    "print_outcome",
    "read_json",
    "told_in_any_case",
]


def read_json(path: Path, what: str) -> Any:
    """The JSON in a file.

    Raises:
        ConfigError: not readable, not UTF-8, not JSON.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{what} {str(path)!r} must be a readable JSON file", got=str(error), remedy="Check the path."
        ) from error


def load_config(path: Path) -> LoaderSettings | TunedConfig:
    """What a file holds: a tuned config, which has the conditions it was found under, or bare settings.

    Raises:
        ConfigError: neither of the two, or a value out of range.
        SchemaVersionError: written by a newer wellfed.
    """
    from ..config import LoaderSettings, TunedConfig

    data = read_json(path, "the settings file")
    if isinstance(data, Mapping) and (data.get("schema") == "wellfed-tuned-config" or "settings" in data):
        return TunedConfig.from_dict(data, where=str(path))
    return LoaderSettings.from_dict(data, where=str(path))


def load_settings(path: Path) -> LoaderSettings:
    """The settings alone; see `load_config`."""
    from ..config import LoaderSettings

    found = load_config(path)
    return found if isinstance(found, LoaderSettings) else found.settings


def check_output(path: Path) -> None:
    """Refuse, before minutes of measuring, an output that cannot be or should not be replaced.

    Raises:
        UsageError: a folder, a file that is not a tuned config, or a place that cannot be written.
    """
    kind = _kind(path, "the output")
    if kind == stat.S_IFDIR:
        raise UsageError("the output must be a file", got=str(path), remedy="Give a file name, as tuned.json.")
    _check_place(path.parent, "the output")
    if kind is None:
        return
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        data = None
    if not isinstance(data, Mapping) or data.get("schema") != "wellfed-tuned-config":
        raise UsageError(
            "only a tuned config is overwritten by a new one",
            got=str(path),
            remedy="Choose another --output, or move that file away.",
        )


def check_report_folder(path: Path | None) -> None:
    """Refuse a report folder that is a file, or that could not be written.

    Raises:
        UsageError: it exists and is not a folder, or cannot be made or written.
    """
    if path is None:
        return
    if _kind(path, "the report") not in (None, stat.S_IFDIR):
        raise UsageError("the report needs a folder", got=str(path), remedy="Give a folder, made where missing.")
    _check_place(path, "the report")


def _kind(path: Path, what: str) -> int | None:
    """The kind of file, links followed; None where nothing is there.

    Raises:
        UsageError: that cannot be told: the name is too long, or a folder before it may not be entered.
    """
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the place of {what} must be one that can be written", got=words_of(error), remedy="Give another place."
        ) from error


def _check_place(folder: Path, what: str) -> None:
    """Refuse a folder that cannot be written, or made below the nearest one that exists."""
    nearest = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    try:
        # Asked of the system, root may write where no file can be made: in /proc, or on a full disk.
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"wellfed")
    except OSError as error:
        raise UsageError(
            f"the folder of {what} must be writable",
            got=f"{folder}: {nearest}: {error.strerror}",
            remedy="Give another place.",
        ) from error


@contextmanager
def told_in_any_case(report: Mapping[str, Any], *, as_json: bool) -> Iterator[None]:
    """Print what was found also where it cannot be written: measuring it took minutes.

    Raises:
        ResourceError: whatever the files' writer raised, after that.
    """
    try:
        yield
    except ResourceError:
        print_json(report) if as_json else print_outcome(report, lines=False)
        raise


def print_json(report: Mapping[str, Any]) -> None:
    """The report as one document on stdout."""
    import typer

    typer.echo(json.dumps(report, indent=1, allow_nan=False))


def print_outcome(report: Mapping[str, Any], *, lines: bool) -> None:
    """The verdict, its figures and advice, and the three lines of Python, on stdout."""
    import typer

    from ..report import facts, words

    banner = facts.simulated_banner(report)
    if banner is not None:
        typer.echo(banner + "\n")
    verdict = report["verdict"]
    typer.echo(f"{words.verdict_title(verdict['name'])} [{verdict['name']}]")
    typer.echo(verdict["summary"])
    if verdict.get("binds"):
        typer.echo(f"What binds: {verdict['binds']}")
    typer.echo("")
    for line in facts.headlines(report):
        judged = "" if line.met is None else ", met" if line.met else ", MISSED"
        notes = "; ".join(text for text in (f"{line.target}{judged}" if line.target else "", line.detail) if text)
        typer.echo(f"  {line.name:<17} {line.text}" + (f"  ({notes})" if notes else ""))
    if verdict["advice"]:
        typer.echo("")
    for advice in verdict["advice"]:
        typer.echo(f"  - {advice}")
    if pasted := words.batch_lines(report):
        typer.echo("\nIn the training loop, if you take the advice:\n")
        for code in pasted:
            typer.echo(f"    {code}")
    if lines and report["tuned"] is not None:
        typer.echo("\nUse it:\n")
        for code in words.python_lines(report):
            typer.echo(f"    {code}")
        typer.echo("")
