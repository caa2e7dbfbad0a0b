"""What datasets are written as: one file for each kind of output."""

from __future__ import annotations

from .base import Assembled, Follower, Output, Part
from .lmdb import LmdbOutput
from .webdataset import WebDatasetOutput

__all__ = ["Assembled", "Follower", "LmdbOutput", "Output", "Part", "WebDatasetOutput", "open_output"]


def open_output(name: str) -> Output:
    """The output of a name in `plan.OutputName`."""
    return LmdbOutput() if name == "lmdb" else WebDatasetOutput()
