"""The order that reads shards in sequence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellfed.pipeline.config import Tail
from wellfed.pipeline.sampling import Shards, SingleSampling, cut_batches, sharded_order

# Four shards of three samples.
SHARDS = np.repeat(np.arange(4), 3)
KEYS = np.arange(12, dtype=np.uint64) + np.uint64(100)


def order(seed: int = 0, epoch: int = 0, streams: int = 2, window: int = 1) -> list[int]:
    return sharded_order(KEYS, SHARDS, seed=seed, epoch=epoch, streams=streams, window=window).tolist()


def test_with_a_window_of_one_each_stream_reads_whole_shards_from_start_to_end() -> None:
    whole = {0: [0, 1, 2], 3: [3, 4, 5], 6: [6, 7, 8], 9: [9, 10, 11]}
    for epoch in range(20):
        rows = order(epoch=epoch)
        # Twelve samples in two streams: six each, which are two shards.
        for stream in (rows[0::2], rows[1::2]):
            assert stream == whole[stream[0]] + whole[stream[3]]


def test_shards_come_in_another_order_each_epoch_and_in_every_order() -> None:
    firsts = {tuple(row // 3 for row in order(epoch=epoch, streams=1)[::3]) for epoch in range(400)}
    assert len(firsts) == 24  # all permutations of four shards
    assert order(epoch=3) == order(epoch=3)
    assert order(seed=1, epoch=3) != order(seed=2, epoch=3)


def test_the_sharded_order_stays_what_it_was() -> None:
    # A change here changes every user's order: it needs a new major version.
    assert order(window=4) == FIXED


FIXED = [0, 8, 1, 6, 2, 4, 10, 7, 11, 3, 9, 5]


@given(
    shards=st.lists(st.integers(0, 9), min_size=1, max_size=60).map(sorted),
    streams=st.integers(1, 9),
    window=st.integers(1, 30),
    epoch=st.integers(0, 3),
)
def test_no_sample_is_lost_or_moves_by_the_window_or_more(
    shards: list[int], streams: int, window: int, epoch: int
) -> None:
    keys, of_rows = np.arange(len(shards), dtype=np.uint64), np.array(shards)
    options = {"seed": 7, "epoch": epoch, "streams": streams}
    rows = sharded_order(keys, of_rows, window=window, **options)
    read = sharded_order(keys, of_rows, window=1, **options)

    assert sorted(rows.tolist()) == list(range(len(shards)))
    place = {row: at for at, row in enumerate(read.tolist())}
    # One place of a stream is `streams` places of the epoch.
    assert all(abs(at - place[row]) < window * streams for at, row in enumerate(rows.tolist()))


def test_a_window_as_long_as_the_data_mixes_a_stream() -> None:
    keys = np.arange(4000, dtype=np.uint64)
    rows = sharded_order(keys, keys // np.uint64(500), seed=0, epoch=0, streams=1, window=500)
    moved = np.abs(np.diff(rows))
    # Neighbours in the order are hardly ever neighbours in a shard.
    assert (moved == 1).mean() < 0.02


@pytest.mark.parametrize(("world_size", "streams_read"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_ranks_whose_number_divides_the_streams_share_no_shard(world_size: int, streams_read: int) -> None:
    # given 4 streams of 16 samples, each one shard
    index = np.zeros(64, dtype=[("key", "<u8"), ("label", "<i8")])
    index["key"] = np.arange(64)
    shards = Shards(of_rows=np.repeat(np.arange(4), 16), streams=4)
    sampling = SingleSampling(index=index, seed=0, shuffle=True, identity="", shards=shards)
    rows = sampling.epoch(0).rows
    seen = []
    for rank in range(world_size):
        plans = cut_batches(
            rows, position=0, batch_size=2, rank=rank, world_size=world_size, tail="drop", share=sampling.share
        )
        own = np.concatenate([plan.rows for plan in plans])
        seen += own.tolist()
        # then a rank reads the shards of its streams alone
        assert len(set((own // 16).tolist())) == streams_read
    assert sorted(seen) == list(range(64))


def test_strided_ranks_take_every_other_sample_under_every_tail() -> None:
    order = np.arange(11)

    def cut(rank: int, tail: Tail) -> list[list[int]]:
        plans = cut_batches(order, position=0, batch_size=2, rank=rank, world_size=2, tail=tail, share="strided")
        return [plan.rows[plan.valid].tolist() for plan in plans]

    assert cut(0, "drop") == [[0, 2], [4, 6]]
    assert cut(1, "drop") == [[1, 3], [5, 7]]
    assert cut(0, "partial") == [[0, 2], [4, 6], [8, 10]]
    assert cut(1, "partial") == [[1, 3], [5, 7], [9]]
    assert cut(0, "pad") == [[0, 2], [4, 6], [8, 10]]
    assert cut(1, "pad") == [[1, 3], [5, 7], [9]]
