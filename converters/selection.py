"""Which rows of an input are converted, and in which order: the planned numbers, which become keys."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.sampling.order import ORDER_DRAW
from wellfed.pipeline.sampling.philox import sample_words

from .inputs import Input

_CHUNK = 1 << 16
_ORDER_NAME = "order.i8"
_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """Applied in this order: include and exclude, split, shuffle, limit.

    Attributes:
        include, exclude: globs over the whole relative path, in which * also matches "/"; kept is what fits one of
            include (or include is empty) and none of exclude.
        split: (name, share) of each part; shares are above 0 and add up to at most 1.
        shuffle: seed of the order; None for the input's.
        limit: samples, of each part.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    split: tuple[tuple[str, float], ...] = ()
    shuffle: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UsageError("the limit must be at least 1 sample", got=self.limit, remedy="Leave it out for all.")
        if self.shuffle is not None and not 0 <= self.shuffle < 1 << 64:
            raise UsageError("the shuffle seed must be from 0 to 2**64 - 1", got=self.shuffle, remedy="Try 0.")
        names = [name for name, _ in self.split]
        shares = [share for _, share in self.split]
        for name in names:
            if not _SPLIT_NAME.match(name) or names.count(name) > 1:
                raise UsageError(
                    "the parts of a split need different names of letters, digits, _ and -",
                    got=name,
                    remedy="Write for example train=0.9,val=0.1.",
                )
        if self.split and (not all(share > 0 for share in shares) or not sum(shares) <= 1 + 1e-9):
            raise UsageError(
                "the shares of a split must be above 0 and add up to at most 1",
                got=", ".join(f"{name}={share:g}" for name, share in self.split),
                remedy="Write for example train=0.9,val=0.1.",
            )

    def published(self, part: str | None) -> dict[str, Any]:
        """For the manifest's options; only what was asked for."""
        given: dict[str, Any] = {
            "include": list(self.include) or None,
            "exclude": list(self.exclude) or None,
            "split": {"part": part, "shares": dict(self.split)} if self.split else None,
            "shuffle": self.shuffle,
            "limit": self.limit,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Selection:
    """The planned samples: planned number p is the input's row `row(p)`.

    Attributes:
        order: i8, shape (n,); None where every row is taken in the input's order.
        found: planned samples.
        skipped: rows left out, counted by kind, beside the input's own.
    """

    order: np.ndarray | None
    found: int
    skipped: Mapping[str, int]

    def row(self, number: int) -> int:
        """The input's row of a planned number."""
        return number if self.order is None else int(self.order[number])

    def of(self, column: np.ndarray, start: int, stop: int) -> np.ndarray:
        """A column of the input for planned numbers start to stop."""
        return column[start:stop] if self.order is None else column[self.order[start:stop]]

    def save(self, directory: Path) -> None:
        """Write what `load` needs, into an existing folder."""
        if self.order is not None:
            self.order.astype("<i8", copy=False).tofile(directory / _ORDER_NAME)

    @property
    def digest(self) -> str:
        """Hex digest of the order."""
        return "" if self.order is None else hashlib.sha256(np.ascontiguousarray(self.order).data).hexdigest()


def load_order(directory: Path) -> np.ndarray | None:
    """The order that `Selection.save` wrote, memory-mapped; None for the input's."""
    path = directory / _ORDER_NAME
    return np.memmap(path, "<i8", mode="r") if path.exists() else None


def select(source: Input, options: SelectionOptions) -> dict[str | None, Selection]:
    """The selection of each part of the split; of the one part None where there is no split.

    Takes about 24 bytes of memory a row.

    Raises:
        UsageError: nothing is left, or nothing for one of the parts.
    """
    rows = _filtered(source, options)
    skipped = {"excluded": len(source) - len(rows)} if rows is not None and len(rows) < len(source) else {}
    if rows is not None and not len(rows):
        raise UsageError(
            "at least one path must fit --include and --exclude",
            got=f"none of {len(source):,}, such as {os.fsdecode(source.name(0))!r}",
            remedy="A glob has to fit the whole path relative to the source; * fits / as well.",
        )
    parts = _parts(source, rows, options)
    return {name: _ordered(part, len(source), skipped, options) for name, part in parts.items()}


def _filtered(source: Input, options: SelectionOptions) -> np.ndarray | None:
    if not options.include and not options.exclude:
        return None
    include, exclude = (
        [re.compile(os.fsencode(translate(glob))) for glob in globs] for globs in (options.include, options.exclude)
    )
    kept = []
    for start in range(0, len(source), _CHUNK):
        chosen = []
        for row in range(start, min(start + _CHUNK, len(source))):
            name = source.name(row)
            if (not include or any(rule.match(name) for rule in include)) and not any(
                rule.match(name) for rule in exclude
            ):
                chosen.append(row)
        kept.append(np.array(chosen, np.int64))
    return np.concatenate(kept)


def _parts(source: Input, rows: np.ndarray | None, options: SelectionOptions) -> dict[str | None, np.ndarray | None]:
    if not options.split:
        return {None: rows}
    taken = np.arange(len(source)) if rows is None else rows
    part_of = np.full(len(taken), len(options.split), np.int8)
    labels = source.labels[taken].astype(np.int32)
    # Within a class by a hash of the name: a sample added or removed moves few others from one part to another.
    order = np.lexsort((_name_hashes(source, taken), labels))
    ends_of_classes = np.cumsum(np.bincount(labels + 1))
    del labels
    shares = np.cumsum([share for _, share in options.split])
    start = 0
    for stop in ends_of_classes.tolist():
        ends = start + np.rint(shares * (stop - start)).astype(np.int64)
        for number, (first, last) in enumerate(zip([start, *ends[:-1].tolist()], ends.tolist(), strict=True)):
            part_of[order[first:last]] = number
        start = stop
    del order
    parts: dict[str | None, np.ndarray | None] = {}
    for number, (name, share) in enumerate(options.split):
        part = taken[part_of == number]
        if not len(part):
            raise UsageError(
                "each part of a split must get at least one sample",
                got=f"{name}={share:g} of {len(taken):,} samples, by class",
                remedy="Give it a larger share.",
            )
        parts[name] = part
    return parts


def _name_hashes(source: Input, rows: np.ndarray) -> np.ndarray:
    hashes = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), _CHUNK):
        some = rows[start : start + _CHUNK].tolist()
        hashes[start : start + len(some)] = [xxhash.xxh3_64_intdigest(source.name(row)) for row in some]
    return hashes


def _ordered(rows: np.ndarray | None, total: int, skipped: Mapping[str, int], options: SelectionOptions) -> Selection:
    found = total if rows is None else len(rows)
    if options.shuffle is not None:
        rank = np.empty(found, np.uint64)
        for start in range(0, found, _CHUNK):
            stop = min(start + _CHUNK, found)
            keys = np.arange(start, stop) if rows is None else rows[start:stop]
            words = sample_words(options.shuffle, 0, keys, ORDER_DRAW)
            rank[start:stop] = (words[:, 0].astype(np.uint64) << np.uint64(32)) | words[:, 1]
        order = np.argsort(rank, kind="stable")
        rows = order if rows is None else rows[order]
    if options.limit is not None and options.limit < found:
        rows = np.arange(options.limit) if rows is None else rows[: options.limit]
        skipped = {**skipped, "beyond_limit": found - options.limit}
        found = options.limit
    return Selection(rows, found, skipped)
