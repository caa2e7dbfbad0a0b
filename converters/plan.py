"""The plan of a conversion: which samples go to which shard task, from the listed sizes alone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from wellfed.pipeline.errors import UsageError

from .inputs import Input
from .outputs.tar import BLOCK

OutputName = Literal["webdataset", "lmdb"]
CheckName = Literal["header", "decode"]

_SMALL_MEMBERS = 5 * BLOCK
"""Three headers and the blocks of the label and of the JSON member."""

_MOST_SHARDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options that decide the published bytes; the number of workers is not one of them."""

    output: OutputName
    shard_bytes: int
    check: CheckName

    def published(self) -> dict[str, Any]:
        """The manifest's `options`; "keep" means that the image bytes are the original ones."""
        return {"shard_bytes": self.shard_bytes, "check": self.check, "image": "keep"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Shard tasks, each a range of rows.

    Attributes:
        options: what decides the bytes.
        tasks: (first row, row after the last), in order, together every row once.
        staged_bytes: size that the tars are planned to have, all together.
        state: `Input.state` of what was planned.
        tool_version: a resumed run must be of the same wellfed, or its bytes may differ.
    """

    options: PlanOptions
    tasks: tuple[tuple[int, int], ...]
    staged_bytes: int
    state: str
    tool_version: str

    @property
    def fingerprint(self) -> str:
        """Hex digest of everything but the input's state."""
        text = json.dumps([asdict(self.options), self.tool_version], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {"fingerprint": self.fingerprint, "state": self.state, "tasks": [list(task) for task in self.tasks]}


def make_plan(source: Input, options: PlanOptions, *, tool_version: str) -> Plan:
    """Cut the rows into tasks whose tars stay within `shard_bytes`; a larger sample gets a shard of its own.

    Raises:
        UsageError: shard_bytes is below 1, or so small that six digits cannot number the shards.
    """
    if options.shard_bytes < 1:
        raise UsageError("the shard size must be at least 1 byte", got=options.shard_bytes, remedy="Try 256MB.")
    blocks = (source.sizes.astype(np.int64) + BLOCK - 1) // BLOCK * BLOCK + _SMALL_MEMBERS
    ends = np.cumsum(blocks)
    tasks: list[tuple[int, int]] = []
    start = 0
    while start < len(ends):
        written = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, written + options.shard_bytes, side="right")))
        tasks.append((start, stop))
        start = stop
    if len(tasks) > _MOST_SHARDS:
        raise UsageError(
            f"a dataset has at most {_MOST_SHARDS:,} shards",
            got=f"{len(tasks):,} shards of {options.shard_bytes:,} bytes",
            remedy="Choose a larger shard size.",
        )
    return Plan(
        options=options,
        tasks=tuple(tasks),
        staged_bytes=int(ends[-1]) + len(tasks) * 2 * BLOCK,
        state=source.state,
        tool_version=tool_version,
    )
