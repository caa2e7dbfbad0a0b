"""Finding loader settings and batch size by measuring: preflight, parts, model, search, hold, verdict."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bench import run_bench
    from .run import TuneOutcome, run_tune

__all__ = ["TuneOutcome", "run_bench", "run_tune"]

_HOME = {"TuneOutcome": "run", "run_bench": "bench", "run_tune": "run"}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
