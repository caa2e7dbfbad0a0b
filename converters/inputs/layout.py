"""What the samples of an archive are: which members belong together, where labels come from, which fields there are."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wellfed.pipeline.errors import UsageError

from .base import Field, FieldType, InputOptions
from .flat import label_of, label_rule
from .members import is_metadata, shown, skip_kind, split_name
from .membertable import MemberTable

IMAGE_EXTS = frozenset(
    b"jpg jpeg jpe jfif png apng webp gif bmp tif tiff ppm pgm pbm pnm avif heic jp2 tga ico img image".split()
)
_TYPES: Mapping[bytes, FieldType] = {
    b"txt": "text",
    b"text": "text",
    b"caption": "text",
    b"json": "json",
    b"npy": "array",
}
_NAMES = {b"txt": "text", b"npy": "array", b"json": "metadata", b"bin": "data"}
_TAKEN = IMAGE_EXTS | {b"image", b"class", b"cls", *_NAMES}
_COMPANIONS = frozenset((*_TYPES, b"cls", b"cls2", b"npz", b"pt", b"pth", b"bin", b"pyd", b"pickle", b"mp", b"xml"))
_LABELS = frozenset((b"cls", b"cls2", b"class", b"label"))
"""Last parts of extensions that say that a member is a label."""

LARGEST_LABEL = 1 << 12
LARGEST_JSON = 1 << 20
"""Bytes of a member that holds a label: larger ones are not read for it, and their samples are refused."""


class LabelFault(str):
    """In place of a label: why there is none."""


@dataclass(frozen=True)
class LabelSource:
    """Where the members that listing reads on its way hold labels.

    Attributes:
        column: `label_column`, lower-cased: an extension, or a key of the json member.
        key: the same as given.
    """

    column: bytes
    key: str | None

    @classmethod
    def of(cls, options: InputOptions) -> LabelSource:
        """The source that the options name; `cls` where they name none."""
        if options.label_regex is not None:
            return cls(b"", None)
        if options.label_column is None:
            return cls(b"cls", None)
        return cls(options.label_column.lower().lstrip(".").encode(), options.label_column)

    def capture(self, name: bytes) -> int:
        """See `members.Capture`."""
        ext = split_name(name)[1]
        if not self.column:
            return 0
        if ext == self.column:
            return LARGEST_LABEL
        return LARGEST_JSON if self.key is not None and ext == b"json" else 0

    def label(self, name: bytes, data: bytes | None) -> Any:
        """The label that a captured member holds; a LabelFault where it holds none, None where it isn't asked."""
        if not self.capture(name):
            return None
        if data is None:
            return LabelFault("the label is empty or too large")
        if split_name(name)[1] == self.column:
            return _label_of_text(data)
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return LabelFault("the json member is no JSON")
        value = found.get(self.key) if isinstance(found, dict) else None
        if value is None:
            return LabelFault(f"the json member has no {self.key!r}")
        if isinstance(value, float):
            return LabelFault("the label is a fraction, or not a number")
        return value if isinstance(value, str | int) else LabelFault("the label must be text or a whole number")


def _label_of_text(data: bytes) -> Any:
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        return LabelFault("the label is not UTF-8")
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def is_left_out(name: bytes) -> str | None:
    """What a member that is no part of any sample is counted as."""
    return "metadata" if is_metadata(name) else skip_kind(name.removeprefix(b"./"))


class Layout:
    """How the members of a table make samples.

    Attributes:
        grouped: members of one key are one sample; otherwise each member is one, as in a folder of images.
        labels_from: "members", "regex" or "folders".
        fields: image, class, and what else each sample has.
        extras: extension code to its field, for fields that are members; keys: fields that are keys of the json member.
        label_code, json_code: of the member that is the label, and of the json member; -1 for none.
        rare: extensions that fewer than half of the samples have: counted, not stored.
    """

    def __init__(self, table: MemberTable, options: InputOptions, where: str) -> None:
        self._table = table
        self._exts, self._labels = table.exts, table.labels
        self._image = None if options.image_column is None else options.image_column.lower().lstrip(".").encode()
        self._rule = label_rule(options.label_regex) if options.label_regex is not None else None
        images = {code for code, ext in enumerate(self._exts) if self._is_image(ext)}
        self.image_codes = frozenset(images)
        self.json_code = self._exts.index(b"json") if b"json" in self._exts else -1
        having: Counter[int] = Counter()
        samples = companions = 0
        known = {code for code, ext in enumerate(self._exts) if ext in _COMPANIONS}
        for members in table.samples():
            samples += 1
            codes = {table.row(member).ext for member in members}
            having.update(codes)
            companions += len(members) > 1 and bool(codes & images) and bool(codes & known)
        labelled = len(self._labels) > 0
        if options.label_column is not None and all(isinstance(label, LabelFault) for label in self._labels):
            raise UsageError(
                f"the label column {options.label_column!r} must be an extension or a key of the json members",
                got=f"{where}, with the extensions {self._listed(having)}",
                remedy="Give one of those, or --label-regex.",
            )
        self.labels_from = "regex" if self._rule else "members" if labelled else "folders"
        if self.labels_from == "folders":
            self._refuse_labels(where)
        accompanied = samples > 0 and 2 * companions >= samples
        named = self._image is not None or bool(options.columns)
        self.grouped = self.labels_from == "members" or accompanied or named
        self.extras: dict[int, Field] = {}
        self.keys: list[Field] = []
        self.rare: frozenset[int] = frozenset()
        self.label_code = -1
        if self.grouped:
            self._choose_fields(having, samples, options, where)
        self.fields = (
            Field("image", "image"),
            Field("class", "class"),
            *self.extras.values(),
            *self.keys,
        )
        self.common = self._common_folder() if self.labels_from == "folders" else b""

    @property
    def label_extension(self) -> str | None:
        """Of the member that is the label; None where labels come from elsewhere."""
        return self.shown_ext(self.label_code) if self.label_code >= 0 else None

    def shown_ext(self, code: int) -> str:
        """An extension for messages."""
        return shown(self._exts[code])

    def _is_image(self, ext: bytes) -> bool:
        return ext in IMAGE_EXTS if self._image is None else ext == self._image

    def _listed(self, having: Counter[int]) -> str:
        return ", ".join(shown(self._exts[code]) or "none" for code, _ in having.most_common(20)) or "none"

    def _refuse_labels(self, where: str) -> None:
        """Labels that went unseen must not give way to folders, which are other labels."""
        unseen = {code for code, ext in enumerate(self._exts) if ext.rpartition(b".")[2] in _LABELS}
        if not unseen:
            return
        members = [member for member in range(len(self._table)) if self._table.row(member).ext in unseen]
        first = self._table.name(members[0])
        key, ext = split_name(first)
        raise UsageError(
            "an archive with members that look like labels is not taken as class folders",
            got=f"{where}, with {len(members):,} such members, the first {shown(first)!r}, which has the key "
            f"{shown(key)!r} and the extension {shown(ext)!r}: a key ends at the first dot after the last slash",
            remedy="Rename the members so that keys have no dot, name the extension of the labels with --label-column, "
            "or take the class from the path with --label-regex.",
        )

    def _choose_fields(self, having: Counter[int], samples: int, options: InputOptions, where: str) -> None:
        if not self.image_codes:
            raise UsageError(
                "samples must have an image",
                got=f"{where}, with the extensions {self._listed(having)}",
                remedy="Name the image's extension with --image-column.",
            )
        asked = dict(options.columns)
        label = LabelSource.of(options).column if self.labels_from == "members" else b""
        others = set(having) - self.image_codes
        codes = {ext: code for code, ext in enumerate(self._exts)}
        if asked:
            for name, kind in asked.items():
                code = codes.get(name.lower().lstrip(".").encode())
                if code is not None:
                    self.extras[code] = Field(_field_name(self._exts[code]), kind)
                elif self.json_code >= 0:
                    self.keys.append(Field(name, kind))
                else:
                    raise UsageError(
                        f"the column {name!r} must be an extension or a key of the json members",
                        got=f"{where}, with the extensions {self._listed(having)}",
                        remedy="Give one of those.",
                    )
        else:
            usual = sorted(
                (code for code in others if 2 * having[code] >= samples and self._exts[code] not in (b"", label)),
                key=lambda code: self._exts[code],
            )
            for code in usual:
                self.extras[code] = Field(_field_name(self._exts[code]), _TYPES.get(self._exts[code], "bytes"))
        names = [field.name for field in (*self.extras.values(), *self.keys)]
        if len(set(names)) != len(names) or {"image", "class"} & set(names):
            raise UsageError(
                "fields must have different names, and neither image nor class",
                got=", ".join(names),
                remedy="Choose among them with --column.",
            )
        self.label_code = codes.get(label, -1) if label else -1
        in_json = self.keys or (self.labels_from == "members" and label not in (b"cls", *codes))
        self.rare = frozenset(others - {*self.extras, self.label_code, *([self.json_code] if in_json else [])})

    def _common_folder(self) -> bytes:
        """The one folder that everything lies in, two deep or more, as `tar cf x.tar FOLDER` makes it; else nothing."""
        common: bytes | None = None
        for member in range(len(self._table)):
            if self._table.row(member).reason >= 0:
                continue  # a path that leads out of the archive says nothing about the others
            parts = self.path(member).split(b"/")
            if len(parts) < 3 or (common is not None and parts[0] != common):
                return b""
            common = parts[0]
        return b"" if common is None else common + b"/"

    def path(self, member: int) -> bytes:
        """A member's path without a leading "./"."""
        return self._table.name(member).removeprefix(b"./")

    def image_of(self, members: list[int]) -> tuple[int | None, str | None]:
        """A sample's image, and what is wrong with it."""
        if not self.grouped:
            return members[0], None
        images = [member for member in members if self._table.row(member).ext in self.image_codes]
        if not images:
            return None, "the sample has no image"
        if len(images) > 1:
            found = ", ".join(self.shown_ext(self._table.row(member).ext) for member in images)
            return images[0], f"the sample has more than one image: {found}"
        return images[0], None

    def label(self, members: list[int], image: int | None) -> tuple[Any, str | None]:
        """A sample's label, and what is wrong with it."""
        if self.labels_from == "members":
            codes = [self._table.row(member).label for member in members]
            found = [self._labels[code] for code in codes if code >= 0]
            if not found:
                return None, "the sample has no label"
            # A json member without the key does not stand against a member that is the label.
            best = next((each for each in found if not isinstance(each, LabelFault)), found[0])
            return (None, str(best)) if isinstance(best, LabelFault) else (best, None)
        path = self.path(members[0] if image is None else image)
        if self._rule is not None:
            label = label_of(self._rule, path)
            return label, None if label is not None else "the label rule does not fit it"
        return class_folder(path.removeprefix(self.common)), None


def class_folder(path: bytes) -> str | None:
    """The first-level folder of a path; None where it lies in none, or the path leads out of the archive."""
    folder, slash, _ = path.partition(b"/")
    if not slash or folder in (b"", b".", b".."):
        return None
    return folder.decode("utf-8", "surrogateescape")


def _field_name(ext: bytes) -> str:
    """A name for an extension's field that no stored field or extension has."""
    if ext in _NAMES:
        return _NAMES[ext]
    name = re.sub(r"[^a-z0-9_]", "_", ext.decode("latin-1"))[:40]
    return name if name[:1].isalpha() and name.encode() not in _TAKEN else f"x_{name}"
