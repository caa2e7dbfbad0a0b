"""Recycled host memory: a block is used again only when nothing shares its storage any more."""

from __future__ import annotations

import gc
import sys

import torch

from wellfed.pipeline.loader.blocks import Blocks


def test_memory_comes_back_when_its_tensor_is_dropped() -> None:
    blocks = Blocks(spare=2)
    # given a tensor and where it lies
    first = blocks.uint8((4, 5, 6, 3))
    assert (first.shape, first.dtype) == ((4, 5, 6, 3), torch.uint8)
    place = first.data_ptr()
    # when it is dropped
    del first
    gc.collect()
    # then the next one lies there, a smaller one too
    second = blocks.uint8((4, 5, 6, 3))
    assert second.data_ptr() == place
    del second
    assert blocks.uint8((2, 5, 6, 3)).data_ptr() == place


def test_a_view_keeps_the_memory_from_being_used_again() -> None:
    blocks = Blocks(spare=2)
    # given a view of a tensor that is gone itself
    whole = blocks.uint8((4, 5, 6, 3))
    whole.fill_(7)
    view = whole.permute(0, 3, 1, 2)[1, 0]
    place = whole.data_ptr()
    del whole
    gc.collect()
    # when others are made and written
    others = [blocks.uint8((4, 5, 6, 3)).fill_(9) for _ in range(3)]
    # then none of them is the view's memory
    assert place not in [other.data_ptr() for other in others]
    assert view.tolist() == [[7] * 6] * 5


def test_numpy_shares_the_storage_too() -> None:
    blocks = Blocks(spare=1)
    array = blocks.uint8((8,)).fill_(7).numpy()
    blocks.uint8((8,)).fill_(9)
    assert array.tolist() == [7] * 8


def test_a_larger_batch_gets_memory_of_its_own() -> None:
    blocks = Blocks(spare=1)
    small = blocks.uint8((8,))
    del small
    assert blocks.uint8((16,)).fill_(3).tolist() == [3] * 16
    # and no more than `spare` blocks are kept
    many = [blocks.uint8((16,)) for _ in range(4)]
    del many
    assert len(blocks._blocks) == 1


def test_nothing_of_python_runs_when_memory_comes_back() -> None:
    # A Ctrl-C that strikes while a weak reference's callback runs is lost, and batches are freed in the training loop.
    blocks = Blocks(spare=2)
    tensor = blocks.uint8((8,))
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    del tensor
    sys.setprofile(None)
    assert called == []
