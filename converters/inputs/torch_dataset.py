"""Any map-style torch Dataset, returned by `module:function`: its samples are encoded, or kept where they are bytes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import xxhash
from PIL import Image

from wellfed.pipeline.errors import SampleRejectedError, UsageError, words_of

from .base import USUAL_FIELDS, Field, InputOptions, Record
from .listing import ListedInput, ListingBuilder
from .pixels import PixelEncoding, image_of_array
from .values import row_name, typed_value

_IMAGE_KEYS = ("image", "img")
_LABEL_KEYS = ("label", "target", "class")
_PROBED = 32
"""Samples that listing reads where the dataset knows its labels without reading."""


def matches(location: str) -> bool:
    """Whether it looks like `module:function` and is no path."""
    module, colon, attribute = location.partition(":")
    named = all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))
    return bool(colon) and named and not os.path.lexists(location)


class TorchDatasetInput(ListedInput):
    """The dataset that a function returns when it is called without arguments; see `Input`.

    A sample is (image, label), or a mapping with "image" or "img" and "label", "target" or "class" (or what
    `image_column` and `label_column` say) and further fields. An image is a Pillow image, a tensor (C, H, W) or array
    (H, W, C), or encoded bytes, which are kept. Each process makes its own dataset.

    Labels come from the dataset's `targets` (a Subset's and ConcatDataset's too) where it has them and they agree with
    32 samples spread over it; otherwise listing reads every sample once.
    """

    kind: ClassVar[str] = "torch"

    @classmethod
    def list(cls, location: str, options: InputOptions) -> Self:
        """Make the dataset and find its labels.

        Raises:
            UsageError: the function cannot be found or called; what it returns is no map-style dataset, has no length,
                is empty, or gives other samples each time it is asked.
        """
        PixelEncoding.parse(options.encoding)
        dataset = _make(location)
        length = _length(dataset, location)
        facts = {
            "encoding": options.encoding,
            "image": options.image_column,
            "label": options.label_column,
        }
        fields = (*USUAL_FIELDS, *(Field(*each) for each in options.columns))
        # `classes` names the labels that the dataset itself gives as such.
        class_names = _class_names(dataset) if options.label_column is None else None
        targets = _targets(dataset, length) if options.label_column is None else None
        builder = ListingBuilder()
        probed = set(range(0, length, max(1, length // _PROBED))) | {length - 1}
        seen = {row: _Seen(dataset, row, facts) for row in sorted(probed)}
        for row, first in seen.items():
            if first.digest != _Seen(dataset, row, facts).digest:
                raise UsageError(
                    "a dataset must give the same sample each time it is asked",
                    got=f"sample {row}, whose pixels differ",
                    remedy="Return it without random transforms; the loader augments.",
                )
            if targets is not None and first.reason is None and _plain_label(targets[row]) != first.label:
                targets = None
        ratio, mean = _planned_sizes(seen.values(), PixelEncoding.parse(options.encoding))
        for row in range(length):
            look = seen.get(row)
            if look is None and targets is None:
                look = _Seen(dataset, row, facts)
            label = look.label if look is not None else _plain_label(targets[row])  # type: ignore[index]
            # Given classes in another order than the source's must not shift its labels.
            if options.classes is not None and class_names and isinstance(label, int) and 0 <= label < len(class_names):
                label = class_names[label]
            builder.add(
                row_name(row),
                label=label,
                size=int(look.size * ratio) if look is not None else mean,
                stamp=look.digest if look is not None else 0,
                reason=look.reason if look is not None else None,
            )
        names = class_names if options.classes is None else options.classes
        listing = builder.finish(names, fields=fields, facts=facts, content=options.encoding)
        return cls(location, listing)

    def read(self, row: int) -> Record:
        """The sample, encoded. Raises SampleRejectedError: the dataset raised, or gave something else; see `Input`."""
        facts = self.listing.facts
        sample = _sample(self._dataset, row)
        picture, label = _parts(sample, facts)
        image = _picture(picture)
        stamp = int(self.listing.columns["stamp"][row])
        plain = _plain_label(label)
        if stamp and _digest(image, plain) != stamp:
            raise SampleRejectedError("a sample must not change between planning and reading")
        if not stamp and not self._agrees(row, plain):
            raise SampleRejectedError("a sample's label must be the one in `targets`", got=repr(plain))
        data = image if isinstance(image, bytes) else PixelEncoding.parse(facts["encoding"]).encode(image)
        return Record(data, {each.name: _value(sample, each) for each in self.fields[len(USUAL_FIELDS) :]})

    def _agrees(self, row: int, label: Any) -> bool:
        listed = int(self.labels[row])
        names = self.class_names
        own = _class_names(self._dataset) if self.listing.facts["label"] is None else None
        if isinstance(label, int):
            if own is None or own == names:
                return label == listed
            return 0 <= label < len(own) and own[label] == names[listed]
        return isinstance(label, str) and label == names[listed]

    @cached_property
    def _dataset(self) -> Any:
        return _make(self.location)


class _Seen:
    """What listing keeps of a sample it has read: label, digest, size of its pixels or bytes, reason to refuse it."""

    def __init__(self, dataset: Any, row: int, facts: Mapping[str, Any]) -> None:
        self.label: Any = None
        self.image: bytes | Image.Image = b""
        self.digest, self.size = 0, 0
        self.reason: str | None = None
        try:
            picture, label = _parts(_sample(dataset, row), facts)
            self.label = _plain_label(label)
            self.image = _picture(picture)
        except SampleRejectedError as error:
            self.reason = str(error)
            return
        self.digest = _digest(self.image, self.label)
        self.size = _raw_size(self.image)


def _raw_size(image: bytes | Image.Image) -> int:
    return len(image) if isinstance(image, bytes) else image.width * image.height * len(image.getbands())


def _planned_sizes(seen: Iterable[_Seen], encoding: PixelEncoding) -> tuple[float, int]:
    """Encoded bytes for each byte of pixels, and for each sample, of those that listing has read."""
    raw, encoded, count = 0, 0, 0
    for look in seen:
        if look.reason is None:
            try:
                encoded += len(look.image if isinstance(look.image, bytes) else encoding.encode(look.image))
            except SampleRejectedError:
                continue  # refused with its reason when it is read
            raw += look.size
            count += 1
    return (encoded / raw if raw else 1.0), encoded // max(1, count)


def _make(location: str) -> Any:
    module_name, colon, attribute = location.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError("a torch dataset is given as module:function", got=location)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
        dataset = found()
    except Exception as error:
        raise UsageError(
            f"{location} must be a function that can be imported, called without arguments, and returns a dataset",
            got=words_of(error),
            remedy="Run from the folder that holds its file, or set PYTHONPATH; wrap arguments in a function.",
        ) from error
    _require_map_style(dataset, location)
    return dataset


def _require_map_style(dataset: Any, location: str) -> None:
    from torch.utils.data import IterableDataset

    if isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")):
        raise UsageError(
            "a dataset must be map-style (__getitem__ and __len__)",
            got=f"{location} returns {type(dataset).__name__}, which can only be iterated",
            remedy="A killed conversion could not continue, and workers could not share it: write its samples to "
            "files, or return a map-style dataset over them.",
        )
    if not hasattr(dataset, "__getitem__"):
        raise UsageError(f"{location} must return a dataset with __getitem__ and __len__", got=type(dataset).__name__)


def _length(dataset: Any, location: str) -> int:
    try:
        length = len(dataset)
    except Exception as error:
        raise UsageError(
            f"the dataset of {location} must have a length",
            got=words_of(error),
            remedy="Give it __len__.",
        ) from error
    if not length:
        raise UsageError(f"the dataset of {location} must hold at least one sample", got="a length of 0")
    return length


def _sample(dataset: Any, row: int) -> Any:
    try:
        return dataset[row]
    except SampleRejectedError:
        raise
    except Exception as error:
        # Not str(error) of an OSError: it holds an absolute path, and rejects.jsonl must not.
        of_system = isinstance(error, OSError) and error.strerror
        words = f"{type(error).__name__}: {error.strerror}" if of_system else words_of(error)  # type: ignore[attr-defined]
        raise SampleRejectedError("the dataset must give the sample", got=words) from error


def _parts(sample: Any, facts: Mapping[str, Any]) -> tuple[Any, Any]:
    if isinstance(sample, Mapping):
        image = _entry(sample, "image", facts["image"], _IMAGE_KEYS)
        return image, _entry(sample, "label", facts["label"], _LABEL_KEYS)
    if isinstance(sample, tuple | list) and len(sample) == 2:
        return sample[0], sample[1]
    words = f"{type(sample).__name__} of {len(sample)}" if isinstance(sample, tuple | list) else type(sample).__name__
    raise SampleRejectedError("a sample must be (image, label) or a dictionary", got=words)


def _entry(sample: Mapping[Any, Any], what: str, asked: str | None, usual: Sequence[str]) -> Any:
    for key in (asked,) if asked is not None else usual:
        if key in sample:
            return sample[key]
    raise SampleRejectedError(
        f"a sample must have its {what}",
        got=f"the keys {', '.join(map(str, sample))}",
        remedy=f"Name the key (--{what}-column).",
    )


def _picture(value: Any) -> bytes | Image.Image:
    if isinstance(value, Image.Image):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if _is_tensor(value):
        return image_of_array(_array_of(value), "CHW")
    if isinstance(value, np.ndarray):
        return image_of_array(value, "HWC")
    raise SampleRejectedError(
        "an image must be a Pillow image, a tensor, an array or encoded bytes", got=type(value).__name__
    )


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _array_of(tensor: Any) -> np.ndarray:
    import torch

    plain = tensor.detach().cpu()
    array: np.ndarray = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    return array


def _plain_label(value: Any) -> Any:
    """int or str where it is one; everything else as it is, for the listing to refuse."""
    if _is_tensor(value) or isinstance(value, np.ndarray | np.generic):
        if value.ndim:
            return value
        value = value.item()
    return value


def _digest(image: bytes | Image.Image, label: Any) -> int:
    """Of pixels and label, never 0, below 2**63."""
    digest = xxhash.xxh3_64(repr(label).encode())
    if isinstance(image, bytes):
        digest.update(image)
    else:
        digest.update(f"{image.mode} {image.size}".encode())
        digest.update(image.tobytes())
        if image.mode == "P":
            digest.update(bytes(image.getpalette("RGB") or ()))
    return digest.intdigest() >> 1 or 1


def _value(sample: Any, field: Field) -> Any:
    if not isinstance(sample, Mapping) or field.name not in sample:
        raise SampleRejectedError(f"the sample must have a value for {field.name!r}")
    value = sample[field.name]
    return typed_value(_array_of(value) if _is_tensor(value) else value, field)


def _class_names(dataset: Any) -> tuple[str, ...] | None:
    """The dataset's `classes`, or those of the dataset that it is a part of."""
    found = getattr(dataset, "classes", None)
    if isinstance(found, list | tuple) and found:
        # ImageNet's are tuples of synonyms, and two of its classes have the same ones.
        names = [", ".join(map(str, each)) if isinstance(each, list | tuple) else str(each) for each in found]
        return tuple(f"{each} ({label})" if names.count(each) > 1 else each for label, each in enumerate(names))
    if hasattr(dataset, "dataset"):
        return _class_names(dataset.dataset)
    parts = {_class_names(each) for each in getattr(dataset, "datasets", ())}
    return parts.pop() if len(parts) == 1 else None


def _targets(dataset: Any, length: int) -> Sequence[Any] | None:
    """Labels by row, without reading samples; None where the dataset does not say."""
    from torch.utils.data import ConcatDataset, Subset

    found: Any = None
    if isinstance(dataset, Subset):
        inner = _targets(dataset.dataset, _length(dataset.dataset, "a Subset"))
        found = None if inner is None else [inner[index] for index in dataset.indices]
    elif isinstance(dataset, ConcatDataset):
        parts = [_targets(each, _length(each, "a ConcatDataset")) for each in dataset.datasets]
        found = None if any(each is None for each in parts) else [label for each in parts for label in each or ()]
    else:
        found = getattr(dataset, "targets", None)
        if found is not None and _is_tensor(found):
            found = _array_of(found).tolist()
        elif isinstance(found, np.ndarray):
            found = found.tolist()
    return found if isinstance(found, list | tuple) and len(found) == length else None
