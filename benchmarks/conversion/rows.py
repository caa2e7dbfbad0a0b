"""What is measured: wellfed's conversions, and for each the peer that it is held against."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass

TAR = "tar"
ABSENT_PEERS = {"streaming": "MDSWriter", "litdata": "LitData", "ffcv": "FFCV"}
"""Other writers people use; they are in no round, and the result says which are not installed."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that is timed.

    Attributes:
        name: in the result.
        command: with {source}, {out} and {repeats} to be filled in.
        peer: name of the row it is compared with; None for a peer itself.
        wanted: least ratio to the peer; None where there is no promise.
        set: "full" for the whole folder, "pixels" for the smaller one that rows which decode use.
        needs: module that must be installed.
        prints_rate: the command itself prints {"images_per_second"}, without its start-up.
    """

    name: str
    command: tuple[str, ...]
    peer: str | None = None
    wanted: float | None = None
    set: str = "full"
    needs: str | None = None
    prints_rate: bool = False

    @property
    def absent(self) -> str | None:
        """Why it cannot run here."""
        if self.needs is not None and importlib.util.find_spec(self.needs) is None:
            return f"{self.needs} is not installed"
        if self.command[0] == "sh" and shutil.which("tar") is None:
            return "tar is not installed"
        return None


def _wellfed(*options: str) -> tuple[str, ...]:
    return (
        sys.executable,
        "-m",
        "wellfed.pipeline",
        "convert",
        "{source}",
        "{out}",
        "--json",
        "--workers",
        "2",
        *options,
    )


def _peer(name: str, last: str = "{out}") -> tuple[str, ...]:
    return (sys.executable, "-m", "benchmarks.conversion.peers", name, "{source}", last)


ROWS = (
    Row(
        name=TAR,
        # wellfed syncs each shard, so tar's file is synced too, within its time.
        command=("sh", "-c", "tar --hard-dereference -cf '{out}' -C '{source}' . && sync '{out}'"),
    ),
    Row(
        name="wellfed webdataset header",
        command=_wellfed("--format", "webdataset", "--check", "header"),
        peer=TAR,
        wanted=0.8,
    ),
    Row(name="webdataset ShardWriter", command=_peer("webdataset"), needs="webdataset"),
    Row(name="lmdb put", command=_peer("lmdb")),
    Row(
        name="wellfed lmdb header",
        command=_wellfed("--format", "lmdb", "--check", "header"),
        peer="lmdb put",
        wanted=0.8,
    ),
    Row(name="decode alone", command=_peer("decode", "{repeats}"), set="pixels", prints_rate=True),
    Row(
        name="wellfed webdataset decode",
        command=_wellfed("--format", "webdataset"),
        peer="decode alone",
        wanted=0.9,
        set="pixels",
    ),
    Row(name="resize alone", command=_peer("resize", "{repeats}"), set="pixels", prints_rate=True),
    Row(
        name="wellfed webdataset resize:256",
        command=_wellfed("--format", "webdataset", "--image", "resize:256@90"),
        peer="resize alone",
        wanted=0.8,
        set="pixels",
    ),
)


def absent_peers() -> list[str]:
    """Other writers that are not installed."""
    return [title for module, title in ABSENT_PEERS.items() if importlib.util.find_spec(module) is None]
