"""What libraries ask of a loader: torch's names, skipped batches, ranks that came later, and a torch DataLoader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler

from wellfed.pipeline import as_torch_loader
from wellfed.pipeline.errors import ConfigError, UsageError

KEYS: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 5, "fields": ("key",)}


def keys(batches: Any) -> list[list[int]]:
    return [batch["key"].tolist() for batch in batches]


@pytest.fixture
def epochs(open_loader: Any) -> list[list[list[int]]]:
    """Keys of the batches of three epochs: 11 samples by two, the last alone."""
    loader = open_loader(**KEYS)
    found = [keys(loader) for _ in range(3)]
    assert [len(epoch) for epoch in found] == [6, 6, 6]
    assert found[0] != found[1] != found[2]
    return found


def test_batch_size_and_drop_last_are_those_given(open_loader: Any) -> None:
    loader = open_loader(batch_size=3, drop_last=True)
    assert (loader.batch_size, loader.drop_last, loader.samples) == (3, True, 11)
    assert open_loader().drop_last is False


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_a_sampler_that_is_asked_for_is_absent_and_the_error_says_how_to_set_the_epoch(
    open_loader: Any, name: str
) -> None:
    loader = open_loader()
    assert not hasattr(loader, name)
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'.*loader\.set_epoch.*as_torch_loader"):
        getattr(loader, name)


def test_other_names_are_ordinary_attribute_errors(open_loader: Any) -> None:
    with pytest.raises(AttributeError, match=r"^'ImageLoader' object has no attribute 'colour'$"):
        _ = open_loader().colour


def test_an_iteration_that_no_batch_was_taken_from_is_no_epoch(open_loader: Any, epochs: Any) -> None:
    loader = open_loader(**KEYS)
    iter(loader)
    assert keys(loader) == epochs[0]
    iter(loader)
    loader.set_epoch(1)
    assert keys(loader) == epochs[1]
    batches = iter(loader)
    next(batches)
    iter(loader)
    assert loader.epoch == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_batches_are_left_out_of_the_next_epoch_alone(open_loader: Any, epochs: Any, workers: int) -> None:
    loader = open_loader(num_workers=workers, **KEYS)
    loader.skip(4)
    assert keys(loader) == epochs[0][4:]
    assert keys(loader) == epochs[1]
    loader.skip(6)
    assert keys(loader) == []
    loader.skip(0)
    # The epoch that was skipped as a whole is over.
    assert loader.epoch == 3


def test_skipping_in_the_middle_of_an_epoch_is_about_the_next(open_loader: Any, epochs: Any) -> None:
    loader = open_loader(**KEYS)
    next(iter(loader))
    loader.skip(5)
    assert keys(loader) == epochs[1][5:]


@pytest.mark.parametrize("tail", ["drop", "pad", "partial"])
@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_skips_its_own_batches(open_loader: Any, tail: str, rank: int) -> None:
    # given 11 samples on two ranks by two: two whole steps and three samples
    ranks: dict[str, Any] = {**KEYS, "rank": rank, "world_size": 2, "tail": tail}
    whole = keys(open_loader(**ranks))
    assert len(whole) == {"drop": 2, "pad": 3, "partial": 3}[tail]
    for done in range(len(whole) + 1):
        loader = open_loader(**ranks)
        loader.skip(done)
        assert keys(loader) == whole[done:]


@pytest.mark.parametrize("batches", [-1, 7, 1.0, True, None])
def test_only_batches_of_an_epoch_can_be_skipped(open_loader: Any, batches: Any) -> None:
    with pytest.raises(ConfigError, match=r"whole number from 0 to 6"):
        open_loader(**KEYS).skip(batches)


def test_a_loader_made_before_its_process_group_refuses_to_load_every_sample_on_each_rank(
    open_loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a loader that found no other ranks, and one that was told of none
    found, told = open_loader(**KEYS), open_loader(rank=0, world_size=1, **KEYS)
    # when the processes are set up after that
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    # then the first says so before its first batch, and the other does as it was told
    with pytest.raises(UsageError, match=r"made for rank 0 of 1 .*says rank 1 of 2.*train_dataloader\(\)"):
        iter(found)
    assert len(keys(told)) == 6
    assert len(keys(open_loader(**KEYS))) == 3


def test_a_torch_loader_gives_the_same_epochs(open_loader: Any, epochs: Any) -> None:
    loader = open_loader(**KEYS)
    torchs: Any = as_torch_loader(loader)
    assert torch.utils.data.DataLoader in type(torchs).__mro__
    assert (len(torchs), len(torchs.dataset)) == (6, 11)
    assert [keys(torchs), keys(torchs)] == epochs[:2]
    torchs.set_epoch(0)
    assert keys(torchs) == epochs[0]


def test_a_torch_loader_hands_over_its_state_in_the_middle(open_loader: Any, epochs: Any) -> None:
    stopped = as_torch_loader(open_loader(**KEYS))
    batches = iter(stopped)
    next(batches)
    next(batches)
    resumed = as_torch_loader(open_loader(num_workers=1, **KEYS))
    resumed.load_state_dict(stopped.state_dict())
    assert keys(resumed) == epochs[0][2:]
    assert keys(resumed) == epochs[1]


class Skipping(BatchSampler):
    """What libraries put around a batch sampler to resume."""

    def __init__(self, inner: Any, done: int) -> None:
        self.inner, self.done = inner, done

    def __iter__(self) -> Any:
        for number, batch in enumerate(self.inner):
            if number >= self.done:
                yield batch


def test_batches_that_a_library_skips_are_never_read(open_loader: Any, epochs: Any) -> None:
    loader = open_loader(**KEYS)
    torchs = as_torch_loader(loader)
    rest = torch.utils.data.DataLoader(
        torchs.dataset, batch_sampler=Skipping(torchs.batch_sampler, 4), collate_fn=torchs.collate_fn
    )
    assert keys(rest) == epochs[0][4:]
    # then two samples of the fifth batch and one of the last were decoded
    assert loader.decoded["cpu"].samples == 3


def test_dividing_a_torch_loader_over_ranks_once_more_is_refused(open_loader: Any) -> None:
    torchs = as_torch_loader(open_loader(**KEYS))
    batches = torchs.dataset
    assert torchs.batch_sampler is not None
    iter(torchs.batch_sampler)
    assert len(batches[0]["key"]) == 2
    with pytest.raises(UsageError, match=r"number 1 is next; got .*number 2.*prepare\(\)"):
        batches[2]
