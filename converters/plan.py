"""The plan of a conversion: which samples go to which shard task, from the listed sizes alone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from wellfed.pipeline.errors import UsageError

from .image_option import ImageOption
from .inputs import Input, InputOptions
from .outputs.tar import BLOCK
from .selection import Selection, SelectionOptions

OutputName = Literal["webdataset", "lmdb"]
CheckName = Literal["header", "decode"]

_SMALL_MEMBERS = 5 * BLOCK
"""Three headers and the blocks of the label and of the JSON member."""

_END_OF_TAR = 2 * BLOCK
_MOST_SHARDS = 1_000_000

UNKNOWN_BYTES = 100_000
"""What an image whose size the input does not know is planned with, about an ImageNet photo."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options that decide the published bytes; the number of workers is not one of them."""

    output: OutputName
    shard_bytes: int | None
    shard_samples: int | None = None
    check: CheckName
    image: ImageOption = field(default_factory=ImageOption)
    input: InputOptions = field(default_factory=InputOptions)
    selection: SelectionOptions = field(default_factory=SelectionOptions)

    def published(self, part: str | None) -> dict[str, Any]:
        """The manifest's `options`, of this part of a split.

        Always the shard size, the check, what became of the images, and the encoding of those that came as pixels;
        what else has its default is left out, and so are paths, which are not the dataset's.
        """
        size = (
            {"shard_bytes": self.shard_bytes} if self.shard_samples is None else {"shard_samples": self.shard_samples}
        )
        usual = {**asdict(InputOptions()), "encoding": None}
        given = {name: value for name, value in asdict(self.input).items() if value != usual[name] and name != "root"}
        return {
            **size,
            "check": self.check,
            **self.image.published(),
            "input": json.loads(json.dumps(given)),
            **self.selection.published(part),
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Shard tasks, each a range of rows.

    Attributes:
        options: what decides the bytes.
        part: of a split; None where there is none.
        tasks: (first planned number, the one after the last), in order, together every number once.
        staged_bytes: size that the tars are planned to have, all together.
        state: `Input.state` of what was planned.
        tool_version: a resumed run must be of the same wellfed, or its bytes may differ.
    """

    options: PlanOptions
    part: str | None
    tasks: tuple[tuple[int, int], ...]
    staged_bytes: int
    state: str
    tool_version: str

    @property
    def bytes_without_images(self) -> int:
        """Size that the tars are planned to have where the images are not in them."""
        return sum(_END_OF_TAR + _SMALL_MEMBERS * (stop - start) for start, stop in self.tasks)

    @property
    def fingerprint(self) -> str:
        """Hex digest of everything but the input's state."""
        text = json.dumps([asdict(self.options), self.part, self.tool_version], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {"fingerprint": self.fingerprint, "state": self.state, "tasks": [list(task) for task in self.tasks]}


def planned_sizes(source: Input, selection: Selection, image: ImageOption) -> np.ndarray:
    """Bytes of each planned sample's image, i8, shape (found,), a copy; UNKNOWN_BYTES where the input knows none.

    What `image` makes of them is estimated, see `ImageOption.plan`.
    """
    sizes = np.array(selection.of(source.sizes, 0, selection.found), np.int64)
    sizes[sizes == 0] = UNKNOWN_BYTES
    image.plan(sizes)
    return sizes


def make_plan(
    source: Input, selection: Selection, options: PlanOptions, *, part: str | None, tool_version: str
) -> Plan:
    """Cut the planned samples into tasks: of `shard_samples`, or whose tars are planned to stay within `shard_bytes`.

    A sample larger than `shard_bytes` gets a shard of its own.

    Raises:
        UsageError: the shard size is below 1, or so small that six digits cannot number the shards.
    """
    size = options.shard_bytes if options.shard_samples is None else options.shard_samples
    if size is None or size < 1:
        raise UsageError("the shard size must be at least 1 byte or sample", got=size, remedy="Try 256MB.")
    # In place: one i8 a sample is all the memory this takes.
    ends = planned_sizes(source, selection, options.image)
    ends += BLOCK - 1
    ends //= BLOCK
    ends *= BLOCK
    ends += _SMALL_MEMBERS
    np.cumsum(ends, out=ends)
    tasks: list[tuple[int, int]] = []
    start = 0
    while start < len(ends):
        if options.shard_samples is not None:
            stop = min(start + size, len(ends))
        else:
            written = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, written + size - _END_OF_TAR, side="right")))
        tasks.append((start, stop))
        start = stop
    if len(tasks) > _MOST_SHARDS:
        raise UsageError(
            f"a dataset has at most {_MOST_SHARDS:,} shards",
            got=f"{len(tasks):,} shards of {size:,} {'bytes' if options.shard_samples is None else 'samples'}",
            remedy="Choose a larger shard size.",
        )
    return Plan(
        options=options,
        part=part,
        tasks=tuple(tasks),
        staged_bytes=int(ends[-1]) + len(tasks) * _END_OF_TAR,
        state=hashlib.sha256(f"{source.state} {selection.digest}".encode()).hexdigest(),
        tool_version=tool_version,
    )
