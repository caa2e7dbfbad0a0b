"""wellfed.pipeline: load a dataset at the speed the GPU needs, and find the settings that do it.

Importing this module imports neither torch nor anything else that is heavy; names resolve on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import lazy_names

if TYPE_CHECKING:
    from .augmentations import ColorJitter, RandAugment, RandomErasing, RandomGrayscale, TrivialAugmentWide
    from .config import LoaderConfig, LoaderSettings, TunedConfig, TuneRequest
    from .errors import WellfedError
    from .formats import Mix, Source, open_source
    from .loader import DataLoader, as_torch_loader
    from .tune.call import tune
    from .version import __version__ as __version__

__all__ = [
    "ColorJitter",
    "DataLoader",
    "LoaderConfig",
    "LoaderSettings",
    "Mix",
    "RandAugment",
    "RandomErasing",
    "RandomGrayscale",
    "Source",
    "TrivialAugmentWide",
    "TuneRequest",
    "TunedConfig",
    "WellfedError",
    "as_torch_loader",
    "open_source",
    "tune",
]

_HOME = {
    "ColorJitter": "augmentations",
    "DataLoader": "loader",
    "LoaderConfig": "config",
    "LoaderSettings": "config",
    "Mix": "formats",
    "RandAugment": "augmentations",
    "RandomErasing": "augmentations",
    "RandomGrayscale": "augmentations",
    "Source": "formats",
    "TrivialAugmentWide": "augmentations",
    "TuneRequest": "config",
    "TunedConfig": "config",
    "WellfedError": "errors",
    "as_torch_loader": "loader",
    "open_source": "formats",
    "tune": "tune",
    "__version__": "version",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME)
