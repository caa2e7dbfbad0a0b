"""The Output contract: how packed shards become a published dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

import numpy as np

from wellfed.pipeline.formats import Shard


@dataclass(frozen=True, kw_only=True)
class Part:
    """A finished shard task that holds samples.

    Attributes:
        tar: its staged tar.
        rows_path: its index rows, an .npy file; offsets count in the tar, and 0 is that of an image outside of it.
        samples, size, sha256: of the tar.
        members: stored fields in order, with their extensions; None for the image's, which is in the rows.
    """

    tar: Path
    rows_path: Path
    samples: int
    size: int
    sha256: str
    members: Mapping[str, str | None]

    def rows(self) -> np.ndarray:
        """Its index rows, shape (samples,), memory-mapped."""
        return np.load(self.rows_path, mmap_mode="r", allow_pickle=False)


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """What an output made of the parts.

    Attributes:
        shards: the data files, in order.
        moves: staged file and final name of each data file.
        files: SHA-256 of the further files it wrote into the folder for final files, by name.
    """

    shards: tuple[Shard, ...]
    moves: tuple[tuple[Path, str], ...]
    files: dict[str, str]


class Follower(Protocol):
    """Takes the finished parts while others are packed: a context manager around packing and assembling."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def add(self, part: Part) -> None:
        """The next part in the plan's order. Raises what failed on earlier ones."""
        ...

    @property
    def behind(self) -> int:
        """Parts added and not begun yet. Raises what failed on earlier ones."""
        ...


class Output(Protocol):
    """A way to store; stateless. Equal parts give equal bytes, in any process, and a killed `assemble` starts again."""

    kind: Literal["webdataset", "lmdb"]

    def bytes_beyond_tars(self, sizes: np.ndarray) -> int:
        """Disk space that `assemble` needs beside the staged tars, from the samples' planned sizes."""
        ...

    def follow(self, sizes: np.ndarray, scratch: Path, final: Path, read: Callable[[int], bytes]) -> Follower:
        """What is to be given the parts, in order, before `assemble`.

        Args:
            sizes: of the planned images, i8, bytes.
            scratch, final: empty folders, see `assemble`.
            read: planned number to the image, from the source; for those outside of the parts' tars. Called in one
                thread.
        """
        ...

    def assemble(
        self,
        parts: Sequence[Part],
        scratch: Path,
        final: Path,
        on_samples: Callable[[int], None],
        follower: Follower,
    ) -> Assembled:
        """Write what the data files lack.

        Args:
            parts: at least one.
            scratch: the folder for large files.
            final: the folder for files that are published as they are.
            on_samples: called with the number of samples written so far.
            follower: of `follow`, which was given the same parts.
        """
        ...

    def published_rows(self, parts: Sequence[Part]) -> Iterator[np.ndarray]:
        """The rows of the published index, part after part: positions of shards and offsets set."""
        ...
