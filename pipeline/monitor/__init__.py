"""Watching training on several GPUs: what each rank does, which straggles, and where scaling is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .ranks import RankMonitor

__all__ = ["SCHEMA", "SCHEMA_VERSION", "RankMonitor"]

SCHEMA = "wellfed-ranks"
"""Of the report that `RankMonitor.report` gives."""

SCHEMA_VERSION = 1

__getattr__, __dir__ = lazy_names(__name__, {"RankMonitor": "ranks"})
