"""The installed version; a module of its own, since looking it up takes a tenth of a second."""

from importlib import metadata

try:
    __version__ = metadata.version("wellfed")
except metadata.PackageNotFoundError:  # a bare checkout on PYTHONPATH=.typing
    __version__ = "0+checkout"
