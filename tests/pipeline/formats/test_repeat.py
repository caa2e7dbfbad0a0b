from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.formats import Mix, RepeatedSource, Source, open_source


def test_each_copy_has_keys_of_its_own_and_the_same_images(any_folder: Path) -> None:
    source = open_source(any_folder)
    repeated = RepeatedSource(source, 3)
    assert isinstance(repeated, Source)
    assert len(repeated) == 9
    assert repeated.index["key"].tolist() == [0, 2, 3, 4, 6, 7, 8, 10, 11]
    assert repeated.index["label"].tolist() == [0, 0, 1] * 3
    assert [repeated.read(row) for row in (1, 4, 7)] == [source.read(1)] * 3
    assert repeated.name(5) == "dog/c.jpg"
    assert (repeated.kind, repeated.location) == (source.kind, source.location)
    assert repeated.class_names == ("cat", "dog")
    assert source.index["key"].tolist() == [0, 2, 3]
    repeated.close()


def test_only_more_than_one_copy_is_another_dataset(any_folder: Path) -> None:
    source = open_source(any_folder)
    assert RepeatedSource(source, 1).fingerprint == source.fingerprint
    fingerprints = {RepeatedSource(source, times).fingerprint for times in (1, 2, 3)}
    assert len(fingerprints) == 3


def test_pickles_small_whatever_the_copies(any_folder: Path) -> None:
    repeated = RepeatedSource(open_source(any_folder), 1000)
    assert len(repeated.index) == 3000
    pickled = pickle.dumps(repeated)
    assert len(pickled) < 1200
    again = pickle.loads(pickled)
    assert again.index["key"].tolist() == repeated.index["key"].tolist()
    assert again.read(2999) == repeated.read(2)


@pytest.mark.parametrize("row", [-1, 6])
def test_rows_outside_are_index_errors(any_folder: Path, row: int) -> None:
    repeated = RepeatedSource(open_source(any_folder), 2)
    with pytest.raises(IndexError):
        repeated.read(row)


@pytest.mark.parametrize("times", [0, -1, 2.0, True, "2", 1 << 63])
def test_copies_must_be_countable(any_folder: Path, times: object) -> None:
    with pytest.raises(UsageError):
        RepeatedSource(open_source(any_folder), times)  # type: ignore[arg-type]


def test_a_mix_is_repeated_like_any_dataset(any_folder: Path) -> None:
    mix = Mix([(any_folder, 1), (any_folder, 2)])
    source = RepeatedSource(mix, 2)
    own = mix.index[:]

    assert len(source) == 2 * len(mix)
    assert source.index["label"].tolist() == own["label"].tolist() * 2
    assert source.index["key"].tolist() == sorted(set(source.index["key"].tolist()))
    rows = np.array([1, len(mix) + 1, len(source) - 1])
    assert [bytes(data) for data in source.read_rows(rows)] == [
        mix.read(1),
        mix.read(1),
        mix.read(len(mix) - 1),
    ]
