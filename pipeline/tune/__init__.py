"""Finding loader settings and batch size by measuring: preflight, parts, model, search, hold, verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .bench import run_bench
    from .run import TuneOutcome, run_tune

__all__ = ["TuneOutcome", "run_bench", "run_tune"]

_HOME = {"TuneOutcome": "run", "run_bench": "bench", "run_tune": "run"}


__getattr__, __dir__ = lazy_names(__name__, _HOME)
