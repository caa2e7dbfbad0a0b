"""wellfed.converters: repack a dataset once into shards that read fast.

Importing this module imports nothing that is heavy; `convert` resolves on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Not lazy: the function bears its module's name, and would be hidden by whoever imports the module first.
from .verify import VerifyReport, verify

if TYPE_CHECKING:
    from .run import ConversionResult, convert

__all__ = ["ConversionResult", "VerifyReport", "convert", "verify"]

_LAZY = ("ConversionResult", "convert")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import run

    value = getattr(run, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
