"""The order of an epoch and its cut, with cuts worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellfed.pipeline.config import Tail
from wellfed.pipeline.errors import ConfigError, UsageError
from wellfed.pipeline.sampling import BatchPlan, cut_batches, epoch_order, steps_left


def cut(samples: int, batch_size: int, rank: int, world_size: int, tail: Tail, position: int = 0) -> list[BatchPlan]:
    order = np.arange(samples, dtype=np.int64)
    return list(
        cut_batches(order, position=position, batch_size=batch_size, rank=rank, world_size=world_size, tail=tail)
    )


def spans(plans: list[BatchPlan]) -> list[tuple[int, int]]:
    """First and last row of each batch; rows within are consecutive."""
    for plan in plans:
        real = plan.rows[plan.valid]
        assert len(real) == 0 or np.array_equal(real, np.arange(real[0], real[0] + len(real)))
    return [(int(plan.rows[0]), int(plan.rows[-1])) for plan in plans]


# Order


def test_without_shuffle_the_order_is_that_of_the_keys() -> None:
    keys = np.array([3, 8, 20], dtype=np.uint64)

    assert epoch_order(keys, seed=9, epoch=4, shuffle=False).tolist() == [0, 1, 2]


def test_a_shuffled_order_is_a_permutation_fixed_by_seed_and_epoch() -> None:
    keys = np.arange(101, dtype=np.uint64)

    order = epoch_order(keys, seed=1, epoch=0, shuffle=True)

    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(101))
    assert np.array_equal(order, epoch_order(keys, seed=1, epoch=0, shuffle=True))
    assert not np.array_equal(order, epoch_order(keys, seed=1, epoch=1, shuffle=True))
    assert not np.array_equal(order, epoch_order(keys, seed=2, epoch=0, shuffle=True))


def test_the_shuffled_order_of_eight_keys_stays_what_it_was() -> None:
    # A change here changes every user's order: it needs a new major version.
    order = epoch_order(np.arange(8, dtype=np.uint64), seed=0, epoch=0, shuffle=True)

    assert order.tolist() == [6, 1, 2, 4, 5, 0, 3, 7]


def test_removing_samples_leaves_the_order_of_the_others() -> None:
    keys = np.arange(50, dtype=np.uint64)
    kept = np.delete(keys, [4, 17, 30])

    whole = keys[epoch_order(keys, seed=5, epoch=2, shuffle=True)]
    fewer = kept[epoch_order(kept, seed=5, epoch=2, shuffle=True)]

    assert fewer.tolist() == [key for key in whole.tolist() if key not in (4, 17, 30)]


def test_an_order_has_every_sample_at_every_place_about_equally_often() -> None:
    places = np.zeros((10, 10))
    for epoch in range(2000):
        order = epoch_order(np.arange(10, dtype=np.uint64), seed=0, epoch=epoch, shuffle=True)
        places[np.arange(10), order] += 1

    # Expected 200 in each of the 100 cells; chi-squared with 81 degrees of freedom is below 127 at p = 0.999.
    assert ((places - 200) ** 2 / 200).sum() < 127


# 100, 101 and 1 samples in batches of 10, cut by hand


def test_100_samples_on_one_rank_are_ten_whole_batches_under_every_tail() -> None:
    for tail in ("drop", "pad", "partial"):
        plans = cut(100, 10, 0, 1, tail)

        assert spans(plans) == [(first, first + 9) for first in range(0, 100, 10)]
        assert all(plan.valid.all() and len(plan.valid) == 10 for plan in plans)
        assert [plan.position_after for plan in plans] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
        assert [plan.number for plan in plans] == list(range(10))


def test_100_samples_on_two_ranks_are_five_whole_batches_each() -> None:
    for tail in ("drop", "pad", "partial"):
        assert spans(cut(100, 10, 0, 2, tail)) == [(0, 9), (20, 29), (40, 49), (60, 69), (80, 89)]
        assert spans(cut(100, 10, 1, 2, tail)) == [(10, 19), (30, 39), (50, 59), (70, 79), (90, 99)]


def test_100_samples_on_three_ranks_drop() -> None:
    assert [spans(cut(100, 10, rank, 3, "drop")) for rank in range(3)] == [
        [(0, 9), (30, 39), (60, 69)],
        [(10, 19), (40, 49), (70, 79)],
        [(20, 29), (50, 59), (80, 89)],
    ]


def test_100_samples_on_three_ranks_pad_with_the_head_of_the_order() -> None:
    # 90..99 are left for 30 places: rank 0 has them all, ranks 1 and 2 repeat rows 0..9 and 10..19.
    last = [cut(100, 10, rank, 3, "pad")[3] for rank in range(3)]

    assert last[0].rows.tolist() == list(range(90, 100))
    assert last[1].rows.tolist() == list(range(10))
    assert last[2].rows.tolist() == list(range(10, 20))
    assert [plan.valid.tolist() for plan in last] == [[True] * 10, [False] * 10, [False] * 10]
    assert [plan.position_after for plan in last] == [100, 100, 100]


def test_100_samples_on_three_ranks_partial_share_the_rest_4_3_3() -> None:
    assert [spans(cut(100, 10, rank, 3, "partial"))[3] for rank in range(3)] == [(90, 93), (94, 96), (97, 99)]


def test_101_samples_on_one_rank() -> None:
    assert len(cut(101, 10, 0, 1, "drop")) == 10
    padded = cut(101, 10, 0, 1, "pad")[10]
    assert padded.rows.tolist() == [100, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert padded.valid.tolist() == [True] + [False] * 9
    partial = cut(101, 10, 0, 1, "partial")[10]
    assert partial.rows.tolist() == [100]
    assert partial.valid.tolist() == [True]


def test_101_samples_on_two_ranks() -> None:
    assert [len(cut(101, 10, rank, 2, "drop")) for rank in range(2)] == [5, 5]
    padded = [cut(101, 10, rank, 2, "pad")[5] for rank in range(2)]
    assert padded[0].rows.tolist() == [100, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert padded[1].rows.tolist() == [9, 10, 11, 12, 13, 14, 15, 16, 17, 18]
    assert [int(plan.valid.sum()) for plan in padded] == [1, 0]
    assert [len(cut(101, 10, rank, 2, "partial")) for rank in range(2)] == [6, 5]


def test_101_samples_on_three_ranks() -> None:
    assert [len(cut(101, 10, rank, 3, "drop")) for rank in range(3)] == [3, 3, 3]
    padded = [cut(101, 10, rank, 3, "pad")[3] for rank in range(3)]
    assert padded[0].rows.tolist() == [90, 91, 92, 93, 94, 95, 96, 97, 98, 99]
    assert padded[1].rows.tolist() == [100, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert padded[2].rows.tolist() == [9, 10, 11, 12, 13, 14, 15, 16, 17, 18]
    assert [int(plan.valid.sum()) for plan in padded] == [10, 1, 0]
    # 11 left: 4, 4, 3.
    assert [spans(cut(101, 10, rank, 3, "partial"))[3] for rank in range(3)] == [(90, 93), (94, 97), (98, 100)]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_one_sample(world_size: int) -> None:
    for rank in range(world_size):
        with pytest.raises(UsageError, match=f"one batch over all ranks, 10 x {world_size}; got 1 samples"):
            cut(1, 10, rank, world_size, "drop")
        (padded,) = cut(1, 10, rank, world_size, "pad")
        assert padded.rows.tolist() == [0] * 10
        assert padded.valid.tolist() == [rank == 0] + [False] * 9
        partial = cut(1, 10, rank, world_size, "partial")
        assert [plan.rows.tolist() for plan in partial] == ([[0]] if rank == 0 else [])


def test_no_samples_have_no_batches() -> None:
    assert cut(0, 10, 0, 1, "pad") == []
    assert cut(0, 10, 0, 1, "partial") == []


@pytest.mark.parametrize("position", [-1, 101])
def test_a_position_outside_the_epoch_is_refused(position: int) -> None:
    with pytest.raises(ConfigError, match="between 0 and the 100 samples"):
        cut(100, 10, 0, 1, "partial", position)


def test_at_the_end_of_the_epoch_nothing_is_left() -> None:
    for tail in ("drop", "pad", "partial"):
        assert cut(100, 10, 0, 1, tail, 100) == []
        assert steps_left(100, position=100, batch_size=10, world_size=1, rank=0, tail=tail) == 0


# Properties over any sizes

SIZES = {
    "samples": st.integers(1, 120),
    "batch_size": st.integers(1, 17),
    "world_size": st.integers(1, 5),
    "tail": st.sampled_from(["drop", "pad", "partial"]),
}


@given(**SIZES)
def test_each_sample_is_seen_as_often_as_its_tail_says(
    samples: int, batch_size: int, world_size: int, tail: Tail
) -> None:
    if tail == "drop" and samples < batch_size * world_size:
        return
    ranks = [cut(samples, batch_size, rank, world_size, tail) for rank in range(world_size)]
    seen = np.concatenate([plan.rows[plan.valid] for plans in ranks for plan in plans] or [np.empty(0, np.int64)])

    assert len(seen) == len(set(seen.tolist()))
    if tail == "drop":
        assert len(seen) == samples // (batch_size * world_size) * batch_size * world_size
    else:
        assert sorted(seen.tolist()) == list(range(samples))
    if tail != "partial":
        assert len({len(plans) for plans in ranks}) == 1
        assert all(len(plan.rows) == batch_size for plans in ranks for plan in plans)
    for rank, plans in enumerate(ranks):
        left = steps_left(samples, position=0, batch_size=batch_size, world_size=world_size, rank=rank, tail=tail)
        assert left == len(plans)


@given(**SIZES, after=st.integers(0, 10), new_world_size=st.integers(1, 5), new_batch_size=st.integers(1, 17))
def test_a_run_resumed_on_other_ranks_and_batches_sees_just_what_was_left(
    samples: int, batch_size: int, world_size: int, tail: Tail, after: int, new_world_size: int, new_batch_size: int
) -> None:
    if tail == "drop" and samples < max(batch_size * world_size, new_batch_size * new_world_size):
        return
    before = [cut(samples, batch_size, rank, world_size, tail)[:after] for rank in range(world_size)]
    # Every rank saves the same position, except ranks that the partial tail left without a last batch.
    position = max((plans[-1].position_after for plans in before if plans), default=0)
    resumed = [cut(samples, new_batch_size, r, new_world_size, tail, position) for r in range(new_world_size)]

    seen = [row for plans in before + resumed for plan in plans for row in plan.rows[plan.valid].tolist()]
    assert len(seen) == len(set(seen))
    if tail == "drop":
        assert samples - len(seen) < max(batch_size * world_size, new_batch_size * new_world_size)
    else:
        assert sorted(seen) == list(range(samples))


def test_a_run_resumed_unchanged_continues_with_the_very_same_batches() -> None:
    for tail in ("drop", "pad", "partial"):
        whole = cut(101, 10, 1, 2, tail)
        rest = cut(101, 10, 1, 2, tail, whole[1].position_after)

        assert [plan.rows.tolist() for plan in rest] == [plan.rows.tolist() for plan in whole[2:]]
        assert [plan.valid.tolist() for plan in rest] == [plan.valid.tolist() for plan in whole[2:]]
