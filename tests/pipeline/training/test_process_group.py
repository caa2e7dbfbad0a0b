"""The process group of a step: made where there is none, made again, and left alone where it is the program's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from wellfed.pipeline.training import process_group, stall
from wellfed.pipeline.training.process_group import (
    OwnGroup,
    as_rank_0,
    group_if_launched_alone,
    join_launched_group,
)
from wellfed.pipeline.tune.machine import loaders


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


def test_a_process_that_no_launcher_started_gets_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    join_launched_group("cpu")
    with group_if_launched_alone("cpu"):
        assert not dist.is_initialized()


def test_a_process_that_was_launched_alone_has_a_group_of_one_for_a_step_of_ddp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    with group_if_launched_alone("cpu"):
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    assert not dist.is_initialized()
    join_launched_group("cpu")
    assert dist.get_world_size() == 1
    # of several ranks, who make theirs together
    monkeypatch.setenv("WORLD_SIZE", "2")
    dist.destroy_process_group()
    with group_if_launched_alone("cpu"):
        assert not dist.is_initialized()


def test_all_ranks_of_a_launched_group_do_what_rank_0_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    monkeypatch.setenv("WORLD_SIZE", "2")
    # given ranks whose clocks disagree on whether there is time for another step
    process_group._launched_store.cache_clear()
    for number, wanted, by_rank_1 in ((4, True, False), (5, False, True)):
        monkeypatch.setenv("RANK", "0")
        assert as_rank_0(number, wanted) is wanted
        monkeypatch.setenv("RANK", "1")
        assert as_rank_0(number, by_rank_1) is wanted
    process_group._launched_store.cache_clear()


def test_a_process_that_was_launched_alone_does_what_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert [as_rank_0(4, True), as_rank_0(5, False)] == [True, False]


def test_a_rank_that_stands_still_is_noticed_before_the_one_that_waits_for_it_in_a_collective() -> None:
    assert loaders.STALL_SECONDS < process_group.GLOO_TIMEOUT_SECONDS < loaders.STALL_SECONDS + stall.GRACE_SECONDS
