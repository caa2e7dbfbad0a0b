"""Several datasets as one, for training on all of them in given shares."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import UsageError
from .base import Source
from .opening import open_source
from .reading import Encoded, Stretches, read_rows, stretches_of

__all__ = ["Mix"]

KEY_SHIFT = 40
"""Part p's keys are its dataset's plus p << 40, so that no two samples share a key; planned numbers are smaller."""

MOST_PARTS = 256
MOST_PASSES = 1000

Classes = Literal["same", "union"]


class Mix:
    """Datasets laid end to end, each with its share of every epoch; a `Source` for `DataLoader`.

    An epoch has `samples` samples, of which a dataset of weight w gets w / (sum of weights), exactly but for rounding.
    Datasets take turns evenly, so a batch holds these shares too, give or take a sample of each. A dataset with fewer
    samples than its share is gone through more than once, with other crops; one with more goes on in the next epoch
    where it stopped, so that every sample of it is seen before one is seen again.

    Row r of the first dataset is row r of the mix; the second's rows follow, and so on.

    Args:
        parts: (dataset, weight) pairs; a dataset is a path or an open `Source`, a weight a positive number.
        classes: "same" requires equal class names in equal order; "union" takes all names, sorted as text, and maps
            each dataset's labels by name.
        samples: of an epoch; None for as many as the datasets hold together.

    Raises:
        UsageError: no parts, a weight that is not positive, class names that differ where they must not, a dataset
            that an epoch would go through more than 1,000 times; and as `open_source`.
        DamagedDatasetError, SchemaVersionError: as `open_source`.
    """

    kind = "mix"

    def __init__(
        self,
        parts: Iterable[tuple[str | Path | Source, float]],
        *,
        classes: Classes = "same",
        samples: int | None = None,
    ) -> None:
        given = _pairs(parts)
        if classes not in ("same", "union"):
            raise UsageError("classes is 'same' or 'union'", got=classes, remedy="Choose one.")
        self._weights = tuple(float(weight) for _, weight in given)
        self._classes = classes
        opened: list[Source] = []
        try:
            self._sources: list[Source] = []
            for source, _ in given:
                if not isinstance(source, Source):
                    source = open_source(source)
                    opened.append(source)
                self._sources.append(source)
            self._opened = opened
            self._check_sources()
            self._place()
            self._samples = self._checked_samples(samples)
        except BaseException:
            for source in opened:
                source.close()
            raise

    def _check_sources(self) -> None:
        for source in self._sources:
            if isinstance(source, Mix):
                raise UsageError("a mix is of datasets, not of mixes", remedy="Give the datasets with their weights.")
            if len(source) == 0:
                raise UsageError(
                    "each dataset of a mix must hold a sample", got=source.location, remedy="Leave it out."
                )
            if int(source.index["key"][-1]) >= 1 << KEY_SHIFT:
                raise UsageError(f"keys of a mixed dataset must stay below 2**{KEY_SHIFT}", got=source.location)

    def _checked_samples(self, samples: Any) -> int:
        if samples is None:
            samples = len(self)
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise UsageError(
                "samples of an epoch of a mix is a whole number from 1 on", got=samples, remedy="Leave it out for all."
            )
        total = sum(self._weights)
        for source, weight in zip(self._sources, self._weights, strict=True):
            if samples * weight / total > MOST_PASSES * len(source):
                raise UsageError(
                    f"an epoch of a mix goes through each dataset at most {MOST_PASSES} times",
                    got=f"{source.location} with {len(source)} samples for {samples * weight / total:.0f}",
                    remedy="Give it a smaller weight, or the mix fewer samples.",
                )
        return samples

    def _place(self) -> None:
        """What follows from the sources: rows, class names, labels."""
        self._starts = np.concatenate([[0], np.cumsum([len(source) for source in self._sources])]).astype(np.int64)
        names = [source.class_names for source in self._sources]
        if self._classes == "same":
            for source, own in zip(self._sources, names, strict=True):
                if own != names[0]:
                    raise UsageError(
                        "the datasets of a mix must have the same classes in the same order, or their labels differ in "
                        "meaning",
                        got=f"{_first_difference(names[0], own)} in {source.location}",
                        remedy="Give classes='union' to map labels by class name.",
                    )
            self._names = names[0]
        else:
            self._names = tuple(sorted({name for own in names for name in own}))
        number = {name: label for label, name in enumerate(self._names)}
        self._labels = [np.array([number[name] for name in own], dtype=np.int64) for own in names]

    @property
    def parts(self) -> tuple[tuple[Source, float], ...]:
        """The open datasets with their weights."""
        return tuple(zip(self._sources, self._weights, strict=True))

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return self._samples

    @property
    def location(self) -> str:
        """The datasets' locations."""
        return " + ".join(source.location for source in self._sources)

    @property
    def fingerprint(self) -> str:
        """Hex digest over the datasets' fingerprints, weights and samples of an epoch, and the class names."""
        digest = hashlib.sha256(f"mix {self._samples} {self._classes}".encode())
        for source, weight in self.parts:
            digest.update(f"\n{source.fingerprint} {weight!r}".encode())
        return digest.hexdigest()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names; a label is a position in it."""
        return self._names

    @property
    def index(self) -> Any:
        """The datasets' indexes as one, of which only what is asked for is copied; see `MixIndex`."""
        return MixIndex([source.index for source in self._sources], self._starts, self._labels)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, row: int) -> bytes:
        """The encoded image of a row; raises as its dataset's `read`."""
        source, own = self.locate(row)
        return source.read(own)

    def read_rows(self, rows: np.ndarray) -> Sequence[Encoded]:
        """See `ManyReader`."""
        for row in (rows.min(), rows.max()) if len(rows) else ():
            self.locate(int(row))
        encoded: list[Encoded] = [b""] * len(rows)
        parts = np.searchsorted(self._starts, rows, side="right") - 1
        for part in np.unique(parts).tolist():
            places = np.flatnonzero(parts == part)
            of_part = read_rows(self._sources[part], rows[places] - self._starts[part])
            for place, data in zip(places.tolist(), of_part, strict=True):
                encoded[place] = data
        return encoded

    def stretches(self, rows: np.ndarray) -> Stretches | None:
        """See `InFiles`."""
        for row in (rows.min(), rows.max()) if len(rows) else ():
            self.locate(int(row))
        parts = np.searchsorted(self._starts, rows, side="right") - 1
        descriptors = np.empty(len(rows), dtype=np.int32)
        offsets, sizes = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
        files: list[Any] = []
        take: Callable[[int], memoryview] = lambda size: memoryview(bytearray(size))  # noqa: E731 (of no rows)
        for part in np.unique(parts).tolist():
            places = np.flatnonzero(parts == part)
            of_part = stretches_of(self._sources[part], rows[places] - self._starts[part])
            if of_part is None:
                return None
            descriptors[places], offsets[places], sizes[places] = of_part.descriptors, of_part.offsets, of_part.sizes
            files += of_part.files
            take = of_part.take
        return Stretches(descriptors=descriptors, offsets=offsets, sizes=sizes, files=tuple(files), take=take)

    def name(self, row: int) -> str:
        """The original relative path of a row in its dataset."""
        source, own = self.locate(row)
        return source.name(own)

    def locate(self, row: int) -> tuple[Source, int]:
        """The dataset that a row is of, and its row there.

        Raises:
            IndexError: a row outside 0..len-1.
        """
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {self.location!r}, which has {len(self)}")
        part = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._sources[part], int(row) - int(self._starts[part])

    def close(self) -> None:
        """Close the datasets that were opened from their paths."""
        for source in self._opened:
            source.close()


class MixIndex:
    """What a loader asks of an index, over several: a column by its name, or rows by their numbers.

    The columns are those that every dataset has, `key`, `label`, `width`, `height`, `orientation` and so on; offsets
    and sizes stay with each dataset.
    """

    def __init__(self, indexes: list[np.ndarray], starts: np.ndarray, labels: list[np.ndarray]) -> None:
        self._indexes = indexes
        self._starts = starts
        self._labels = labels
        columns = [name for name in (indexes[0].dtype.names or ()) if "_" not in name]
        self.dtype = np.dtype([(name, indexes[0].dtype[name]) for name in columns])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, what: str | slice | np.ndarray | int) -> Any:
        if isinstance(what, str):
            return np.concatenate([self._column(part, what, ...) for part in range(len(self._indexes))])
        rows = np.asarray(what)
        if isinstance(what, slice) or rows.dtype == np.bool_:
            rows = np.arange(len(self))[what]
        if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of a mix of {len(self)}")
        found = np.empty(rows.shape, dtype=self.dtype)
        part_of = np.searchsorted(self._starts, rows, side="right") - 1
        for part in np.unique(part_of).tolist():
            here = part_of == part
            own = rows[here] - self._starts[part]
            for name in self.dtype.names or ():
                found[name][here] = self._column(part, name, own)
        return found

    def _column(self, part: int, name: str, rows: Any) -> np.ndarray:
        values = self._indexes[part][name][rows]
        if name == "key":
            return values + np.uint64(part << KEY_SHIFT)
        return self._labels[part][values] if name == "label" else values


def _pairs(parts: Any) -> list[tuple[Any, Any]]:
    rule = "a mix is made of (dataset, weight) pairs"
    remedy = "Write Mix([('one', 3), ('other', 1)])."
    try:
        pairs = [(source, weight) for source, weight in parts]
    except (TypeError, ValueError) as error:
        raise UsageError(rule, got=parts, remedy=remedy) from error
    if not 1 <= len(pairs) <= MOST_PARTS:
        raise UsageError(f"{rule}, 1 to {MOST_PARTS} of them", got=len(pairs), remedy=remedy)
    for source, weight in pairs:
        if not isinstance(source, (str, Path, Source)):
            raise UsageError(f"{rule}, a dataset being a path or an open source", got=type(source).__name__)
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not number or not math.isfinite(weight) or weight <= 0:
            raise UsageError(f"{rule}, a weight being a positive number", got=weight, remedy=remedy)
    return pairs


def _first_difference(ours: tuple[str, ...], theirs: tuple[str, ...]) -> str:
    for label, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return f"class {label} is {other!r} instead of {one!r}"
    return f"{len(theirs)} classes instead of {len(ours)}"
