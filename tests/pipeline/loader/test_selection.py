"""Subsets, weights and orders that do not fit the dataset or each other are refused with the reason."""

from __future__ import annotations

import tracemalloc
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wellfed.pipeline.config import LoaderConfig, LoaderSettings
from wellfed.pipeline.errors import ConfigError, UsageError
from wellfed.pipeline.formats import open_source
from wellfed.pipeline.formats.index import index_dtype
from wellfed.pipeline.loader.selection import make_sampling


def config(**options: Any) -> LoaderConfig:
    return LoaderConfig(settings=LoaderSettings(), **{"shuffle": True, **options})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subset": []}, "at least one sample"),
        ({"subset": np.zeros(11, bool)}, "at least one sample"),
        ({"subset": np.ones(10, bool)}, "one value for each of the 11 samples.*got 10 values"),
        ({"subset": [3, 3]}, "names each key once; got 1 repeats"),
        ({"subset": [-1]}, "whole numbers from 0 on; got -1"),
        ({"subset": [2, 11, 40]}, "got 2 that are not, such as 11"),
        ({"subset": [1.5]}, "keys .whole numbers. or a mask .bool.; got an array of float64"),
        ({"subset": ["a"]}, "got an array of <U1"),
        ({"subset": 5}, "one dimension; got 'int'"),
        ({"subset": [[1], [2]]}, r"got shape \(2, 1\)"),
        ({"subset": [[1], [2, 3]]}, "one dimension"),
        ({"weights": [1, 2]}, "one for each of the 11 samples.*got 2 of int64"),
        ({"weights": ["a"] * 11}, "numbers, one for each"),
        ({"weights": [-1] + [1] * 10}, "at least 0, and not all 0"),
        ({"weights": [np.nan] * 11}, "finite numbers"),
        ({"weights": [0] * 11}, "not all 0"),
        ({"weights": [1] + [0] * 10, "subset": [4]}, "not all 0"),
    ],
)
def test_what_does_not_fit_the_dataset_is_refused(image_folder: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_sampling(open_source(image_folder), config(), **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"balance": "class", "weights": [1] * 11}, "only one can be given"),
        ({"balance": "class", "shuffle": False}, "balance draws a new order each epoch, so it needs shuffle=True"),
        ({"weights": [1] * 11, "shuffle": False}, "weights draws a new order"),
        ({"order": "sharded", "shuffle": False}, "order='sharded' draws a new order"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(open_loader: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_loader(**{"shuffle": True, **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [({"order": "random"}, "order must be one of"), ({"balance": "size"}, "balance must be one of")],
)
def test_unknown_ways_are_refused(open_loader: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_loader(**given)


def test_dropping_from_a_subset_smaller_than_a_batch_is_refused(open_loader: Any) -> None:
    with pytest.raises(UsageError, match="at least one batch over all ranks, 4 x 1; got 3 samples"):
        open_loader(subset=[1, 2, 3], drop_last=True)


def stored(samples: int, *, labels: np.ndarray | None = None, streams: int = 16) -> Any:
    """What selection asks of a stored dataset, of any size."""
    index = np.zeros(samples, dtype=index_dtype(("image",)))
    index["key"] = np.arange(samples)
    index["label"] = np.arange(samples) % 1000 if labels is None else labels
    source = SimpleNamespace(index=index, location="set", kind="webdataset", shards=np.arange(samples) // 1000)
    source.manifest = SimpleNamespace(streams=streams)
    return _Sized(source)


class _Sized:
    def __init__(self, source: Any) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __len__(self) -> int:
        return len(self._source.index)


def test_sharded_warns_where_the_dataset_is_stored_class_by_class() -> None:
    # 16 streams x 512 samples are mixed at a time.
    with pytest.warns(UserWarning, match=r"mixes about 8192 samples at a time.*--shuffle SEED"):
        make_sampling(stored(8193, labels=np.arange(8193) // 100), config(order="sharded"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_sampling(stored(8192, labels=np.arange(8192) // 100), config(order="sharded"))
        make_sampling(stored(8193), config(order="sharded"))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"order": "sharded"},
        {"balance": "class"},
        {"subset": np.arange(0, 200_000, 2)},
        {"weights": np.arange(200_000)},
    ],
)
def test_samplings_hold_arrays_and_no_lists(given: dict[str, Any]) -> None:
    # given 200,000 samples, when three epochs are drawn
    source = stored(200_000)
    arrays = {name: given[name] for name in ("subset", "weights") if name in given}
    options = {name: value for name, value in given.items() if name not in arrays}
    tracemalloc.start()
    sampling = make_sampling(source, config(**options), **arrays)
    held = [tracemalloc.get_traced_memory()[0]]
    for epoch in range(3):
        rows = sampling.epoch(epoch)
        assert len(rows.rows) == sampling.samples
        del rows
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # then what stays is at most the rows and weights, 16 bytes a sample (a list of numbers takes 36), and does not grow
    assert held[0] < 3.5e6
    assert held[3] - held[1] < 50_000
