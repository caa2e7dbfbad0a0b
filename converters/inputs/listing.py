"""The listing that inputs share: one row a sample, spooled to disk and memory-mapped, so that millions stay small."""

from __future__ import annotations

import hashlib
import heapq
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.formats.manifest import class_names_digest
from wellfed.pipeline.formats.names import NAMES_BLOB, NAMES_OFFSETS, Names, NamesWriter, open_names

from .base import USUAL_FIELDS, Field
from .spool import CHUNK, Column, Refused, RefusedSpool, digest_of, open_raw, refused_files, write_raw
from .temporary import TemporaryFolder
from .values import row_name

_FACTS = "input.json"
_REFUSED, _FOUND, _OUTSIDE = "input.refused.", "spool.found.", "spool.outside."
_USUAL_COLUMNS = ("label", "size", "stamp")
_MOST_CLASSES = 1_000_000
_ABSENT = -1
"""In the label column for a sample without a label, in a locator's for a row that was added without it."""


def _column_file(name: str) -> str:
    return f"input.column.{name}.i8"


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Everything that is known of an input's samples before reading them.

    Attributes:
        text: what `load` reads beside the mapped files.
        columns: i8 columns of shape (n,) by name: label, size, stamp and the input's locators (-1 where absent).
        facts: JSON values of the input's own, kept beside the rows.

    The other attributes are those of `Input`.
    """

    text: bytes
    class_names: tuple[str, ...]
    columns: Mapping[str, np.ndarray]
    names: Names
    refused: Refused
    skipped: Mapping[str, int]
    notes: Mapping[str, int]
    fingerprint: str
    state: str
    facts: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.names)

    def save(self, directory: Path) -> None:
        """Write what `load` needs into `directory`."""
        (directory / _FACTS).write_bytes(self.text)
        self.names.save(directory)
        self.refused.save(directory, _REFUSED)
        for name, values in self.columns.items():
            write_raw(directory / _column_file(name), values)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Open what `save` wrote, memory-mapped; the files may be removed then."""
        text = (directory / _FACTS).read_bytes()
        held = json.loads(text)
        rows = held["rows"]
        return cls(
            text=text,
            class_names=tuple(held["class_names"]),
            columns={name: open_raw(directory / _column_file(name), "<i8") for name in held["columns"]},
            names=open_names(directory, rows),
            refused=Refused.load(directory, _REFUSED),
            skipped=held["skipped"],
            notes=held["notes"],
            fingerprint=held["fingerprint"],
            state=held["state"],
            facts=held["facts"],
        )


class ListedInput:
    """What an input made of a `Listing` need not write again: all of `Input` but `list` and `read`.

    Attributes:
        location: as the user gave it.
        rereads: see `Input`.
    """

    kind: ClassVar[str]
    rereads: ClassVar[bool] = False

    def __init__(self, location: str, listing: Listing) -> None:
        self.location = location
        self.listing = listing

    @classmethod
    def load(cls, location: str, directory: Path) -> Self:
        """Open what `save` wrote, memory-mapped."""
        return cls(location, Listing.load(directory))

    def save(self, directory: Path) -> None:
        """Write the listing into `directory`."""
        self.listing.save(directory)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Image and class, and what the builder's `finish` was given as fields."""
        return tuple(Field(*each) for each in self.listing.facts.get("fields", ())) or USUAL_FIELDS

    @property
    def class_names(self) -> tuple[str, ...]:
        """In the order of their labels."""
        return self.listing.class_names

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each sample, i8, shape (n,); 0 where unknown."""
        return self.listing.columns["size"]

    @property
    def labels(self) -> np.ndarray:
        """Class index of each sample, i8, shape (n,); -1 without one."""
        return self.listing.columns["label"]

    @property
    def refused(self) -> Mapping[int, str]:
        """Row to reason."""
        return self.listing.refused

    @property
    def skipped(self) -> Mapping[str, int]:
        """Entries that are no samples, counted."""
        return self.listing.skipped

    @property
    def notes(self) -> Mapping[str, int]:
        """Remarks of listing, counted."""
        return self.listing.notes

    @property
    def fingerprint(self) -> str:
        """Digest of classes, names, labels and sizes."""
        return self.listing.fingerprint

    @property
    def state(self) -> str:
        """Digest of the fingerprint, stamps, locators and reasons."""
        return self.listing.state

    def __len__(self) -> int:
        return len(self.listing)

    def name(self, row: int) -> bytes:
        """The original relative path or row id."""
        if not row & 0xFFFFF:
            # Whoever goes through all names in order keeps at most a million of them in memory.
            self.listing.names.forget()
        return self.listing.names.bytes_at(row)


class ListingBuilder:
    """Takes an input's rows in planned order and makes a `Listing` of them.

    A text label is a class name. A whole-number label is a class index: it is kept as it is, so that a class that
    happens to be absent shifts nothing.

    Args:
        directory: an existing folder for the files; None for a temporary one that goes when the listing does.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._temporary: TemporaryFolder | None = None
        if directory is None:
            self._temporary = TemporaryFolder()
            directory = self._temporary.path
        self._directory = directory
        self._names = NamesWriter(self._directory)
        self._label_column, self._size_column, self._stamp_column = (
            Column(directory / _column_file(name), 0) for name in _USUAL_COLUMNS
        )
        self._locators: dict[str, Column] = {}
        self._refused = RefusedSpool(self._directory, _FOUND)
        self._rows = 0
        self._ids: dict[str, int] = {}
        self._label_type: tuple[type, bytes] | None = None
        self._largest = -1

    def __len__(self) -> int:
        return self._rows

    def add(
        self,
        name: bytes,
        *,
        label: object,
        size: int,
        stamp: int = 0,
        reason: str | None = None,
        **locators: int,
    ) -> None:
        """Append the next row.

        Args:
            name: original relative path or row id; where it is empty, the row's number takes its place.
            label: text or whole number; anything else (None, empty, NaN, a float) makes the row a refused one.
            size: bytes of the image; 0 where unknown.
            stamp: changes when the sample was written again, such as a modification time.
            reason: why the sample cannot be stored, where listing knows.
            locators: where `read` finds it; below 2**63, kept as columns.

        Raises:
            UsageError: text and whole-number labels are mixed.
        """
        row = self._rows
        code, fault = self._label(name, label)
        if reason is None:
            reason = fault
        if reason is not None:
            self._refused.add(row, reason)
        self._label_column.append(code)
        self._size_column.append(size)
        self._stamp_column.append(stamp)
        for locator in locators:
            if locator not in self._locators:
                self._locators[locator] = Column(self._directory / _column_file(locator), row)
        for locator, column in self._locators.items():
            column.append(locators.get(locator, _ABSENT))
        self._names.add(name or row_name(row))
        self._rows += 1

    def extend(self, names: Sequence[bytes], *, label: str | int, sizes: Sequence[int], stamps: Sequence[int]) -> None:
        """Append rows of one class, none of them refused, in an input without locators; quicker than `add`.

        Raises:
            ValueError: the label refuses them, or the rows have locators.
        """
        if not names:
            return
        code, fault = self._label(names[0], label)
        if fault is not None or self._locators:
            raise ValueError(fault or "rows with locators are added one by one")
        self._label_column.extend([code] * len(names))
        self._size_column.extend(sizes)
        self._stamp_column.extend(stamps)
        self._names.extend(names)
        self._rows += len(names)

    def _label(self, name: bytes, label: object) -> tuple[int, str | None]:
        """A label's code until `finish`, and what is wrong with it."""
        if isinstance(label, str):
            if not label.strip():
                return _ABSENT, "the label is empty"
            self._same_type(str, name)
            return self._ids.setdefault(label, len(self._ids)), None
        if label is None:
            return _ABSENT, "the label is missing"
        if isinstance(label, float | np.floating):
            return _ABSENT, f"the label is {'not a number' if math.isnan(label) else 'a fraction'}: {float(label)}"
        if isinstance(label, bool | np.bool_) or not isinstance(label, int | np.integer):
            return _ABSENT, f"the label must be text or a whole number, not {type(label).__name__}"
        self._same_type(int, name)
        value = index(label)
        if value < 0:
            return _ABSENT, f"the label {value} is below 0"
        if value >= _MOST_CLASSES:
            return _ABSENT, f"the label {value} is no class index below {_MOST_CLASSES}"
        self._largest = max(self._largest, value)
        return value, None

    def _same_type(self, kind: type, name: bytes) -> None:
        if self._label_type is None:
            self._label_type = (kind, name)
        elif self._label_type[0] is not kind:
            words = {str: "text", int: "a whole number"}
            first, second = (each.decode("utf-8", "backslashreplace") for each in (self._label_type[1], name))
            raise UsageError(
                "labels must be all text or all whole numbers",
                got=f"{words[self._label_type[0]]} for {first!r}, {words[kind]} for {second!r}",
                remedy="Write all labels of the source in one way.",
            )

    def finish(
        self,
        class_names: tuple[str, ...] | None = None,
        *,
        fields: tuple[Field, ...] = USUAL_FIELDS,
        skipped: Mapping[str, int] | None = None,
        notes: Mapping[str, int] | None = None,
        facts: Mapping[str, Any] | None = None,
        content: str = "",
    ) -> Listing:
        """Close the builder and open what it made.

        Args:
            class_names: in the order of their labels; None for those found, sorted as text (whole numbers: from 0 to
                the largest). A label outside them refuses its row.
            fields: what each sample has.
            skipped, notes: see `Input`.
            facts: JSON values that `read` needs.
            content: digest of what the rows say beyond name, size and label; goes into the fingerprint.

        Raises:
            UsageError: a class name is given twice.
        """
        for column in (self._label_column, self._size_column, self._stamp_column, *self._locators.values()):
            column.close()
        self._names.close()
        found = self._found_names()
        names = found if class_names is None else tuple(class_names)
        if len(set(names)) != len(names):
            twice = next(each for each in names if names.count(each) > 1)
            raise UsageError("class names must differ", got=f"{twice!r} twice", remedy="Give each class once.")
        outside = RefusedSpool(self._directory, _OUTSIDE)
        self._final_labels(names, outside)
        self._refused.close()
        outside.close()
        self._merge_refused()
        fingerprint = hashlib.sha256(class_names_digest(names))
        for name in (NAMES_BLOB, NAMES_OFFSETS, _column_file("label"), _column_file("size")):
            fingerprint.update(digest_of(self._directory / name))
        fingerprint.update(content.encode())
        state = hashlib.sha256(fingerprint.digest())
        others = ["stamp", *sorted(self._locators)]
        for name in (*map(_column_file, others), *refused_files(_REFUSED)):
            state.update(name.encode() + digest_of(self._directory / name))
        empty = self._empty_classes(len(names))
        held = {
            "rows": self._rows,
            "class_names": names,
            "columns": [*_USUAL_COLUMNS, *self._locators],
            "skipped": dict(skipped or {}),
            "notes": {**(notes or {}), **({"empty_class": empty} if empty else {})},
            "fingerprint": fingerprint.hexdigest(),
            "state": state.hexdigest(),
            "facts": {"fields": [[each.name, each.type] for each in fields], **(facts or {})},
        }
        (self._directory / _FACTS).write_text(json.dumps(held))
        listing = Listing.load(self._directory)
        if self._temporary is not None:
            # What is mapped stays readable, and a process that is killed later leaves nothing behind.
            self._temporary.close()
        return listing

    def _found_names(self) -> tuple[str, ...]:
        if self._label_type is not None and self._label_type[0] is int:
            return tuple(str(number) for number in range(self._largest + 1))
        return tuple(sorted(self._ids))

    def _final_labels(self, names: tuple[str, ...], outside: RefusedSpool) -> None:
        """Turn the codes of the label column into class indexes."""
        if self._label_type is None:
            return
        if self._label_type[0] is int:
            # One entry even where every label was below 0: the codes of those look up entry 0.
            table = np.arange(max(1, self._largest + 1), dtype="<i8")
            table[len(names) :] = _ABSENT
            words = [str(number) for number in range(self._largest + 1)] if len(names) <= self._largest else []
        else:
            labels = {name: label for label, name in enumerate(names)}
            words = list(self._ids)
            table = np.array([labels.get(word, _ABSENT) for word in words], "<i8")
        with open(self._directory / _column_file("label"), "r+b") as file:
            for start in range(0, self._rows, CHUNK):
                codes = np.frombuffer(file.read(8 * CHUNK), "<i8")
                final = np.where(codes >= 0, table[np.maximum(codes, 0)], _ABSENT)
                for place in np.flatnonzero((final < 0) & (codes >= 0)).tolist():
                    outside.add(start + place, f"the label {words[codes[place]]!r} is none of the given classes")
                file.seek(8 * start)
                file.write(final.tobytes())
                file.seek(8 * (start + len(codes)))

    def _merge_refused(self) -> None:
        with RefusedSpool(self._directory, _REFUSED) as merged:
            spools = (Refused.load(self._directory, prefix).items() for prefix in (_FOUND, _OUTSIDE))
            last = -1
            for row, reason in heapq.merge(*spools, key=lambda each: each[0]):
                if row != last:  # the reason that came with the row stands
                    merged.add(row, reason)
                last = row

    def _empty_classes(self, classes: int) -> int:
        seen = np.zeros(classes + 1, bool)
        with open(self._directory / _column_file("label"), "rb") as file:
            while chunk := file.read(8 * CHUNK):
                seen[np.frombuffer(chunk, "<i8")] = True
        return classes - int(np.count_nonzero(seen[:classes]))
