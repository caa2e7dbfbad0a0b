"""From a path to the Source that reads it."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UsageError
from .base import Source
from .folder import FolderSource
from .manifest import MANIFEST_NAME, Manifest


def open_source(path: str | Path) -> Source:
    """Open a converted dataset (a folder with wellfed.json) or a folder of class folders.

    Raises:
        UsageError: missing, not a folder, a folder without images, or shards without their manifest.
        DamagedDatasetError: manifest or index are damaged or contradict each other.
        SchemaVersionError: written by a newer wellfed.
    """
    if not str(path) or "\0" in str(path):
        raise UsageError("a dataset's path must be a path", got=str(path), remedy="Give the dataset's folder.")
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
