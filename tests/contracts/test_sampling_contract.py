"""Every way to sample: the same epochs on every backend and number of workers, shared by ranks, resumed exactly."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wellfed.converters import convert
from wellfed.pipeline import DataLoader, Mix
from wellfed.pipeline.errors import ConfigError, UsageError
from wellfed.pipeline.formats import Manifest, open_source

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

FIELDS = ("image", "class", "index", "key", "box", "flip", "valid")
BACKENDS = [("threads", 2), ("processes", 2)]
SUBSET = [0, 1, 2, 3, 5, 8, 13, 20, 21]


@pytest.fixture(scope="module")
def shards(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 23 images in shards of four."""
    made = tmp_path_factory.mktemp("sharded") / "photos"
    assert convert(image_folder, made, output="webdataset", workers=1, shard_samples=4).shards == 6
    return made


@pytest.fixture(scope="module")
def few(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four of the birds and one of the dogs in shards; no cat."""
    root = tmp_path_factory.mktemp("few")
    for name in (
        "bird/photo 00.jpg",
        "bird/photo 03.jpg",
        "bird/photo 06.jpg",
        "bird/photo 09.jpg",
        "dog/photo 02.jpg",
    ):
        (root / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "in" / name).write_bytes((image_folder / name).read_bytes())
    convert(root / "in", root / "out", output="webdataset", workers=1)
    return root / "out"


Open = Callable[..., Any]
WAYS = ("sharded", "subset", "balance", "weights", "subset and balance", "sharded and weights", "mix")


@pytest.fixture(params=WAYS)
def open_loader(request: pytest.FixtureRequest, shards: Path, few: Path) -> Open:
    """A loader that samples in one of these ways, by backend and number of workers."""
    given: dict[str, dict[str, Any]] = {
        "sharded": {"order": "sharded"},
        "subset": {"subset": SUBSET},
        "balance": {"balance": "class"},
        "weights": {"weights": np.arange(23)},
        "subset and balance": {"subset": SUBSET, "balance": "class"},
        "sharded and weights": {"order": "sharded", "weights": np.arange(23) % 3},
        "mix": {},
    }

    def make(backend: str = "threads", workers: int = 0, **options: Any) -> Any:
        source: Any = shards
        if request.param == "mix":
            source = Mix([(shards, 2), (few, 1)], classes="union", samples=21)
        options = {"batch_size": 4, "shuffle": True, "augment": "train", "image_size": 16, "seed": 3, **options}
        return DataLoader(
            source, backend=backend, num_workers=workers, fields=FIELDS, **given[request.param], **options
        )

    return make


def keys(batches: Any) -> list[int]:
    return [key for batch in batches for key in batch["key"][batch["valid"]].tolist()]


@pytest.mark.parametrize(("backend", "workers"), BACKENDS)
def test_every_backend_gives_the_same_two_epochs(open_loader: Open, backend: str, workers: int) -> None:
    with open_loader() as loader:
        expected = [batch for _ in range(2) for batch in loader]
    with open_loader(backend, workers) as loader:
        got = [batch for _ in range(2) for batch in loader]

    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        for field in FIELDS:
            assert torch.equal(one[field], other[field])
    half = len(got) // 2
    assert keys(got[:half]) != keys(got[half:])


@pytest.mark.parametrize("taken", [1, 2])
def test_a_state_resumes_with_another_backend_batch_size_and_ranks(open_loader: Open, taken: int) -> None:
    with open_loader() as loader:
        whole = list(loader)
        following = keys(loader)
    with open_loader("threads", 2) as loader:
        batches = iter(loader)
        seen = keys([next(batches) for _ in range(taken)])
        state = json.loads(json.dumps(loader.state_dict()))
    for rank in range(2):
        with open_loader("processes", 1, batch_size=2, rank=rank, world_size=2, tail="partial") as loader:
            loader.load_state_dict(state)
            seen += keys(loader)
    with open_loader() as loader:
        loader.load_state_dict({**state, "epoch": 1, "position": 0})
        assert keys(loader) == following

    assert Counter(seen) == Counter(keys(whole))


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("tail", ["drop", "pad", "partial"])
def test_len_is_the_number_of_batches_on_every_rank(open_loader: Open, tail: str, world_size: int) -> None:
    with open_loader() as loader:
        samples = len(keys(loader))
    seen: list[int] = []
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "tail": tail, "batch_size": 2}
        with open_loader(**options) as loader:
            batches = list(loader)
            assert len(batches) == len(loader)
            seen += keys(batches)
    step = 2 * world_size
    assert len(seen) == (samples // step * step if tail == "drop" else samples)


def test_a_state_of_another_way_to_sample_is_refused(open_loader: Open, shards: Path) -> None:
    with open_loader() as loader:
        state = loader.state_dict()
    plain = DataLoader(shards, shuffle=True, seed=3, num_workers=0)
    with plain, pytest.raises(ConfigError, match=r"the (dataset|order, subset and weights) it was taken with"):
        plain.load_state_dict(state)


def test_a_subset_by_keys_and_by_mask_is_the_same_and_gives_each_once(shards: Path) -> None:
    mask = np.isin(np.arange(23), SUBSET)
    for subset in (SUBSET, mask, torch.tensor(SUBSET[::-1])):
        loader: Any = DataLoader(shards, batch_size=4, image_size=8, subset=subset, num_workers=0, fields=("key",))
        with loader:
            assert [batch["key"].tolist() for batch in loader] == [[0, 1, 2, 3], [5, 8, 13, 20], [21]]


def test_a_subset_leaves_the_global_order_and_crops_of_its_samples_as_they_were(shards: Path) -> None:
    options: dict[str, Any] = {"shuffle": True, "augment": "train", "image_size": 8, "seed": 4, "num_workers": 0}
    options["fields"] = ("key", "box", "flip")
    whole: Any = DataLoader(shards, **options)
    part: Any = DataLoader(shards, subset=SUBSET, **options)
    with whole, part:
        kept = [batch for batch in whole if int(batch["key"]) in SUBSET]
        for one, other in zip(kept, part, strict=True):
            assert all(torch.equal(one[field], other[field]) for field in options["fields"])


def test_repeats_of_a_sample_have_crops_of_their_own(shards: Path) -> None:
    # given weights that draw nothing but one sample
    weights = np.zeros(23)
    weights[6] = 1
    options: dict[str, Any] = {"augment": "train", "shuffle": True, "batch_size": 23, "image_size": 8}
    for backend, workers in BACKENDS:
        loader: Any = DataLoader(
            shards, weights=weights, backend=backend, num_workers=workers, fields=("key", "box"), **options
        )
        with loader:
            (batch,) = loader
        assert batch["key"].tolist() == [6] * 23
        assert len({tuple(box) for box in batch["box"].tolist()}) > 15


def test_sharded_reads_each_shard_in_one_go(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given one stream and no window, when an epoch is read
    load = Manifest.load
    monkeypatch.setattr(Manifest, "load", lambda directory: _with_streams(load(directory), 1))
    monkeypatch.setattr("wellfed.pipeline.sampling.sharded.sharded_order.__kwdefaults__", {"window": 1})
    loader: Any = DataLoader(shards, shuffle=True, order="sharded", image_size=8, num_workers=0, fields=("index",))
    with loader:
        rows = [int(batch["index"]) for batch in loader]
    # then shard follows shard, each from its start to its end
    of_rows = [row // 4 for row in rows]
    assert len([one for one, other in itertools.pairwise(of_rows) if one != other]) == 5
    for shard in range(6):
        own = [row for row in rows if row // 4 == shard]
        assert own == sorted(own)


@pytest.mark.parametrize(("backend", "workers"), [("threads", 0), *BACKENDS])
def test_sharded_announces_each_shard_once_an_epoch(
    shards: Path, monkeypatch: pytest.MonkeyPatch, backend: str, workers: int
) -> None:
    # given shards of fewer bytes than the 4 MiB that are announced at once
    told: list[str] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *args: told.append(os.readlink(f"/proc/self/fd/{fd}")))
    options: dict[str, Any] = {"shuffle": True, "image_size": 8, "persistent_workers": False, "batch_size": 4}
    for order, times in (("sharded", 1), ("global", 0)):
        with DataLoader(shards, order=order, backend=backend, num_workers=workers, **options) as loader:
            for _ in range(2):
                told.clear()
                assert len(list(loader)) == 6
                assert sorted(told) == sorted(map(str, shards.glob("*.tar"))) * times


def _with_streams(manifest: Any, streams: int) -> Any:
    return dataclasses.replace(manifest, streams=streams)


def test_lmdb_has_a_sharded_order_too_and_a_folder_has_none(datasets: dict[str, Path]) -> None:
    with DataLoader(
        datasets["lmdb"], shuffle=True, order="sharded", image_size=8, num_workers=0, fields=("key",)
    ) as loader:
        assert sorted(keys_of_one(loader)) == list(range(23))
    with pytest.raises(UsageError, match=r"reads the shards of a converted dataset; got .* which is a folder"):
        DataLoader(datasets["folder"], shuffle=True, order="sharded")


def keys_of_one(loader: Any) -> list[int]:
    return [int(key) for batch in loader for key in batch["key"]]


def test_a_mix_maps_labels_by_name_and_names_samples_by_their_dataset(shards: Path, few: Path) -> None:
    mix = Mix([(shards, 1), (few, 1)], classes="union")
    assert mix.class_names == ("bird", "cat", "dog")
    assert len(mix) == 28
    loader: Any = DataLoader(mix, batch_size=7, image_size=8, num_workers=2, fields=("index", "class", "key"))
    with loader:
        for batch in loader:
            for row, label, key in zip(batch["index"], batch["class"], batch["key"], strict=True):
                source, own = mix.locate(int(row))
                assert mix.name(int(row)).split("/")[0] == mix.class_names[label]
                assert source.name(own) == mix.name(int(row))
                assert int(key) == int(source.index["key"][own]) + (1 << 40) * (int(row) >= 23)
    mix.close()


def test_a_mix_holds_its_shares_and_goes_on_where_an_epoch_stopped(shards: Path, few: Path) -> None:
    mix = Mix([(shards, 3), (few, 1)], classes="union", samples=8)
    seen: list[int] = []
    loader: Any = DataLoader(mix, batch_size=4, image_size=8, shuffle=True, num_workers=0, fields=("index",))
    with loader:
        assert len(loader) == 2
        for _ in range(4):
            for batch in loader:
                assert (batch["index"] >= 23).sum() == 1
                seen += batch["index"].tolist()
    large = [row for row in seen if row < 23]
    assert len(large) == 24
    assert sorted(set(large)) == list(range(23))


def test_what_a_mix_refuses(shards: Path, few: Path) -> None:
    one = open_source(shards)
    for parts, options, message in (
        ([(shards, 1), (few, 1)], {}, r"same classes in the same order.*class 1 is 'dog' instead of 'cat' in .*union"),
        ([], {}, r"\(dataset, weight\) pairs, 1 to 256"),
        ([shards], {}, r"\(dataset, weight\) pairs"),
        ([(shards, 0)], {}, "a weight being a positive number; got 0"),
        ([(shards, float("nan"))], {}, "a weight being a positive number"),
        ([(3, 1)], {}, "a path or an open source; got 'int'"),
        ([(shards, 1)], {"classes": "all"}, "classes is 'same' or 'union'"),
        ([(shards, 1)], {"samples": 0}, "a whole number from 1 on; got 0"),
        ([(few, 1)], {"samples": 6000, "classes": "union"}, "at most 1000 times"),
        ([(Mix([(one, 1)]), 1)], {}, "not of mixes"),
    ):
        with pytest.raises(UsageError, match=message):
            Mix(parts, **options)  # type: ignore[arg-type]
    given: dict[str, Any]
    for given, message in (
        ({"subset": [1]}, "subset is about one dataset"),
        ({"balance": "class", "shuffle": True}, "balance is about one dataset"),
        ({"weights": np.ones(23), "shuffle": True}, "weights is about one dataset"),
        ({"order": "sharded", "shuffle": True}, "order='sharded' is about one dataset"),
    ):
        with pytest.raises(UsageError, match=message):
            DataLoader(Mix([(one, 1)]), num_workers=0, **given)
    # A dataset that every epoch would leave out: of 10 samples its share is a hundredth.
    with pytest.raises(UsageError, match=r"a sample of an epoch's 10; got none for .*weight 1 of 1001.*more samples="):
        DataLoader(Mix([(one, 1000), (few, 1)], classes="union", samples=10), num_workers=0)
    one.close()


def test_rows_of_a_mix_are_chosen_as_rows_of_any_index(shards: Path, few: Path) -> None:
    mix = Mix([(shards, 1), (few, 1)], classes="union")
    keys = [*range(23), *((1 << 40) + key for key in range(5))]
    assert mix.index["key"].tolist() == keys
    birds = mix.index["label"] == 0
    for what in (slice(20, 26), np.array([3, 27, 3]), birds, 24):
        assert mix.index[what]["key"].tolist() == np.array(keys)[what].tolist()
    for outside in (28, -1, np.array([0, 30])):
        with pytest.raises(IndexError):
            mix.index[outside]
    mix.close()


def test_the_warning_about_classes_stored_one_after_another_names_the_callers_line(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given 23 samples of three classes in their order, of which 16 are mixed at a time
    monkeypatch.setattr("wellfed.pipeline.loader.selection.SHARDED_WINDOW", 1)
    with pytest.warns(UserWarning, match="mixes about 16 samples at a time") as caught:
        DataLoader(shards, shuffle=True, order="sharded", num_workers=0).close()
    assert caught[0].filename == __file__
