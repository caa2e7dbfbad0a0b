"""Shared memory for batches: lent, written by another process, and used again when nobody holds it."""

from __future__ import annotations

import errno
import os
import threading
import time

import numpy as np
import pytest
import torch

from wellfed.pipeline.loader.shared_pixels import SharedPixels


def mapped() -> list[str]:
    """Lines of this process's memory map about files without a name in /dev/shm."""
    with open("/proc/self/maps") as lines:
        return [line for line in lines if "/dev/shm/" in line and line.rstrip().endswith("(deleted)")]


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
    array = view.numpy()[1:]
    del view
    assert pixels.take() is None
    again = torch.from_dlpack(array)
    del array
    assert pixels.take() is None

    del again

    assert pixels.take() == 0


def test_what_was_thrown_away_can_be_reclaimed_and_what_is_held_cannot() -> None:
    pixels = SharedPixels(blocks=2, block_bytes=12)
    first, second = pixels.take(), pixels.take()
    assert (first, second) == (0, 1)
    held = pixels.hand_over(0, (12,))

    pixels.reclaim()

    assert (pixels.take(), pixels.take()) == (1, None)
    assert held.shape == (12,)


def test_a_block_is_handed_over_once() -> None:
    # Twice, it would come back twice, and two batches would be written to it.
    pixels = SharedPixels(blocks=2, block_bytes=12)
    assert pixels.take() == 0
    pixels.give_back(0)
    with pytest.raises(KeyError):
        pixels.give_back(0)
    assert (pixels.take(), pixels.take(), pixels.take()) == (0, 1, None)


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="the system has no /dev/shm")
def test_blocks_lie_in_dev_shm_without_a_name() -> None:
    before, names = len(mapped()), set(os.listdir("/dev/shm"))
    pixels = SharedPixels(blocks=2, block_bytes=12)
    assert len(mapped()) == before + 1
    assert not [name for name in set(os.listdir("/dev/shm")) - names if name.startswith("tmp")]
    file = os.fstat(pixels.memory._file)
    assert file.st_dev == os.stat("/dev/shm").st_dev
    # Nothing is taken until a block is.
    assert (file.st_nlink, file.st_size, file.st_blocks) == (0, 2 * 4096, 0)

    pixels.take()

    # 4,096 bytes in units of 512.
    assert os.fstat(pixels.memory._file).st_blocks == 8


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="the system has no /dev/shm")
def test_a_batch_that_is_kept_keeps_its_own_block_alone() -> None:
    # given three blocks, one of them held by the user, one in flight and one free
    pixels = SharedPixels(blocks=3, block_bytes=4096)
    for _ in range(3):
        pixels.take()
    kept = pixels.hand_over(0, (4096,)).fill_(5)
    pixels.give_back(1)
    file = os.dup(pixels.memory._file)

    pixels.release()
    del pixels

    assert os.fstat(file).st_blocks == 8
    assert torch.equal(kept, torch.full((4096,), 5, dtype=torch.uint8))
    os.close(file)


def test_a_block_for_which_there_is_no_memory_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = SharedPixels(blocks=2, block_bytes=12)
    assert pixels.take() == 0

    def full(file: int, start: int, size: int) -> None:
        assert (start, size) == (4096, 4096)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space left"):
            pixels.take()
        pixels.give_back(0)
        assert pixels.take() == 0
    # once there is some
    assert pixels.take() == 1


def test_blocks_are_handed_over_in_one_thread_while_another_takes_them() -> None:
    """torch's pinning thread hands over, copies and lets go, while the loop's thread takes."""
    pixels = SharedPixels(blocks=3, block_bytes=64)
    batches = 2_000
    ready: list[tuple[int, int]] = []
    wrong: list[int] = []
    done = threading.Event()

    def pin() -> None:
        while not done.is_set() or ready:
            if not ready:
                time.sleep(0)
                continue
            block, value = ready.pop(0)
            tensor = pixels.hand_over(block, (64,))
            if not bool((tensor == value).all()):
                wrong.append(value)
            del tensor

    thread = threading.Thread(target=pin)
    thread.start()
    taken = 0
    try:
        # Until as many were taken, however the system shares the time between the two: a lost block ends it unequal.
        deadline = time.monotonic() + 60
        while taken < batches and time.monotonic() < deadline:
            block = pixels.take()
            if block is None:
                time.sleep(0)
                continue
            # as a worker would
            np.asarray(pixels.memory.rows[block])[:64] = taken % 256
            ready.append((block, taken % 256))
            taken += 1
    finally:
        done.set()
        thread.join()

    assert wrong == []
    assert taken == batches
    assert sorted(filter(lambda block: block is not None, (pixels.take() for _ in range(4)))) == [0, 1, 2]  # type: ignore[type-var]
