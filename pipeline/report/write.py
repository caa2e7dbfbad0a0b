"""Writing a report: three files, each complete or not there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..atomic import write_atomically
from .html import render_html
from .markdown import render_markdown

__all__ = ["write_atomically", "write_report"]


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
