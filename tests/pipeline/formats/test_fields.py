"""Stored values are what numpy and json make of their bytes, or a reason."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from wellfed.pipeline.formats import fields
from wellfed.pipeline.formats.fields import BadValue, StoredField


def saved(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), allow_pickle=False, **options)
    return buffer.getvalue()


def value_of(kind: Any, data: bytes) -> Any:
    values = [fields._value(StoredField("it", kind, "it"), each) for each in (data, memoryview(data))]
    assert type(values[0]) is type(values[1])
    return values[0]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(5, dtype=np.int8),
        np.zeros((0, 4), dtype=np.float32),
        np.array([1, 2], dtype=">u2"),
        np.array([True, False]),
        np.array([1 + 2j]),
    ],
)
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_arrays_are_those_of_numpy(array: np.ndarray, version: tuple[int, int]) -> None:
    for _ in range(2):
        got = value_of("array", saved(array, version=version))
        assert got.dtype == array.dtype
        assert got.shape == array.shape
        assert np.array_equal(got, array)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:40],
        lambda data: b"",
        lambda data: data.replace(b"<i8", b"<i9"),
        lambda data: data.replace(b"(2, 3)", b"(2,-3)"),
        lambda data: data.replace(b"(2, 3)", b"(2, 3]"),
        lambda data: data.replace(b"(2, 3)", b"(9**9)"),
        lambda data: data.replace(b"'<i8'", b"'|O' "),
        lambda data: data.replace(b"{'", b"(\xff"),
    ],
)
def test_damaged_arrays_are_bad_values(damage: Any) -> None:
    whole = saved(np.arange(6).reshape(2, 3))
    assert damage(whole) != whole
    got = value_of("array", damage(whole))

    assert isinstance(got, BadValue)
    assert got.reason.startswith("its it is no array: ")


@pytest.mark.parametrize(
    ("kind", "data"),
    [("text", b"\xff"), ("number", b"1e"), ("json", b"{"), ("json", b"[" * 100_000), ("number", b'"1"')],
)
def test_other_values_that_do_not_parse_are_bad(kind: Any, data: bytes) -> None:
    assert isinstance(value_of(kind, data), BadValue)


@pytest.mark.parametrize(
    ("document", "kind", "expected"),
    [
        (b'{"fields": {"It": 1.5}}', "number", 1.5),
        (b'{"fields": {"it": "words"}}', "text", "words"),
        (b'{"fields": {"it": null}}', "json", None),
    ],
)
def test_values_inside_the_json_member_go_by_the_manifests_names(document: bytes, kind: Any, expected: Any) -> None:
    field = StoredField("it", kind, "json")
    assert fields._inside(field, fields._document(document)) == expected


def test_the_json_member_itself_may_be_anything() -> None:
    # Tars of other tools, indexed in place, hold lists and numbers there too.
    for text, expected in ((b"[1]", [1]), (b"3", 3), (b"null", None)):
        assert fields._inside(StoredField("json", "json", "json"), fields._document(text)) == expected


@pytest.mark.parametrize(
    "document",
    [b"[]", b"{", b"{}", b'{"fields": 1}', b'{"fields": {}}', b'{"fields": {"it": true}}', b"[" * 100_000],
)
def test_json_members_without_the_value_are_bad(document: bytes) -> None:
    field = StoredField("it", "number", "json")
    assert isinstance(fields._inside(field, fields._document(document)), BadValue)
