"""Folders for what listing spools to disk, and the error where there is no place for them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from wellfed.pipeline.errors import ResourceError
from wellfed.pipeline.formats import temporary

_PREFIX = "wellfed-spool-"


class TemporaryFolder(temporary.TemporaryFolder):
    """See `wellfed.pipeline.formats.temporary.TemporaryFolder`.

    Raises:
        ResourceError: there is no place for it.
    """

    def __init__(self) -> None:
        with spool_errors():
            super().__init__(_PREFIX)


@contextmanager
def spool_errors() -> Iterator[None]:
    """Turn an OSError of the folder for temporary files into a ResourceError that names that folder."""
    try:
        yield
    except OSError as error:
        raise spool_error(error) from error


def spool_error(error: OSError) -> ResourceError:
    """What `spool_errors` raises."""
    try:
        where = tempfile.gettempdir()
    except FileNotFoundError:
        where = "TMPDIR, /tmp or /var/tmp"
    return ResourceError(
        f"the folder for temporary files, {where}, must hold the listing of the source",
        got=error.strerror or str(error),
        remedy="Make room there, or let TMPDIR name a folder on another disk; nothing was written elsewhere.",
    )
