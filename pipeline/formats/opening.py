"""From a path to the Source that reads it."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UsageError
from .base import Source
from .folder import FolderSource
from .manifest import MANIFEST_NAME, Manifest
from .urls import protocol_of


def open_source(path: str | Path, *, cache_dir: str | Path | None = None, cache_bytes: int | None = None) -> Source:
    """Open a converted dataset (a folder with wellfed.json, or its URL) or a folder of class folders.

    Args:
        path: a path, or the URL of a converted WebDataset in an object store or behind a web server.
        cache_dir, cache_bytes: of a URL alone: the folder that its files are fetched to, and the bytes that all
            datasets in it may take; left out, ~/.cache/wellfed, and 100 GB or four fifths of the room on its disk.

    Raises:
        RemoteError: the store does not answer.
        MissingDependencyError: the library for the URL is not installed.
        UsageError: missing, not a folder, a folder without images, or shards without their manifest.
        DamagedDatasetError: manifest or index are damaged or contradict each other.
        SchemaVersionError: written by a newer wellfed.
    """
    if not str(path) or "\0" in str(path):
        raise UsageError("a dataset's path must be a path", got=str(path), remedy="Give the dataset's folder.")
    if protocol_of(str(path)) is not None:
        from .remote import RemoteSource

        return RemoteSource(str(path), cache_dir=cache_dir, cache_bytes=cache_bytes)
    if cache_dir is not None or cache_bytes is not None:
        raise UsageError(
            "cache_dir and cache_bytes are for datasets behind a URL",
            got=f"the path {str(path)!r}",
            remedy="Leave them out.",
        )
    if os.path.lexists(os.path.join(path, MANIFEST_NAME)):
        # Each kind's library is imported only for a dataset of that kind.
        if Manifest.load(Path(path)).kind == "lmdb":
            from .lmdb import LmdbSource

            return LmdbSource(path)
        from .webdataset import WebDatasetSource

        return WebDatasetSource(path)
    if os.path.isdir(path) and any(name == "data.mdb" or name.endswith(".tar") for name in os.listdir(path)):
        raise UsageError(
            f"a converted dataset must have its {MANIFEST_NAME}",
            got=f"{path}, with shards but without it",
            remedy="A conversion that did not finish is continued by running it again; "
            "shards of another tool are converted from their images.",
        )
    return FolderSource(path)
