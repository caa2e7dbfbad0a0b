"""Stored datasets: manifest, index, names, and one Source for each kind of storage."""

from .base import Source
from .index import INDEX_NAME, MODES, index_dtype, mode_code, open_index
from .manifest import Manifest, Shard
from .mix import Mix
from .opening import open_source
from .repeat import RepeatedSource

__all__ = [
    "INDEX_NAME",
    "MODES",
    "Manifest",
    "Mix",
    "RepeatedSource",
    "Shard",
    "Source",
    "index_dtype",
    "mode_code",
    "open_index",
    "open_source",
]
