"""wellfed.converters: repack a dataset once into shards that read fast.

Importing this module imports nothing that is heavy; names resolve on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import ConversionResult, convert
    from .verify import VerifyReport, verify

__all__ = ["ConversionResult", "VerifyReport", "convert", "verify"]

# `verify` names both a function and its module; the package attribute is the function.
_HOME = {"ConversionResult": "run", "VerifyReport": "verify", "convert": "run", "verify": "verify"}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{home}", __name__)
    for each, where in _HOME.items():
        if where == home:
            globals()[each] = getattr(module, each)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
