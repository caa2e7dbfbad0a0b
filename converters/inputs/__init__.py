"""What can be converted: one file for each kind of input."""

from __future__ import annotations

from pathlib import Path

from .base import Input
from .folder import FolderInput

__all__ = ["FolderInput", "Input", "list_input", "open_saved"]


def list_input(path: Path) -> Input:
    """List what is at a path. Raises UsageError where it is no input."""
    return FolderInput.list(path)


def open_saved(path: Path, directory: Path) -> Input:
    """The input at `path` as `save` wrote it into `directory`: the listing of the plan, not of now."""
    return FolderInput.load(path, directory)
