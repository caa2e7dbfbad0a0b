"""The Input contract: what a conversion reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self, get_args, runtime_checkable

import numpy as np

from wellfed.pipeline.errors import UsageError

FieldType = Literal["image", "class", "number", "text", "json", "array", "bytes"]

EXTENSION_OF_TYPE: Mapping[str, str] = {"array": "npy", "bytes": "bin", "text": "txt"}


@dataclass(frozen=True)
class Field:
    """One value that every sample of an input has.

    Attributes:
        name: unique among the input's fields.
        type: "number", "text" and "json" are JSON values, "array" is a NumPy array, "bytes" is any bytes.
    """

    name: str
    type: FieldType

    def __post_init__(self) -> None:
        if self.type not in get_args(FieldType):
            raise UsageError(
                f"the type of field {self.name!r} must be one of {', '.join(get_args(FieldType))}",
                got=self.type,
                remedy="Choose one of those.",
            )


USUAL_FIELDS = (Field("image", "image"), Field("class", "class"))


@dataclass(frozen=True)
class Record:
    """A sample as it was read.

    Attributes:
        image: encoded bytes; None only where the input declares no image field.
        values: the other fields by name, without the class, which the listing knows.
        done: what an earlier conversion did to the image, as its json member says; see `done_to`.
    """

    image: bytes | None
    values: Mapping[str, Any]
    done: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """How an input is to be read; what a kind of input has no use for is refused (see `uses`).

    Attributes:
        kind: "folder", ...; None to find out.
        label_regex: searched in the relative path; the group named `label`, or else group 1, is the class.
        image_column, label_column: column, feature or member that holds the image and the label.
        columns: further fields as (name, type).
        root: what relative paths start from; None for where the listing lies.
        allow_pickle: unpickle what the source holds. Unpickling runs code that the source brings.
        prefix: of an archive that was cut short, take the whole samples before the cut.
        encoding: "png" or "jpeg:QUALITY", for pixels that are not encoded yet.
        classes: class names in the order of their labels; None for those found, sorted as text.
        split_name: which split of a source that has several.
    """

    kind: str | None = None
    label_regex: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    columns: tuple[tuple[str, FieldType], ...] = ()
    root: str | None = None
    allow_pickle: bool = False
    prefix: bool = False
    encoding: str = "png"
    classes: tuple[str, ...] | None = None
    split_name: str | None = None

    def __post_init__(self) -> None:
        if self.label_regex is not None and self.label_column is not None:
            raise UsageError(
                "the label comes from the path or from a column, not from both",
                got=f"--label-regex {self.label_regex!r} and --label-column {self.label_column!r}",
                remedy="Leave one of them out.",
            )
        for what, flag, names in (
            ("class names", "--classes", self.classes or ()),
            ("the names of further fields", "--column", tuple(name for name, _ in self.columns)),
        ):
            if len(set(names)) != len(names):
                twice = next(each for each in names if names.count(each) > 1)
                raise UsageError(f"{what} must differ", got=f"{twice!r} twice", remedy=f"Give each once in {flag}.")


@runtime_checkable
class Input(Protocol):
    """A listed input: every sample found, in planned order, with what is known before reading it.

    Rows are ordered the same way each time the same source is listed. Workers do not get the object: they get
    `kind`, the location and what `save` wrote, and open their own.
    """

    @classmethod
    def list(cls, location: str, options: InputOptions) -> Self:
        """Find every sample. Raises UsageError where nothing at the location can be used."""
        ...

    @classmethod
    def load(cls, location: str, directory: Path) -> Self:
        """The input as `save` wrote it: the listing of the plan, not of now."""
        ...

    @property
    def kind(self) -> str:
        """The name in the registry, as in "folder"."""
        ...

    @property
    def fields(self) -> tuple[Field, ...]:
        """What each sample has."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each sample, shape (len(self),), integer; 0 where unknown."""
        ...

    @property
    def labels(self) -> np.ndarray:
        """Class index of each sample, shape (len(self),), int64; -1 for a refused sample without one."""
        ...

    @property
    def refused(self) -> Mapping[int, str]:
        """Row to reason, for samples that listing already found to be unusable."""
        ...

    @property
    def skipped(self) -> Mapping[str, int]:
        """Entries that are no samples (hidden files, ...), counted by kind."""
        ...

    @property
    def notes(self) -> Mapping[str, int]:
        """What listing noticed, counted."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of what the input holds, wherever it lies."""
        ...

    @property
    def state(self) -> str:
        """Hex digest that also changes when a sample was written again: whether a killed run may continue."""
        ...

    @property
    def rereads(self) -> bool:
        """Whether reading a sample once more costs little: a local file, not to be unpacked. If not, images that are
        needed twice are kept on the disk in between."""
        ...

    def __len__(self) -> int: ...

    def name(self, row: int) -> bytes:
        """The original relative path or row id."""
        ...

    def read(self, row: int) -> Record:
        """One sample, called for rows that are not refused, in any order.

        Raises:
            SampleRejectedError: it cannot be read, lacks a field, or is not what was listed. Its words must not hold
                absolute paths: they are published.
        """
        ...

    def save(self, directory: Path) -> None:
        """Write what `load` needs, into an existing folder."""
        ...
