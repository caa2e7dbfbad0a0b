"""What one peer is asked to load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BATCH_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Job:
    """One epoch over one set of images.

    Attributes:
        root: holds `files/`, class folders of JPEGs, and a folder for each of `data.FORMATS`.
        workers: threads or processes.
        decoder: one of `decoders.DECODERS`; empty for a peer that decodes by itself.
        batch_size: whole batches only.
    """

    root: Path
    workers: int
    decoder: str = ""
    batch_size: int = BATCH_SIZE

    @property
    def files(self) -> Path:
        """Class folders of JPEGs."""
        return self.root / "files"

    def format(self, name: str) -> Path:
        """A peer's own format."""
        return self.root / name
