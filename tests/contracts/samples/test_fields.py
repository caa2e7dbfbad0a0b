"""Stored fields come with every backend, with or without the image, in the order and with the state of images."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wellfed.pipeline import Mix, open_source
from wellfed.pipeline.errors import ConfigError, CorruptSampleError, MissingDependencyError
from wellfed.pipeline.formats import RepeatedSource
from wellfed.pipeline.loader import batch as decoding
from wellfed.pipeline.loader import dali

Case = tuple[str, int]
Open = Callable[..., Any]
Facts = list[dict[str, Any]]

STORED = ("caption", "second_text", "count", "score", "boxes", "blob", "tokens", "fixed")


def check(batch: dict[str, Any], facts: Facts, device: str) -> None:
    """Against what was converted, by the rows that the batch says it holds."""
    wanted = [facts[row] for row in batch["index"].tolist()]
    for name in ("caption", "second_text", "boxes", "blob"):
        assert batch[name] == [fact[name] for fact in wanted]
    expected = {
        "count": torch.tensor([fact["count"] for fact in wanted], dtype=torch.int64),
        "score": torch.tensor([fact["score"] for fact in wanted], dtype=torch.float64),
        "fixed": torch.tensor([fact["fixed"] for fact in wanted], dtype=torch.int64),
    }
    for name, values in expected.items():
        assert batch[name].device.type == device
        assert batch[name].dtype == values.dtype
        assert torch.equal(batch[name].cpu(), values)
    for tokens, fact in zip(batch["tokens"], wanted, strict=True):
        assert tokens.device.type == device
        assert tokens.tolist() == fact["tokens"]


def keys_of(batches: list[dict[str, Any]]) -> list[int]:
    return [key for batch in batches for key in batch["key"].tolist()]


@pytest.fixture(scope="module")
def epochs(open_rich: Open) -> list[dict[str, Any]]:
    """Two epochs with images, decoded in the calling thread."""
    with open_rich(fields=("image", "class", "index", "key", "box")) as loader:
        return [batch for _ in range(2) for batch in loader]


@pytest.mark.parametrize("kind", ["webdataset", "lmdb"])
def test_fields_come_with_the_image(
    open_rich: Open, facts: Facts, epochs: list[dict[str, Any]], case: Case, kind: str
) -> None:
    device = "cuda" if "@" in case[0] else "cpu"
    with open_rich(case, kind, fields=("image", "class", "index", "key", "box", *STORED)) as loader:
        got = [batch for _ in range(2) for batch in loader]

    assert [len(batch["key"]) for batch in got] == [5, 5, 5, 2] * 2
    for batch, expected in zip(got, epochs, strict=True):
        check(batch, facts, device)
        assert batch["image"].device.type == device
        for name in ("class", "index", "key", "box"):
            assert torch.equal(batch[name].cpu(), expected[name])
        assert (batch["image"].cpu().float() - expected["image"].float()).abs().mean() < 3


@pytest.mark.parametrize("kind", ["webdataset", "lmdb"])
def test_fields_come_without_the_image(
    open_rich: Open, facts: Facts, epochs: list[dict[str, Any]], case: Case, kind: str
) -> None:
    with open_rich(case, kind, fields=("index", "key", "class", "valid", *STORED)) as loader:
        got = [batch for _ in range(2) for batch in loader]

    for batch, expected in zip(got, epochs, strict=True):
        check(batch, facts, "cuda" if "@" in case[0] else "cpu")
        assert all(torch.equal(batch[name].cpu(), expected[name]) for name in ("class", "index", "key"))


@pytest.mark.parametrize("backend", ["threads", "dali", "nvjpeg", "hybrid"])
def test_an_image_that_is_not_asked_for_is_neither_read_nor_decoded(
    open_rich: Open, facts: Facts, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("an image was read")

    def absent(*_: Any) -> Any:
        raise MissingDependencyError("DALI must be there")

    monkeypatch.setattr(decoding, "read_encoded", never)
    monkeypatch.setattr(decoding, "decode_files", never)
    monkeypatch.setattr(decoding, "decode_chunk", never)
    monkeypatch.setattr(dali, "require_dali", absent)
    options = {"gpu_share": None} if backend != "hybrid" else {}
    with open_rich((backend, 2), "webdataset", fields=("index", *STORED), **options) as loader:
        batches = list(loader)

    for batch in batches:
        check(batch, facts, "cpu")


def test_a_run_without_images_resumes_from_the_state_of_one_with_them(
    open_rich: Open, facts: Facts, epochs: list[dict[str, Any]]
) -> None:
    with open_rich(fields=("image", "key")) as loader:
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
    for case in (("threads", 2), ("processes", 1)):
        with open_rich(case, fields=("index", "key", *STORED)) as loader:
            loader.load_state_dict(state)
            got = [batch for _ in range(2) for batch in loader]
        assert keys_of(got) == keys_of(epochs)[5:]
        check(got[0], facts, "cpu")


@pytest.mark.parametrize(("tail", "steps", "kept"), [("drop", 1, 10), ("pad", 2, 17), ("partial", 2, 17)])
def test_ranks_share_an_epoch_as_the_tail_says(
    open_rich: Open, facts: Facts, epochs: list[dict[str, Any]], tail: str, steps: int, kept: int
) -> None:
    real = []
    for rank in range(2):
        options = {"rank": rank, "world_size": 2, "tail": tail, "fields": ("index", "key", "valid", *STORED)}
        with open_rich(("threads", 2), **options) as loader:
            batches = list(loader)
        assert len(batches) == steps
        for batch in batches:
            check(batch, facts, "cpu")
            real += batch["key"][batch["valid"]].tolist()

    assert sorted(real) == sorted(keys_of(epochs[:4])[:kept])


def test_a_subset_and_a_balanced_draw_hold_their_own_fields(open_rich: Open, facts: Facts) -> None:
    chosen = np.array([1, 2, 3, 5, 8, 13])
    options = {"subset": chosen, "balance": "class", "batch_size": 6, "fields": ("class", "index", *STORED)}
    with open_rich(("threads", 2), **options) as loader:
        (batch,) = list(loader)

    check(batch, facts, "cpu")
    assert set(batch["index"].tolist()) <= set(chosen.tolist())
    assert batch["class"].tolist().count(0) == 3


def test_sharded_order_reads_fields_in_the_same_order_as_images(open_rich: Open, facts: Facts) -> None:
    orders = []
    for names in (("image", "index", "key"), ("index", "key", *STORED)):
        with open_rich(("threads", 2), "webdataset", order="sharded", fields=names) as loader:
            batches = list(loader)
        orders.append(keys_of(batches))
    for batch in batches:
        check(batch, facts, "cpu")

    assert orders[0] == orders[1]


def test_a_mix_has_the_fields_that_all_of_its_datasets_have(
    open_rich: Open, rich: dict[str, Path], facts: Facts
) -> None:
    mix = Mix([(rich["lmdb"], 1), (rich["webdataset"], 1)])
    with open_rich(("processes", 1), mix, fields=("index", *STORED), batch_size=34) as loader:
        (batch,) = list(loader)
    assert sorted(batch["index"].tolist()) == list(range(34))
    check({**batch, "index": batch["index"] % 17}, facts, "cpu")
    mix.close()


def test_a_mix_with_a_folder_of_images_has_only_images(
    open_rich: Open, rich: dict[str, Path], image_folder: Path
) -> None:
    mix = Mix([(rich["lmdb"], 1), (image_folder, 1)], classes="union")
    with open_rich(("threads", 1), mix, fields=("image", "class")) as loader:
        assert len(list(loader)) == 8
    with pytest.raises(ConfigError, match="got 'caption'"):
        open_rich(("threads", 1), mix, fields=("image", "caption"))
    mix.close()


def test_repeated_rows_have_their_own_fields(open_rich: Open, rich: dict[str, Path], facts: Facts) -> None:
    source = RepeatedSource(open_source(rich["webdataset"]), 2)
    with open_rich(("threads", 1), source, fields=("index", *STORED), batch_size=34) as loader:
        (batch,) = list(loader)
    check({**batch, "index": batch["index"] % 17}, facts, "cpu")
    source.close()


def test_the_json_member_can_be_asked_for(open_rich: Open, facts: Facts) -> None:
    with open_rich(fields=("json", "index"), shuffle=False) as loader:
        batch = next(iter(loader))

    assert [document["class"] for document in batch["json"]] == ["cat", "dog", "cat", "dog", "cat"]
    assert batch["json"][3]["fields"]["Second Text"] == "text 3"


def test_a_stored_field_called_as_the_loaders_own_has_a_name_of_its_own(open_rich: Open) -> None:
    with open_rich(("processes", 1), shuffle=False, fields=("box", "stored:box", "stored:caption")) as loader:
        batch = next(iter(loader))

    assert batch["box"].shape == (5, 4)
    assert batch["stored:box"] == [f"box {row}" for row in range(5)]
    assert batch["stored:caption"][1] == "Bild 1, größer"
    with pytest.raises(ConfigError, match="got 'stored:flip'"):
        open_rich(fields=("stored:flip",))


def test_an_unknown_field_is_refused_with_those_that_are_there(open_rich: Open) -> None:
    with pytest.raises(ConfigError) as caught:
        open_rich(fields=("image", "Caption"))

    assert str(caught.value).endswith(
        "image, class, caption, blob, tokens, fixed, json, second_text, count, score, boxes, box, and the "
        "loader's own, "
        "index, key, box, flip, valid; got 'Caption'. Name one of those."
    )


@pytest.fixture(scope="module")
def damaged(rich: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Row 3 has tokens that are no array and row 8 has no JSON, which opening the dataset does not show."""
    folder = tmp_path_factory.mktemp("damaged") / "set"
    shutil.copytree(rich["webdataset"], folder)
    source: Any = open_source(folder)
    for row, field in ((3, "tokens"), (8, "json")):
        entry = source.index[row]
        with open(folder / source.manifest.shards[int(entry["shard"])].name, "r+b") as shard:
            shard.seek(int(entry[f"offset_{field}"]))
            shard.write(b"<")
    source.close()
    return folder


def test_a_broken_value_raises_at_its_turn_and_names_its_sample(open_rich: Open, damaged: Path, case: Case) -> None:
    with open_rich(case, damaged, shuffle=False, batch_size=2, fields=("image", "index", *STORED)) as loader:
        batches = iter(loader)
        assert next(batches)["index"].tolist() == [0, 1]
        with pytest.raises(CorruptSampleError, match="its tokens is no array") as caught:
            next(batches)

    assert (caught.value.index, caught.value.path, caught.value.dataset) == (3, "row-000000003", str(damaged))


@pytest.mark.parametrize("image", [("image",), ()])
def test_skipping_fills_every_field_of_a_broken_sample_from_the_next_good_one(
    open_rich: Open, damaged: Path, facts: Facts, case: Case, image: tuple[str, ...]
) -> None:
    options = {"shuffle": False, "on_error": "skip", "fields": (*image, "index", "valid", *STORED)}
    with open_rich(case, damaged, **options) as loader:
        batches = list(loader)
        assert loader.skipped == 2

    assert batches[0]["index"].tolist() == [0, 1, 2, 4, 4]
    assert batches[0]["valid"].tolist() == [True, True, True, False, True]
    assert batches[1]["index"].tolist() == [5, 6, 7, 9, 9]
    for batch in batches:
        check(batch, facts, "cuda" if "@" in case[0] else "cpu")
    if image:
        assert torch.equal(batches[0]["image"][3], batches[0]["image"][4])


def test_fields_that_are_not_asked_for_may_be_broken(open_rich: Open, damaged: Path) -> None:
    with open_rich(("threads", 1), damaged, shuffle=False, fields=("caption", "fixed")) as loader:
        assert len([text for batch in loader for text in batch["caption"]]) == 17
