"""wellfed.pipeline: load a dataset at the speed the GPU needs, and find the settings that do it.

Importing this module imports neither torch nor anything else that is heavy; names resolve on first use.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import LoaderConfig, LoaderSettings, TunedConfig, TuneRequest
    from .errors import WellfedError
    from .formats import Source, open_source
    from .loader import DataLoader

__all__ = [
    "DataLoader",
    "LoaderConfig",
    "LoaderSettings",
    "Source",
    "TuneRequest",
    "TunedConfig",
    "WellfedError",
    "open_source",
]

_HOME = {
    "DataLoader": "loader",
    "LoaderConfig": "config",
    "LoaderSettings": "config",
    "Source": "formats",
    "TuneRequest": "config",
    "TunedConfig": "config",
    "WellfedError": "errors",
    "open_source": "formats",
}

try:
    __version__ = metadata.version("wellfed")
except metadata.PackageNotFoundError:  # a bare checkout on PYTHONPATH=.typing
    __version__ = "0+checkout"


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
