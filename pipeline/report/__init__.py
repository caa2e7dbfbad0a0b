"""Reports: JSON with raw samples, and the HTML and Markdown pages drawn from that JSON alone."""

from __future__ import annotations

from .dataset import render_dataset
from .html import render_html
from .markdown import render_markdown
from .rank_facts import rank_lines
from .ranks import render_ranks_html, render_ranks_markdown, write_ranks_report
from .schema import validate_report
from .words import python_lines
from .write import write_atomically, write_report

__all__ = [
    "python_lines",
    "rank_lines",
    "render_dataset",
    "render_html",
    "render_markdown",
    "render_ranks_html",
    "render_ranks_markdown",
    "validate_report",
    "write_atomically",
    "write_ranks_report",
    "write_report",
]
