"""The process group of a step: made where there is none, made again, and left alone where it is the program's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from wellfed.pipeline.training.process_group import OwnGroup, join_launched_group


@pytest.fixture(autouse=True)
def _no_group() -> Iterator[None]:
    assert not dist.is_initialized()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_a_group_is_made_where_there_is_none_made_again_and_ended() -> None:
    with OwnGroup(dist.HashStore(), 0, 1, "cpu") as group:
        assert group.owned
        assert not group.can_abort
        first = dist.group.WORLD
        assert dist.get_backend() == "gloo"
        group.make_again()
        assert dist.group.WORLD is not first
        ones = torch.ones(1)
        dist.all_reduce(ones)
        assert ones.item() == 1.0
    assert not dist.is_initialized()


def test_the_programs_own_group_is_left_alone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    before = dist.group.WORLD
    with OwnGroup(dist.HashStore(), 0, 1, "cpu") as group:
        assert not group.owned
        group.abort()
        group.make_again()
        assert dist.group.WORLD is before
    assert dist.group.WORLD is before


def test_a_process_that_was_launched_alone_gets_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    join_launched_group("cpu")
    monkeypatch.setenv("WORLD_SIZE", "1")
    join_launched_group("cpu")
    assert not dist.is_initialized()
