"""Caffe's `Datum`, read from its protobuf bytes without protobuf or Caffe.

    message Datum { optional int32 channels = 1; height = 2; width = 3; optional bytes data = 4;
                    optional int32 label = 5; repeated float float_data = 6; optional bool encoded = 7; }

from caffe.proto, in protobuf's wire format: each field a varint tag (number << 3 | wire type) and its value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wellfed.pipeline.errors import SampleRejectedError

_VARINT, _EIGHT_BYTES, _COUNTED, _FOUR_BYTES = 0, 1, 2, 5
_WIRE_TYPES = {1: {_VARINT}, 2: {_VARINT}, 3: {_VARINT}, 4: {_COUNTED}, 5: {_VARINT}, 6: {_COUNTED, _FOUR_BYTES}}
_WIRE_TYPES[7] = {_VARINT}
_NAMES = {1: "channels", 2: "height", 3: "width", 5: "label", 7: "encoded"}


@dataclass(frozen=True)
class Datum:
    """A record; what it does not say is None.

    Attributes:
        data: an image file where `encoded`, else channels x height x width bytes.
        floats: it has values in float_data.
    """

    channels: int | None
    height: int | None
    width: int | None
    label: int | None
    data: memoryview | None
    floats: bool
    encoded: bool


def parse_datum(value: bytes | memoryview) -> Datum:
    """Read a record; no byte of its data is touched.

    Raises:
        ValueError: it is cut short, or no Datum: a field unknown or of another wire type, or without any data.
    """
    view = memoryview(value)
    numbers: dict[str, int] = {}
    data: memoryview | None = None
    floats = False
    place = 0
    while place < len(view):
        tag, place = _varint(view, place)
        field, wire = tag >> 3, tag & 7
        if wire not in _WIRE_TYPES.get(field, ()):
            raise ValueError(f"field {field} of wire type {wire} is none of a Datum's")
        if wire == _VARINT:
            number, place = _varint(view, place)
            # An int32 below 0 is written as its 64-bit two's complement.
            numbers[_NAMES[field]] = number - (1 << 64) if number >> 63 else number
            continue
        length = 4
        if wire == _COUNTED:
            length, place = _varint(view, place)
        if length > len(view) - place:
            raise ValueError(f"field {field} needs {length} bytes and {len(view) - place} are left")
        if field == 4:
            data = view[place : place + length]
        else:
            floats = True
        place += length
    if data is None and not floats:
        raise ValueError("it holds no data")
    return Datum(
        channels=numbers.get("channels"),
        height=numbers.get("height"),
        width=numbers.get("width"),
        label=numbers.get("label"),
        data=data,
        floats=floats,
        encoded=bool(numbers.get("encoded", 0)),
    )


def _varint(view: memoryview, place: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(view):
            raise ValueError("it ends inside a number")
        byte = view[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (1 << 64) - 1, place
    raise ValueError("a number is longer than 10 bytes")


def datum_pixels(datum: Datum) -> np.ndarray:
    """The pixels of a record that is not encoded, uint8: (height, width, 3) RGB, or (height, width) of one channel.

    Three channels are blue, green, red in a Datum, as Caffe's tools and OpenCV write them.

    Raises:
        SampleRejectedError: floats, another number of channels, or dimensions that the data does not fill.
    """
    if datum.data is None or datum.floats:
        raise SampleRejectedError("a Datum must hold bytes, not floats")
    shape = (datum.channels or 0, datum.height or 0, datum.width or 0)
    if shape[0] not in (1, 3) or min(shape) < 1:
        raise SampleRejectedError("a Datum must have 1 or 3 channels, and pixels", got="x".join(map(str, shape)))
    if shape[0] * shape[1] * shape[2] != len(datum.data):
        raise SampleRejectedError(
            "a Datum's data must be channels x height x width bytes",
            got=f"{len(datum.data)} bytes for {'x'.join(map(str, shape))}",
        )
    planes = np.frombuffer(datum.data, np.uint8).reshape(shape)
    return np.ascontiguousarray(planes[0] if shape[0] == 1 else planes[::-1].transpose(1, 2, 0))
