"""MNIST and CIFAR as torchvision stores them: idx files, and pickled batches of 32 x 32 pixels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from wellfed.pipeline.errors import SampleRejectedError, UsageError

from .base import InputOptions, Record
from .cifar_pickle import read_batch
from .idx import read_idx
from .listing import ListedInput, ListingBuilder
from .pixels import PixelEncoding, image_of_array
from .uses import refuse_unused
from .values import row_name

_CHANGED = "the file must not change between planning and reading"
_IMAGES = re.compile(r"(?P<stem>.*)-images[-.]idx3-ubyte(\.gz)?")
_CIFAR_FOLDERS = ("cifar-10-batches-py", "cifar-100-python")
_CIFAR_BATCH = re.compile(r"data_batch_\d+|test_batch|train|test")
_CIFAR_PIXELS = 3 * 32 * 32
_LABEL_KEYS = ("labels", "fine_labels")


@dataclass(frozen=True)
class _Part:
    """Files that belong together.

    Attributes:
        split: "train" or "test".
        images: idx file of images, or a CIFAR batch.
        labels: idx file of labels; None for a CIFAR batch.
    """

    split: str
    images: Path
    labels: Path | None


class BinaryInput(ListedInput):
    """idx files (MNIST, Fashion-MNIST, KMNIST, EMNIST; raw or gzip) and CIFAR-10/100 batches; see `Input`.

    The location is torchvision's `root`, a folder in it, or one idx file of images. Sizes are those of the pixels,
    which are encoded when they are read.
    """

    kind: ClassVar[str] = "binary"

    @classmethod
    def list(cls, location: str, options: InputOptions) -> Self:
        """Read the labels, of CIFAR the names.

        Raises:
            UsageError: no such files; several data sets, or several splits and none chosen; a damaged or cut file;
                images and labels that differ in number.
        """
        PixelEncoding.parse(options.encoding)
        parts = _chosen(location, options)
        builder = ListingBuilder()
        labels = parts[0].labels
        if labels is None:
            class_names = _add_cifar(builder, parts, options)
        else:
            class_names = _add_idx(builder, parts[0].images, labels, options)
        if not len(builder):
            raise UsageError("the source must hold at least one image", got=f"{location}, which holds none")
        base = parts[0].images.parent
        facts = {
            "encoding": options.encoding,
            "prefix": options.prefix,
            "parts": [[each.images.name, each.labels.name if each.labels else None] for each in parts],
            "base": "" if not Path(location).is_dir() else str(base.relative_to(location)),
        }
        return cls(location, builder.finish(class_names, facts=facts, content=options.encoding))

    def read(self, row: int) -> Record:
        """The sample's pixels, encoded. Raises SampleRejectedError where its file is not the listed one."""
        columns = self.listing.columns
        part, entry = int(columns["part"][row]), int(columns["entry"][row])
        path = self._parts[part]
        try:
            changed = path.stat().st_mtime_ns != int(columns["stamp"][row])
            pixels = None if changed else self._pixels(part)[entry]
        except (OSError, UsageError, IndexError) as error:
            raise SampleRejectedError(_CHANGED, got=path.name) from error
        if pixels is None:
            raise SampleRejectedError(_CHANGED, got=path.name)
        if pixels.ndim == 1:
            pixels = pixels.reshape(3, 32, 32).transpose(1, 2, 0)
        return Record(self._encoding.encode(image_of_array(pixels, "HWC")), {})

    @cached_property
    def _encoding(self) -> PixelEncoding:
        return PixelEncoding.parse(self.listing.facts["encoding"])

    @cached_property
    def _parts(self) -> tuple[Path, ...]:
        location = Path(self.location)
        base = location / self.listing.facts["base"] if location.is_dir() else location.parent
        return tuple(base / images for images, _ in self.listing.facts["parts"])

    @cached_property
    def _opened(self) -> dict[int, np.ndarray]:
        return {}

    def _pixels(self, part: int) -> np.ndarray:
        # All parts stay open: the largest data set of this kind unpacks to 0.6 GB, and rows may come in any order.
        if part not in self._opened:
            if self.listing.facts["parts"][part][1] is None:
                self._opened[part] = read_batch(self._parts[part])["data"]
            else:
                self._opened[part] = read_idx(self._parts[part], 3, prefix=self.listing.facts["prefix"])
        return self._opened[part]


def matches(location: str) -> bool:
    """Whether there are such files at the location."""
    return bool(_found(Path(location)))


def _found(location: Path) -> list[_Part]:
    """The files at a location: there, or in the folders in which torchvision puts them."""
    if location.is_file():
        return list(_idx_parts([location]))
    if not location.is_dir():
        return []
    parts: list[_Part] = []
    for folder in (
        location,
        location / "raw",
        *sorted(location.glob("*/raw")),
        *map(location.joinpath, _CIFAR_FOLDERS),
    ):
        if folder.is_dir():
            parts += _idx_parts(sorted(folder.iterdir()))
            if folder.name in _CIFAR_FOLDERS or (folder / "batches.meta").is_file():
                parts += _cifar_parts(folder)
    return parts


def _idx_parts(files: list[Path]) -> Iterator[_Part]:
    seen = set()
    for path in files:
        match = _IMAGES.fullmatch(path.name)
        # torchvision leaves the .gz beside the unpacked file, which sorts first.
        if match is None or (path.parent, match["stem"]) in seen:
            continue
        seen.add((path.parent, match["stem"]))
        labels = path.with_name(path.name.replace("-images", "-labels").replace("idx3", "idx1"))
        other = labels.with_suffix("") if labels.suffix == ".gz" else labels.with_name(labels.name + ".gz")
        split = "test" if match["stem"].endswith(("t10k", "test")) else "train"
        yield _Part(split, path, other if other.is_file() and not labels.is_file() else labels)


def _cifar_parts(folder: Path) -> Iterator[_Part]:
    for path in sorted(folder.iterdir()):
        if _CIFAR_BATCH.fullmatch(path.name) and path.is_file():
            yield _Part("test" if path.name.startswith("test") else "train", path, None)


def _chosen(location: str, options: InputOptions) -> list[_Part]:
    parts = _found(Path(location))
    if not parts:
        raise UsageError(
            "there must be MNIST's idx files or CIFAR's batches at the location",
            got=location,
            remedy="Give the folder that torchvision unpacked them into: data/MNIST/raw, cifar-10-batches-py.",
        )
    folders = sorted({each.images.parent for each in parts})
    if len(folders) > 1:
        raise UsageError(
            "the location must hold one data set",
            got=", ".join(str(each.relative_to(location)) for each in folders),
            remedy="Give the folder of one of them.",
        )
    splits = sorted({each.split for each in parts})
    if options.split_name is None and len(splits) > 1:
        raise UsageError(
            "a source with several splits is converted one split at a time",
            got=f"the splits {', '.join(splits)}",
            remedy="Name one of them (--source-split).",
        )
    if options.split_name is not None and options.split_name not in splits:
        raise UsageError(
            "the split must be one that the source has", got=options.split_name, remedy=f"It has {', '.join(splits)}."
        )
    chosen = [each for each in parts if options.split_name in (None, each.split)]
    stems = sorted(each.images.name for each in chosen)
    if chosen[0].labels is not None and len(chosen) > 1:
        raise UsageError(
            "a split must be one pair of idx files", got=", ".join(stems), remedy="Give the file of images."
        )
    return chosen


def _add_idx(
    builder: ListingBuilder, images_path: Path, labels_path: Path, options: InputOptions
) -> tuple[str, ...] | None:
    if not labels_path.is_file():
        raise UsageError(f"{images_path.name} must have its labels beside it", got=f"no {labels_path.name}")
    refuse_unused(options, ("label_column",), "idx files have one list of labels")
    images = read_idx(images_path, 3, prefix=options.prefix)
    labels = read_idx(labels_path, 1, prefix=options.prefix)
    if len(images) != len(labels) and not options.prefix:
        raise UsageError(
            f"{images_path.name} and {labels_path.name} must hold equally many entries",
            got=f"{len(images)} images and {len(labels)} labels",
            remedy="They do not belong together; fetch them again.",
        )
    stamp = images_path.stat().st_mtime_ns
    size = int(images[0].size) if len(images) else 0
    for entry in range(min(len(images), len(labels))):
        builder.add(row_name(entry), label=int(labels[entry]), size=size, stamp=stamp, part=0, entry=entry)
    return options.classes


def _add_cifar(builder: ListingBuilder, parts: list[_Part], options: InputOptions) -> tuple[str, ...] | None:
    refuse_unused(options, ("prefix",), "a batch of CIFAR's that is cut short has no whole samples")
    key = _label_key(read_batch(parts[0].images), parts[0].images.name, options)
    class_names = _cifar_classes(parts[0].images.parent, key)
    # Given classes that are those of the source in another order must not shift its labels.
    by_name = class_names if options.classes is not None else None
    for number, part in enumerate(parts):
        batch = read_batch(part.images)
        data, labels, names = batch.get("data"), batch.get(key), batch.get("filenames")
        if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != _CIFAR_PIXELS:
            raise UsageError(
                f"the `data` of {part.images.name} must be rows of 3 x 32 x 32 bytes",
                got=f"shape {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__,
            )
        for what, values in ((key, labels), ("filenames", names)):
            if (values is not None or what == key) and (not isinstance(values, list) or len(values) != len(data)):
                got = f"{len(values)} for {len(data)} images" if isinstance(values, list) else type(values).__name__
                raise UsageError(f"the `{what}` of {part.images.name} must be a list, one for each image", got=got)
        stamp = part.images.stat().st_mtime_ns
        for entry in range(len(data)):
            name = row_name(len(builder)) if names is None else _name_bytes(names[entry])
            label = labels[entry] if isinstance(labels, list) else None
            if by_name is not None and isinstance(label, int) and 0 <= label < len(by_name):
                label = by_name[label]
            builder.add(name, label=label, size=_CIFAR_PIXELS, stamp=stamp, part=number, entry=entry)
    return options.classes or class_names


def _label_key(batch: dict[str, Any], name: str, options: InputOptions) -> str:
    if options.label_column is not None:
        if options.label_column not in batch:
            raise UsageError(
                f"{name} must have the labels asked for", got=options.label_column, remedy=f"It has {', '.join(batch)}."
            )
        return options.label_column
    for key in _LABEL_KEYS:
        if key in batch:
            return key
    raise UsageError(f"{name} must have labels", got=f"the entries {', '.join(batch) or '(none)'}")


def _cifar_classes(folder: Path, key: str) -> tuple[str, ...] | None:
    wanted = {"labels": "label_names", "fine_labels": "fine_label_names", "coarse_labels": "coarse_label_names"}.get(
        key
    )
    for path in (folder / "batches.meta", folder / "meta"):
        if path.is_file() and wanted is not None:
            names = read_batch(path).get(wanted)
            if isinstance(names, list) and all(isinstance(each, str) for each in names):
                return tuple(names)
    return None


def _name_bytes(name: object) -> bytes:
    # Pickles of Python 2: text that was read as Latin-1.
    return name if isinstance(name, bytes) else str(name).encode("latin-1", "backslashreplace")
