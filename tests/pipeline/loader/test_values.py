"""How values of samples become one value of a batch."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from wellfed.pipeline.loader.values import Ragged, collated, moved, opened, tensors_in

Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], torch.tensor([1, 2])),
        ([-(2**63), 2**63 - 1], torch.tensor([-(2**63), 2**63 - 1])),
        ([1, 2.5], torch.tensor([1.0, 2.5], dtype=torch.float64)),
        ([2**53, 0.5], torch.tensor([2.0**53, 0.5], dtype=torch.float64)),
        ([True, False], torch.tensor([True, False])),
        ([np.float32(0.5), 2], torch.tensor([0.5, 2.0], dtype=torch.float64)),
        ([np.array([1, 2], dtype=np.uint8)] * 2, torch.tensor([[1, 2], [1, 2]], dtype=torch.uint8)),
        ([np.array([1, 2], dtype=">i4")] * 2, torch.tensor([[1, 2], [1, 2]], dtype=torch.int32)),
        ([np.zeros((0, 3), np.float16)] * 2, torch.zeros((2, 0, 3), dtype=torch.float16)),
        ([np.array(3, dtype=np.int16)] * 2, torch.tensor([3, 3], dtype=torch.int16)),
        ([torch.tensor(True), np.array(False)], torch.tensor([True, False])),
    ],
)
def test_numbers_and_arrays_of_one_shape_become_a_tensor(values: list[Any], expected: torch.Tensor) -> None:
    got = collated(values)

    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        [b"a", b""],
        [{"a": 1}, {"a": 2}],
        [[1, 2], [3, 4]],
        [None, 1],
        [1, "a"],
        [True, 1],
        [2**63, 1],
        [2**53 + 1, 0.5],
        [torch.zeros(1), "text"],
        [np.zeros(2, np.longdouble)] * 2,
        [(1, 2), (1, 2, 3)],
    ],
)
def test_what_has_no_tensor_stays_a_list(values: list[Any]) -> None:
    got = collated(values)

    assert type(got) is list
    assert all(a is b for a, b in zip(got, values, strict=True))


def test_tensors_of_other_shapes_or_dtypes_become_a_list_in_one_block() -> None:
    tensors = [
        torch.arange(3),
        torch.zeros((0, 2), dtype=torch.bool),
        torch.tensor(1.5),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).T,
        torch.tensor([1j]),
    ]
    ragged = collated(tensors)
    there = moved(ragged, torch.device("cpu"))

    assert isinstance(ragged, Ragged)
    assert list(tensors_in(ragged)) == [ragged.block]
    for got, expected in zip(opened(there), tensors, strict=True):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        assert torch.equal(got, expected)


def test_tuples_are_collated_element_by_element() -> None:
    got = collated([Pair(1, (torch.zeros(2), "a")), Pair(2, (torch.ones(3), "b"))])
    shown = opened(got)

    assert isinstance(shown, Pair)
    assert shown.left.tolist() == [1, 2]
    assert [tensor.tolist() for tensor in shown.right[0]] == [[0.0, 0.0], [1.0, 1.0, 1.0]]
    assert shown.right[1] == ["a", "b"]


def test_images_lie_in_channels_last_memory() -> None:
    images = [torch.arange(12).view(3, 2, 2) + step for step in range(2)]
    got = collated(images, channels_last=True)

    assert got.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(got, torch.stack(images))
    assert collated(images).is_contiguous()


def test_what_is_collated_is_a_copy() -> None:
    array = np.zeros(2)
    array.setflags(write=False)
    collated([array])[0, 0] = 1
    opened(collated([array, np.zeros(3)]))[0][0] = 1

    assert array.tolist() == [0, 0]
