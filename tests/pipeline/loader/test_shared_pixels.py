"""Shared memory for batches: lent, written by another process, and used again when nobody holds it."""

from __future__ import annotations

import os

import torch

from wellfed.pipeline.loader.shared_pixels import SharedPixels


def test_another_process_writes_what_is_handed_over() -> None:
    pixels = SharedPixels(blocks=2, block_bytes=12)
    block = pixels.take()
    assert block is not None
    child = os.fork()
    if child == 0:
        pixels.memory.pixels(block, (2, 2, 3)).fill_(7)
        os._exit(0)
    os.waitpid(child, 0)

    assert torch.equal(pixels.hand_over(block, (2, 2, 3)), torch.full((2, 2, 3), 7, dtype=torch.uint8))


def test_a_block_comes_back_with_the_last_view_of_it() -> None:
    pixels = SharedPixels(blocks=1, block_bytes=12)
    block = pixels.take()
    assert block == 0
    # in flight, then in use
    assert pixels.take() is None
    view = pixels.hand_over(block, (4, 3))[1:]
    assert pixels.take() is None

    del view

    assert pixels.take() == 0


def test_what_was_thrown_away_can_be_reclaimed_and_what_is_held_cannot() -> None:
    pixels = SharedPixels(blocks=2, block_bytes=12)
    first, second = pixels.take(), pixels.take()
    assert (first, second) == (0, 1)
    held = pixels.hand_over(0, (12,))

    pixels.reclaim()

    assert (pixels.take(), pixels.take()) == (1, None)
    assert held.shape == (12,)
