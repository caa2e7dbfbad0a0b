"""Epochs, position, state and batches of ImageLoader."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from wellfed.pipeline.errors import ConfigError, ResourceError, UsageError
from wellfed.pipeline.hardware import Fact
from wellfed.pipeline.loader import DataLoader
from wellfed.pipeline.loader import batch as batch_module
from wellfed.pipeline.loader import blocks as blocks_module
from wellfed.pipeline.loader import memory as memory_module
from wellfed.pipeline.loader.batch import BatchDecoder, BatchTask, HostBatch


def grays(images: torch.Tensor) -> list[int]:
    """The sample numbers that the pixels tell."""
    return [round(value / 20) for value in images.float().mean(dim=(1, 2, 3)).tolist()]


def rows(loader: Any) -> list[list[int]]:
    return [batch["index"].tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_pairs_are_uint8_channels_last_images_and_int64_labels(open_loader: Any, workers: int) -> None:
    loader = open_loader(num_workers=workers)

    batches = list(loader)

    assert len(batches) == len(loader) == 3
    images, labels = batches[1]
    assert images.dtype == torch.uint8
    assert images.shape == (4, 3, 8, 8)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [0, 0, 1, 1]
    assert [grays(images) for images, _ in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_fields_give_dictionaries_of_just_these(open_loader: Any) -> None:
    batch = next(iter(open_loader(fields=("index", "box", "flip", "valid", "key"))))

    assert list(batch) == ["index", "box", "flip", "valid", "key"]
    # 30 * 224 / 256 = 26.25, so the central square is 26 wide.
    assert batch["box"].tolist() == [[7, 2, 26, 26]] * 4
    assert batch["box"].dtype == torch.int32
    assert batch["flip"].dtype == batch["valid"].dtype == torch.bool
    assert batch["index"].dtype == batch["key"].dtype == torch.int64


@pytest.mark.parametrize("workers", [0, 2])
def test_each_iteration_is_the_next_epoch_also_after_leaving_one_early(open_loader: Any, workers: int) -> None:
    whole = open_loader(num_workers=workers, shuffle=True, fields=("index",))
    epochs = [rows(whole) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]

    early = open_loader(num_workers=workers, shuffle=True, fields=("index",))
    assert early.epoch == 0
    for batch in early:
        assert batch["index"].tolist() == epochs[0][0]
        break
    assert rows(early) == epochs[1]
    assert early.epoch == 2


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("workers", [0, 3])
def test_set_epoch_chooses_the_next_iteration(open_loader: Any, workers: int, persistent: bool) -> None:
    options = {"num_workers": workers, "persistent_workers": persistent, "shuffle": True, "fields": ("index",)}
    straight = open_loader(**options)
    epochs = [rows(straight) for _ in range(3)]

    loader = open_loader(**options)
    loader.set_epoch(2)
    assert rows(loader) == epochs[2]
    loader.set_epoch(0)
    assert rows(loader) == epochs[0]
    loader.set_epoch(1)
    assert rows(loader) == epochs[1]
    loader.set_epoch(1)
    assert rows(loader) == epochs[1]


@pytest.mark.parametrize("epoch", [-1, 1.0, True])
def test_an_epoch_is_a_whole_number_from_0(open_loader: Any, epoch: Any) -> None:
    with pytest.raises(ConfigError, match="whole number from 0"):
        open_loader().set_epoch(epoch)


def test_set_epoch_at_the_top_of_the_loop_keeps_a_loaded_position(open_loader: Any) -> None:
    loader = open_loader(fields=("index",))
    loader.load_state_dict({**loader.state_dict(), "epoch": 3, "position": 8})

    loader.set_epoch(3)

    assert rows(loader) == [[8, 9, 10]]


def test_the_state_counts_what_was_handed_over(open_loader: Any) -> None:
    loader = open_loader(num_workers=2, seed=5)
    states = [loader.state_dict()]
    for _ in loader:
        states.append(loader.state_dict())

    assert [(state["epoch"], state["position"]) for state in states] == [(0, 0), (0, 4), (0, 8), (1, 0)]
    assert states[0] == {
        "seed": 5,
        "shuffle": False,
        "sampling": "global",
        "epoch": 0,
        "position": 0,
        "fingerprint": loader.dataset.fingerprint,
    }


def test_the_state_after_dropping_the_tail_is_the_next_epoch(open_loader: Any) -> None:
    loader = open_loader(drop_last=True)
    batches = iter(loader)
    next(batches), next(batches)

    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)


def test_a_rank_without_a_last_batch_still_moves_to_the_next_epoch(open_loader: Any) -> None:
    # 11 samples in batches of 5 over 2 ranks leave one, which is rank 0's.
    loader = open_loader(batch_size=5, rank=1, world_size=2, tail="partial", fields=("index",))

    assert rows(loader) == [[5, 6, 7, 8, 9]]
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)
    assert rows(loader) == [[5, 6, 7, 8, 9]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_rank_with_no_batch_in_any_epoch_ends_at_once(open_loader: Any, workers: int) -> None:
    loader = open_loader(batch_size=20, rank=12, world_size=13, tail="partial", num_workers=workers)

    assert len(loader) == 0
    assert list(loader) == []
    assert loader.epoch == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "another"}, "with the dataset it was taken with"),
        ({"seed": 1}, "with the seed it was taken with"),
        ({"shuffle": True}, "with the shuffle it was taken with"),
        ({"position": 12}, "position of a state must be a whole number from 0 to 11; got 12"),
        ({"position": -1}, "position of a state"),
        ({"epoch": "2"}, "epoch of a state"),
        ({"more": 0}, "holds exactly seed, shuffle, sampling, epoch, position, fingerprint"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(open_loader: Any, change: dict[str, Any], message: str) -> None:
    loader = open_loader()
    with pytest.raises(ConfigError, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})


def test_an_older_loop_over_the_same_loader_is_told_that_a_newer_began(open_loader: Any) -> None:
    loader = open_loader(num_workers=2)
    older = iter(loader)
    next(older)
    newer = iter(loader)

    with pytest.raises(UsageError, match="one loop at a time"):
        next(older)
    assert len(list(newer)) == 3


def test_a_batch_is_never_written_again(open_loader: Any) -> None:
    loader = open_loader(num_workers=2, prefetch_factor=4)
    kept = [(images, images.clone()) for _ in range(3) for images, _ in loader]

    assert all(torch.equal(images, copy) for images, copy in kept)


@pytest.mark.parametrize(("persistent", "epochs"), [(True, {0, 1, 2}), (False, {0})])
def test_persistent_workers_decode_the_next_epochs_first_batches_ahead(
    open_loader: Any, monkeypatch: pytest.MonkeyPatch, persistent: bool, epochs: set[int]
) -> None:
    allocate, seen = BatchDecoder.allocate, []

    def noted(self: BatchDecoder, task: BatchTask, *memory: Any) -> HostBatch:
        seen.append(task.epoch)
        return allocate(self, task, *memory)

    monkeypatch.setattr(BatchDecoder, "allocate", noted)
    loader = open_loader(num_workers=2, prefetch_factor=2, persistent_workers=persistent)

    assert len(list(loader)) == 3

    assert set(seen) == epochs
    # 2 x 2 batches beyond the 3 that were used: all 3 of the next epoch and the first of the one after.
    assert len(seen) == (7 if persistent else 3)
    assert len(list(loader)) == 3


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_loader_says_that_it_cannot_be_copied(open_loader: Any, copied: Callable[[Any], Any]) -> None:
    with pytest.raises(UsageError, match=r"cannot be copied or pickled.*Make it in the process that uses it"):
        copied(open_loader())


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_memory_cannot_hold_are_refused(
    open_loader: Any, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    # given 11 samples, of 3 x 4096 x 4096 bytes each, when the machine has a gigabyte: before the first iteration
    with monkeypatch.context() as small:
        small.setattr(memory_module, "available_memory", lambda: Fact("memory", 1 << 30, "bytes", "test"))
        with pytest.raises(ResourceError, match=r"2 batches of 11 samples, 553648128 bytes each; got 1073741824 bytes"):
            open_loader(batch_size=64, image_size=4096, num_workers=workers)
        open_loader(batch_size=64, image_size=1024, num_workers=workers)
    # and when the allocation fails after all
    if workers == 0:
        monkeypatch.setattr(batch_module.torch, "empty", _refuse)
    else:
        monkeypatch.setattr(blocks_module.np, "empty", _refuse)
    with pytest.raises(ResourceError, match=r"2 batches of 4 samples, 768 bytes each; got MemoryError: no room"):
        next(iter(open_loader(num_workers=workers)))


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise MemoryError("no room")


def test_a_closed_loader_says_so(open_loader: Any) -> None:
    loader = open_loader(num_workers=1)
    with loader:
        next(iter(loader))
    loader.close()

    with pytest.raises(UsageError, match="closed loader"):
        iter(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dropped_loader_is_collected(open_loader: Any, image_folder: Any, workers: int) -> None:
    loader = DataLoader(image_folder, batch_size=4, image_size=8, num_workers=workers)
    next(iter(loader))
    gone = weakref.ref(loader)

    del loader
    gc.collect()

    assert gone() is None
