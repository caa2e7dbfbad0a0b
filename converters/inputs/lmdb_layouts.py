"""What the records of other tools' LMDB environments mean: images, Caffe Datums or pickles; BasicSR's list of keys."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from wellfed.pipeline.decode.header import read_header
from wellfed.pipeline.errors import SampleRejectedError, UsageError, words_of

from .datum import datum_pixels, parse_datum
from .pixels import PixelEncoding, image_of_array

Layout = Literal["image", "datum", "pickle"]

META_NAME = "meta_info.txt"
_META_LINE = re.compile(r"(?P<name>.+) \(\d+,\d+(?:,\d+)?\)(?: \d+)?")
_METADATA_KEY = re.compile(rb"__\w+__")
_IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "data")
_LABEL_NAMES = ("label", "cls", "class", "target")


def is_metadata(key: bytes) -> bool:
    """Whether a key, such as `__len__`, is a remark of the tool that wrote the environment."""
    return _METADATA_KEY.fullmatch(key) is not None


def layout_of(value: bytes | memoryview) -> Layout | None:
    """What a record is, from its bytes; None for none of the layouts."""
    data = bytes(value)
    try:
        read_header(data)
        return "image"
    except SampleRejectedError:
        pass  # no image: one of the others
    # Protocol 2 and later: PROTO and its number first, STOP last.
    if len(data) > 2 and data[0] == 0x80 and 2 <= data[1] <= 5 and data.endswith(b"."):
        return "pickle"
    try:
        parse_datum(data)
        return "datum"
    except ValueError:
        return None


def meta_names(path: Path) -> Iterator[bytes]:
    """Image names of a BasicSR `meta_info.txt`: lines of `NAME (HEIGHT,WIDTH,CHANNELS) COMPRESSION`.

    Raises:
        UsageError: a line that is none, with its number.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            text = line.rstrip(b"\r\n").decode("utf-8", "surrogateescape")
            if not text:
                continue
            match = _META_LINE.fullmatch(text)
            if match is None:
                raise UsageError(
                    f"each line of {META_NAME} must be NAME (HEIGHT,WIDTH,CHANNELS) COMPRESSION",
                    got=f"line {number}: {text[:100]!r}",
                    remedy="Write the list again with the tool that made the environment.",
                )
            yield match["name"].encode("utf-8", "surrogateescape")


def datum_label(value: bytes | memoryview) -> int | None:
    """The label of a Datum.

    Raises:
        SampleRejectedError: it is no Datum.
    """
    try:
        return parse_datum(value).label
    except ValueError as error:
        raise SampleRejectedError("the record must be a Caffe Datum", got=str(error)) from error


def datum_image(value: bytes, encoding: PixelEncoding) -> bytes:
    """The image file of a Datum; pixels that are not encoded yet are encoded.

    Raises:
        SampleRejectedError: it is no Datum, or its pixels cannot be stored.
    """
    try:
        datum = parse_datum(value)
    except ValueError as error:
        raise SampleRejectedError("the record must be a Caffe Datum", got=str(error)) from error
    if datum.encoded and datum.data is not None:
        return bytes(datum.data)
    return encoding.encode(Image.fromarray(datum_pixels(datum)))


def unpickled(value: bytes | memoryview, image_name: str | None, label_name: str | None) -> tuple[Any, Any]:
    """Image and label (None where it has none) of a pickled record. Runs what the pickle says: only when allowed.

    A record is the image alone, a pair (image, label), or a mapping with `image_name` and `label_name`, or, where
    those are not given, with the usual names.

    Raises:
        SampleRejectedError: it does not unpickle, or is something else.
    """
    try:
        record = pickle.loads(bytes(value))
    except Exception as error:
        # A pickle runs any code, which raises anything.
        raise SampleRejectedError("the record must unpickle", got=words_of(error)) from error
    if isinstance(record, Mapping):
        image = _entry(record, image_name, _IMAGE_NAMES, "image")
        return image, _plain_label(_entry(record, label_name, _LABEL_NAMES, None))
    if isinstance(record, tuple | list) and len(record) == 2:
        return record[0], _plain_label(record[1])
    if isinstance(record, tuple | list):
        raise SampleRejectedError(
            "a pickled record must be an image, a pair (image, label) or a mapping", got=f"{len(record)} values"
        )
    return record, None


def _entry(record: Mapping[Any, Any], given: str | None, usual: tuple[str, ...], needed: str | None) -> Any:
    for name in (given,) if given is not None else usual:
        if name in record:
            return record[name]
    if needed is None and given is None:
        return None
    raise SampleRejectedError(
        f"a pickled mapping must have {repr(given) if given else 'an image'}",
        got=", ".join(sorted(map(str, record)))[:200],
    )


def _plain_label(label: Any) -> Any:
    # Arrays and tensors of one element, without importing torch.
    if not isinstance(label, int | str | float | None) and hasattr(label, "item") and getattr(label, "size", 1) in (1,):
        return label.item()
    return label.item() if hasattr(label, "numel") and label.numel() == 1 else label


def pickled_image(image: Any, encoding: PixelEncoding) -> bytes:
    """The image file of an unpickled image: bytes as they are; an array or a Pillow image encoded.

    Raises:
        SampleRejectedError: it is something else, or its pixels cannot be stored.
    """
    if isinstance(image, bytes | bytearray):
        return bytes(image)
    if isinstance(image, Image.Image):
        return encoding.encode(image)
    if hasattr(image, "__array__"):
        return encoding.encode(image_of_array(np.asarray(image), "HWC"))
    raise SampleRejectedError(
        "a pickled image must be bytes, an array or a Pillow image", got=f"{type(image).__name__}"
    )
