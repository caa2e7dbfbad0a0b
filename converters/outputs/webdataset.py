"""WebDataset: the staged tars as they are, a DALI index beside each, and one wids index for the set."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from wellfed.pipeline.formats import Shard

from ..files import write_file
from .base import Assembled, Follower, Part

SET_NAME = "data"
WIDS_NAME = f"{SET_NAME}.json"

_ROWS_AT_ONCE = 1 << 14


class WebDatasetOutput:
    """See `Output`."""

    kind: Literal["webdataset", "lmdb"] = "webdataset"

    def bytes_beyond_tars(self, sizes: np.ndarray) -> int:
        """Index files: about 100 bytes a sample."""
        return 100 * len(sizes)

    def follow(self, sizes: np.ndarray, scratch: Path, final: Path, read: Callable[[int], bytes]) -> IndexFollower:
        """Writes each tar's `.idx` as soon as the tar is there; the tars are only renamed."""
        return IndexFollower(final)

    def assemble(
        self,
        parts: Sequence[Part],
        scratch: Path,
        final: Path,
        on_samples: Callable[[int], None],
        follower: Follower,
    ) -> Assembled:
        """Write the wids index."""
        assert isinstance(follower, IndexFollower)
        shards = [
            Shard(name=shard_name(number), samples=part.samples, size=part.size, sha256=part.sha256)
            for number, part in enumerate(parts)
        ]
        files = {**follower.files, WIDS_NAME: write_file(final / WIDS_NAME, wids_index(shards))}
        on_samples(sum(part.samples for part in parts))
        moves = tuple((part.tar, shard.name) for part, shard in zip(parts, shards, strict=True))
        return Assembled(shards=tuple(shards), moves=moves, files=files)

    def published_rows(self, parts: Sequence[Part]) -> Iterator[np.ndarray]:
        """The parts' rows with their shard's number."""
        for number, part in enumerate(parts):
            rows = np.array(part.rows())
            rows["shard"] = number
            yield rows


class IndexFollower:
    """See `Follower`.

    Attributes:
        files: SHA-256 of the index files by name.
        behind: see `Follower`.
    """

    def __init__(self, final: Path) -> None:
        self._final = final
        self.files: dict[str, str] = {}
        self.behind = 0  # `add` does all

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def add(self, part: Part) -> None:
        """Write the next part's index."""
        name = index_name(shard_name(len(self.files)))
        self.files[name] = write_file(self._final / name, dali_index(part.rows(), part.members))


def shard_name(number: int) -> str:
    """File name of a shard; the same for every dataset, so that bytes never depend on where it lies."""
    return f"{SET_NAME}-{number:06d}.tar"


def index_name(shard: str) -> str:
    """DALI's index of a shard: the whole shard name with `.idx` for `.tar`."""
    return shard.removesuffix(".tar") + ".idx"


def dali_index(rows: np.ndarray, members: Mapping[str, str | None]) -> bytes:
    """DALI's `v1.2` index: for each sample, extension, offset, size and name of each member.

    Args:
        rows: of one shard.
        members: stored fields in order, with their extensions; None for the image's, which is in the rows.
    """
    # Latin-1, which holds any byte: of a damaged index the right line is wanted all the same, to compare with.
    text = bytearray(b"v1.2 %d\n" % len(rows))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        columns = [some[f"{column}_{field}"].tolist() for field in members for column in ("offset", "size")]
        for key, ext, *numbers in zip(some["key"].tolist(), some["ext"].tolist(), *columns, strict=True):
            extensions = [extension or ext.decode("latin-1") for extension in members.values()]
            line = " ".join(
                f"{extension} {offset} {size} {key:010d}.{extension}"
                for extension, offset, size in zip(extensions, numbers[::2], numbers[1::2], strict=True)
            )
            text += line.encode("latin-1") + b"\n"
    return bytes(text)


def wids_index(shards: Sequence[Shard]) -> bytes:
    """The index that `wids.ShardListDataset` opens; no md5sum, which wids never reads."""
    data: dict[str, Any] = {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "name": SET_NAME,
        "shardlist": [{"url": each.name, "nsamples": each.samples, "filesize": each.size} for each in shards],
    }
    return (json.dumps(data, indent=1) + "\n").encode("ascii")
