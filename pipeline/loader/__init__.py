"""Loading: the `DataLoader` factory, the loader over stored datasets, and its backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .factory import DataLoader, make_loader
    from .images import ImageLoader
    from .stock import stock_loader
    from .torch_loader import as_torch_loader

__all__ = ["DataLoader", "ImageLoader", "as_torch_loader", "make_loader", "stock_loader"]

_HOME = {
    "DataLoader": "factory",
    "ImageLoader": "images",
    "as_torch_loader": "torch_loader",
    "make_loader": "factory",
    "stock_loader": "stock",
}


__getattr__, __dir__ = lazy_names(__name__, _HOME)
