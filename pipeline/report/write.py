"""Writing a report: three files, each complete or not there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..atomic import write_atomically
from .html import render_html
from .markdown import render_markdown

__all__ = ["write_atomically", "write_pages", "write_report"]


def write_report(report: Mapping[str, Any], directory: Path) -> dict[str, Path]:
    """Write report.json, report.html and report.md into `directory`, made where missing.

    Returns:
        The three paths by "json", "html" and "md".

    Raises:
        ConfigError, SchemaVersionError: see `validate_report`; nothing is written then.
        ResourceError: the folder cannot be written.
    """
    return write_pages(report, Path(directory) / "report", html=render_html(report), md=render_markdown(report))


def write_pages(report: Mapping[str, Any], base: Path, *, html: str, md: str) -> dict[str, Path]:
    """Write a report's JSON and the pages drawn from it beside each other: `base` with each one's suffix.

    Raises:
        ResourceError: the folder cannot be written.
    """
    # NaN has no place in JSON: a value that was not measured is null with its reason.
    texts = {"json": json.dumps(report, indent=1, allow_nan=False) + "\n", "html": html, "md": md}
    paths = {kind: base.with_name(f"{base.name}.{kind}") for kind in texts}
    for kind, path in paths.items():
        write_atomically(path, texts[kind])
    return paths
