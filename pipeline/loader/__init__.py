"""Loading: the `DataLoader` factory, the loader over stored datasets, and its backends."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .factory import DataLoader, make_loader
    from .images import ImageLoader
    from .stock import stock_loader

__all__ = ["DataLoader", "ImageLoader", "make_loader", "stock_loader"]

_HOME = {"DataLoader": "factory", "ImageLoader": "images", "make_loader": "factory", "stock_loader": "stock"}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
