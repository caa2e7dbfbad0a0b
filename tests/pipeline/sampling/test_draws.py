"""Epochs that do not hold each sample once: weights, balance, shares of a mix."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellfed.pipeline.sampling import (
    MixSampling,
    Shards,
    SingleSampling,
    class_weights,
    draws,
    epochs,
    sharded_order,
    shares,
    with_repeats,
)
from wellfed.pipeline.sampling.draws import cycled_rows, merged, weighted_rows


def keys(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint64)


@given(
    weights=st.lists(st.floats(0, 100), min_size=1, max_size=40).filter(lambda each: sum(each) > 1e-3),
    epoch=st.integers(0, 5),
)
def test_each_row_is_drawn_its_share_rounded_down_or_up(weights: list[float], epoch: int) -> None:
    count = len(weights)
    rows, repeats = weighted_rows(keys(count), np.array(weights), seed=3, epoch=epoch)

    assert len(rows) == count
    drawn = Counter(rows.tolist())
    for row, weight in enumerate(weights):
        expected = count * weight / sum(weights)
        assert expected - 1.000001 < drawn[row] < expected + 1.000001
        assert sorted(repeats[rows == row].tolist()) == list(range(drawn[row]))


def test_a_start_just_below_one_draws_no_row_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    # given the largest start there is, 1 - 2**-53, which added to 3 rounds to 4
    largest = np.uint64(2**64 - 1)
    monkeypatch.setattr(
        draws,
        "sample_hash",
        lambda seed, epoch, keys, draw: np.full(len(keys), largest) if draw == draws.OFFSET_DRAW else np.arange(3),
    )
    assert float(largest >> np.uint64(11)) * 2.0**-53 + 3 == 4
    rows, repeats = weighted_rows(keys(3), np.ones(3), seed=0, epoch=0)
    # then an epoch has three samples all the same
    assert len(rows) == len(repeats) == 3
    assert set(rows.tolist()) <= {0, 1, 2}


def test_drawn_rows_ascend_so_that_a_sharded_order_reads_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    # given two shards of six, one stream and no window, and weights that draw some samples twice
    monkeypatch.setattr(epochs, "sharded_order", partial(sharded_order, window=1))
    index = np.zeros(12, dtype=[("key", "<u8"), ("label", "<i8")])
    index["key"] = keys(12)
    sampling = SingleSampling(
        index=index,
        seed=0,
        shuffle=True,
        identity="",
        weights=np.array([1.0, 2, 1, 0, 1, 2] * 2),
        shards=Shards(of_rows=np.repeat([0, 1], 6), streams=1),
    )
    for epoch in range(5):
        rows = sampling.epoch(epoch).rows
        # then one shard follows the other, each from its start to its end
        first = rows[: int((rows // 6 == rows[0] // 6).sum())]
        assert len(set((first // 6).tolist())) == 1
        for part in (first, rows[len(first) :]):
            assert part.tolist() == sorted(part.tolist())


def test_over_many_epochs_rows_are_drawn_as_their_weights_say() -> None:
    weights = np.array([1.0, 2.0, 3.0, 0.0, 4.0])
    drawn = np.zeros(5)
    for epoch in range(2000):
        rows, _ = weighted_rows(keys(5), weights, seed=0, epoch=epoch)
        drawn += np.bincount(rows, minlength=5)
    # Of 10,000 draws; the spread of a row's mean is below sqrt(2000) / 2.
    assert np.abs(drawn - np.array([1000, 2000, 3000, 0, 4000])).max() < 100


def test_classes_are_drawn_equally_often() -> None:
    labels = np.array([0] * 50 + [1] * 5 + [4] * 5)
    index = np.zeros(60, dtype=[("key", "<u8"), ("label", "<i8")])
    index["key"], index["label"] = keys(60), labels
    sampling = SingleSampling(
        index=index, seed=1, shuffle=True, identity="", weights=class_weights(labels), by_class=True
    )
    assert class_weights(np.array([7, 7, 2])).tolist() == [0.5, 0.5, 1.0]
    for epoch in range(10):
        rows = sampling.epoch(epoch).rows
        assert np.abs(np.bincount(labels[rows], minlength=5) - [20, 20, 0, 0, 20]).max() <= 1
        # 20 places for 5 samples: each 4 times; 20 for 50: none twice.
        assert set(Counter(rows[labels[rows] == 1].tolist()).values()) <= {3, 4, 5}
        assert set(Counter(rows[labels[rows] == 0].tolist()).values()) == {1}
    assert sampling.epoch(1).rows.tolist() != sampling.epoch(2).rows.tolist()


def test_a_repeat_draws_other_crops() -> None:
    assert with_repeats(keys(3), None).tolist() == [0, 1, 2]
    assert with_repeats(keys(3), np.array([0, 1, 2])).tolist() == [0, 1 + (1 << 48), 2 + (2 << 48)]


@pytest.mark.parametrize(
    ("samples", "weights", "expected"),
    [
        (10, [1, 1], [5, 5]),
        (10, [0.7, 0.2, 0.1], [7, 2, 1]),
        (10, [1, 1, 1], [4, 3, 3]),  # 3.33 each: the first takes the one that is left
        (11, [2, 1], [7, 4]),  # 7.33 and 3.67: the larger rest takes it
        (1, [1, 1000], [0, 1]),
    ],
)
def test_shares(samples: int, weights: list[float], expected: list[int]) -> None:
    assert shares(samples, weights) == expected


def test_cycles_show_every_sample_before_one_is_shown_again() -> None:
    seen: list[int] = []
    for epoch in range(5):
        rows, passes = cycled_rows(keys(7), 3, seed=0, epoch=epoch, shuffle=True)
        assert len(rows) == 3
        assert passes.tolist() == sorted(passes.tolist())
        seen += rows.tolist()
    assert sorted(seen[:7]) == sorted(seen[7:14]) == list(range(7))
    assert seen[:7] != seen[7:14]

    rows, passes = cycled_rows(keys(3), 8, seed=0, epoch=1, shuffle=False)
    # Places 8..15 of 0 1 2 0 1 2 ...: the last of a pass, two whole ones, the first of another.
    assert rows.tolist() == [2, 0, 1, 2, 0, 1, 2, 0]
    assert passes.tolist() == [0, 1, 1, 1, 2, 2, 2, 3]


def test_sequences_are_merged_evenly() -> None:
    # Places (j + 1/2) / length: 1/8 3/8 5/8 7/8 of the first, 1/4 3/4 of the second.
    assert merged([4, 2]).tolist() == [0, 4, 1, 2, 5, 3]
    assert merged([0, 2]).tolist() == [0, 1]


def test_a_mix_holds_its_shares_in_every_stretch() -> None:
    sampling = MixSampling(
        keys=[lambda: keys(100), lambda: keys(10)],
        lengths=[100, 10],
        weights=[3, 1],
        samples=80,
        seed=5,
        shuffle=True,
        identity="",
    )
    epoch = sampling.epoch(2)
    assert epoch.repeats is not None
    for start in range(0, 80, 8):
        assert 1 <= (epoch.rows[start : start + 8] >= 100).sum() <= 3
    assert (epoch.rows < 100).sum() == 60
    # Twenty of ten samples: each twice, once as a repeat.
    again = epoch.rows >= 100
    assert Counter(epoch.rows[again].tolist()) == dict.fromkeys(range(100, 110), 2)
    assert epoch.repeats[again].tolist() == sorted(epoch.repeats[again].tolist())
