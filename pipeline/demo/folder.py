"""The demo's own folder: only what the demo made is ever replaced."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..errors import UsageError

__all__ = ["MARKER", "MEMBERS", "claim"]

MARKER = ".wellfed-demo"
MEMBERS = ("images", "wds", "lmdb", "tuned.json", "train.py", "report.json", "report.html", "report.md")


def claim(directory: Path) -> None:
    """Make `directory` the demo's, without what an earlier demo left in it.

    Raises:
        UsageError: it is a file, or holds anything and was not made by a demo; nothing is touched then.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError("the demo needs a folder", got=str(directory), remedy="Choose another --directory.")
    marker = directory / MARKER
    if directory.is_dir() and any(directory.iterdir()) and not marker.is_file():
        raise UsageError(
            "the demo writes only into an empty folder or one that an earlier demo made",
            got=str(directory),
            remedy="Choose another --directory.",
        )
    directory.mkdir(parents=True, exist_ok=True)
    marker.write_text("Made by `wellfed demo`, which replaces its own files here when it runs again.\n", "utf-8")
    for name in MEMBERS:
        member = directory / name
        if member.is_dir() and not member.is_symlink():
            shutil.rmtree(member)
        else:
            member.unlink(missing_ok=True)
