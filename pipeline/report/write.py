"""Writing a report: three files, each complete or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ResourceError
from .html import render_html
from .markdown import render_markdown

__all__ = ["write_atomically", "write_report"]


def write_atomically(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name beside `path`, sync it, then rename it over `path`.

    Raises:
        ResourceError: the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"the folder {str(path.parent)!r} must be writable", got=str(error), remedy="Choose another place."
        ) from error
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ResourceError(
            f"{str(path)!r} must be writable", got=str(error), remedy="Free space, or choose another place."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_report(report: Mapping[str, Any], directory: Path) -> dict[str, Path]:
    """Write report.json, report.html and report.md into `directory`, made where missing.

    Returns:
        The three paths by "json", "html" and "md".

    Raises:
        ConfigError, SchemaVersionError: see `validate_report`; nothing is written then.
        ResourceError: the folder cannot be written.
    """
    texts = {"html": render_html(report), "md": render_markdown(report)}
    # NaN has no place in JSON: a value that was not measured is null with its reason.
    texts["json"] = json.dumps(report, indent=1, allow_nan=False) + "\n"
    paths = {}
    for kind in ("json", "html", "md"):
        paths[kind] = Path(directory) / f"report.{kind}"
        write_atomically(paths[kind], texts[kind])
    return paths
