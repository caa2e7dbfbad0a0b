"""DataLoader: which loader comes out, what the arguments mean, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from wellfed.pipeline import hardware
from wellfed.pipeline.config import LoaderSettings, TunedConfig
from wellfed.pipeline.errors import (
    ConfigError,
    DeviceError,
    SchemaVersionError,
    TunedConfigMismatchError,
    UsageError,
)
from wellfed.pipeline.formats import open_source
from wellfed.pipeline.loader import DataLoader, ImageLoader, factory
from wellfed.pipeline.loader.ranks import found_ranks

NUMBERS = TensorDataset(torch.arange(10))


class Countdown(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[int]:
        return iter(range(5, 0, -1))


@pytest.fixture
def tuned(image_folder: Path) -> TunedConfig:
    source = open_source(image_folder)
    return TunedConfig(
        settings=LoaderSettings(
            backend="processes",
            num_workers=3,
            prefetch_factor=5,
            persistent_workers=False,
            pin_memory=False,
            batch_size=6,
        ),
        verdict="passed",
        dataset={"fingerprint": source.fingerprint, "samples": 11, "location_name": "grays"},
        machine=hardware.fingerprint(),
        step={"name": "resnet50", "device": "simulated", "image_size": 8},
        versions={},
        measured={},
    )


def test_a_stored_dataset_gives_an_image_loader_with_torchs_defaults(image_folder: Path) -> None:
    with DataLoader(image_folder) as loader:
        assert isinstance(loader, ImageLoader)
        config = loader.config
        assert (config.settings.batch_size, config.shuffle, config.tail) == (1, False, "partial")
        assert (config.augment, config.image_size, config.on_error, config.device) == ("eval", 224, "raise", "cpu")
        assert (config.rank, config.world_size, config.fields) == (0, 1, None)
        assert config.settings.backend == "threads"
        assert config.settings.num_workers == hardware.usable_cores().value
        assert (config.settings.prefetch_factor, config.settings.persistent_workers) == (2, True)
        assert config.settings.pin_memory is False


def test_torchs_arguments_may_stand_by_position_and_as_none(image_folder: Path) -> None:
    with DataLoader(str(image_folder), 4, True, None, None, 0, None, False, True, generator=None) as loader:
        assert (loader.config.settings.batch_size, loader.config.shuffle, loader.config.tail) == (4, True, "drop")
        assert loader.config.settings.num_workers == 0


def test_the_source_may_be_named_as_in_torch(image_folder: Path) -> None:
    # torchdata's own tests name it, and so do scripts
    assert len(DataLoader(dataset=NUMBERS, batch_size=4)) == 3
    with DataLoader(dataset=image_folder, batch_size=4) as loader:
        assert len(loader) == 3
    with pytest.raises(UsageError, match=r"two names of one argument"):
        DataLoader(NUMBERS, dataset=NUMBERS)
    with pytest.raises(UsageError, match=r"a source is .*got 'nothing'"):
        DataLoader(batch_size=4)


def test_none_leaves_any_other_argument_out(image_folder: Path) -> None:
    left_out = dict.fromkeys(
        ("device", "image_size", "augment", "seed", "order", "tail", "fields", "timeout", "on_error", "subset", "tuned")
    )
    with DataLoader(image_folder, **left_out) as loader, DataLoader(image_folder) as plain:
        assert loader.config == plain.config


def test_a_given_source_stays_open_and_an_opened_one_is_closed(
    image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Any] = []
    source = open_source(image_folder)
    monkeypatch.setattr(type(source), "close", lambda self: closed.append(self))

    DataLoader(source, batch_size=2, num_workers=0).close()
    assert closed == []
    loader = DataLoader(image_folder, batch_size=2, num_workers=0)
    loader.close()
    loader.close()
    assert closed == [loader.dataset]


@pytest.mark.parametrize(
    ("given", "tail"),
    [
        ({"world_size": 1, "rank": 0}, "partial"),
        ({"world_size": 2, "rank": 1}, "pad"),
        ({"world_size": 2, "rank": 1, "drop_last": False}, "pad"),
        ({"world_size": 2, "rank": 1, "drop_last": True}, "drop"),
        ({"world_size": 2, "rank": 1, "tail": "partial"}, "partial"),
        ({"world_size": 1, "rank": 0, "drop_last": False}, "partial"),
    ],
)
def test_drop_last_keeps_torchs_meaning(open_loader: Any, given: dict[str, Any], tail: str) -> None:
    assert open_loader(**given).config.tail == tail


def test_ranks_come_from_the_environment(open_loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    config = open_loader().config
    assert (config.rank, config.world_size, config.tail) == (2, 3, "pad")

    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ConfigError, match="RANK and WORLD_SIZE must both be"):
        open_loader()


@pytest.mark.parametrize(("rank", "world_size"), [("2", "2"), ("-1", "2"), ("0", "0"), ("one", "2")])
def test_a_rank_that_there_is_none_of_is_refused(monkeypatch: pytest.MonkeyPatch, rank: str, world_size: str) -> None:
    # A tune would wait for the others, who do not wait for this one.
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    with pytest.raises(ConfigError, match=f"RANK={rank}, WORLD_SIZE={world_size}"):
        found_ranks(None, None)


def test_ranks_come_from_torch_distributed_first(
    open_loader: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        config = open_loader().config
    finally:
        torch.distributed.destroy_process_group()
    assert (config.rank, config.world_size) == (0, 1)


@pytest.mark.parametrize(("local", "share"), [("1", 7), ("2", 3), ("3", 2), ("16", 1)])
def test_ranks_of_one_machine_divide_its_cores(
    open_loader: Any, monkeypatch: pytest.MonkeyPatch, local: str, share: int
) -> None:
    monkeypatch.setattr(factory, "_usable_cores", lambda: 7)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    assert open_loader(num_workers=None).config.settings.num_workers == share


@pytest.mark.parametrize("local", ["0", "-2", "two", ""])
def test_a_number_of_local_ranks_that_makes_no_sense_is_refused(
    open_loader: Any, monkeypatch: pytest.MonkeyPatch, local: str
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    with pytest.raises(ConfigError, match=f"LOCAL_WORLD_SIZE must be a whole number.*LOCAL_WORLD_SIZE={local}"):
        open_loader(num_workers=None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"drop_last": True, "tail": "drop"}, "drop_last and tail say the same thing"),
        ({"drop_last": False, "tail": "pad"}, "only one can be given; got drop_last=False and tail='pad'"),
        ({"shufle": True}, "shuffle.*got 'shufle'"),
        ({"sampler": [1]}, r"sampler is for torch Datasets.*the order comes from shuffle= and seed="),
        ({"collate_fn": len}, "choose with fields=, change with batch_transform="),
        ({"augment": len}, "'train' or 'eval'.*as transform= .*or batch_transform="),
        ({"generator": torch.Generator()}, "randomness comes from seed="),
        ({"rank": 1}, "rank and world_size go together"),
        ({"gpu_share": 0.5}, "gpu_share is for backend 'hybrid'; got gpu_share=0.5 with backend 'threads'"),
        ({"hw_decoder_load": 0.5}, "hw_decoder_load is for backend 'dali' and 'hybrid'"),
        ({"backend": "dali", "hybrid_schedule": "greedy"}, "hybrid_schedule is for backend 'hybrid'"),
        (
            {"backend": "hybrid", "hybrid_schedule": "greedy", "gpu_share": 0.5},
            "gpu_share is for the fixed schedule of backend 'hybrid'",
        ),
        ({"batch_size": None}, "batch_size=None turns batching off in torch"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(open_loader: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_loader(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 0}, "batch_size must be between 1 and 1048576; got 0"),
        ({"batch_size": "4"}, "batch_size must be a whole number"),
        ({"num_workers": -1}, "num_workers must be between 0"),
        ({"augment": "random"}, "augment must be one of 'train', 'eval'"),
        (
            {"backend": "fibers"},
            "backend is 'auto', 'processes', 'threads', 'dali', 'nvjpeg' or 'hybrid'; got 'fibers'",
        ),
        ({"backend": "hybrid", "gpu_share": 1.5}, "gpu_share must be between 0 and 1; got 1.5"),
        ({"backend": "hybrid", "hybrid_schedule": "random"}, "hybrid_schedule must be one of 'fixed', 'greedy'"),
        ({"backend": "dali", "hw_decoder_load": "all"}, "hw_decoder_load must be a number; got 'all'"),
        ({"tail": "keep"}, "tail must be one of"),
        ({"drop_last": 1.5}, "drop_last must be true or false"),
        ({"fields": "image"}, r"Write fields=\('image',\)"),
        ({"fields": 5}, "fields is a sequence of names; got 5"),
        ({"fields": ("pixels",)}, "index, key, box, flip, valid; got 'pixels'"),
        ({"fields": ("image", 5)}, "each of fields must be"),
        ({"fields": ("image", "class", "image")}, "fields must differ"),
        ({"transform": 5}, "a transform must be callable"),
        ({"batch_transform": "train"}, "a transform must be callable"),
        ({"rank": 2, "world_size": 2}, "rank must be between 0 and 1; got 2"),
        ({"shuffle": "yes"}, "shuffle must be true or false"),
        ({"multiprocessing_context": "thread"}, "multiprocessing_context must be one of"),
    ],
)
def test_values_out_of_range_are_refused(open_loader: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_loader(**given)


def test_an_argument_given_twice_is_refused(image_folder: Path) -> None:
    with pytest.raises(UsageError, match="given once; got 'batch_size'"):
        DataLoader(image_folder, 4, batch_size=4)


@pytest.mark.parametrize("source", [5, None, len, b"photos", bytearray(b"photos")])
def test_what_is_no_source_is_refused(source: Any) -> None:
    with pytest.raises(UsageError, match="a source is the path of a stored dataset"):
        DataLoader(source)


@pytest.mark.parametrize(
    ("device", "message"),
    [("gpu", "a device is 'cpu', 'cuda'"), ("meta", "delivered to 'cpu' or CUDA"), ("cuda:77", "CUDA")],
)
def test_a_device_that_is_not_there_is_refused(open_loader: Any, device: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        open_loader(device=device)


def test_tuned_settings_fill_what_is_left_out(image_folder: Path, tuned: TunedConfig, tmp_path: Path) -> None:
    (tmp_path / "tuned.json").write_text(tuned.to_json())

    with DataLoader(image_folder, tuned=tmp_path / "tuned.json", image_size=8) as loader:
        assert loader.config.settings == tuned.settings
    with DataLoader(image_folder, tuned=tuned, image_size=8, batch_size=2, backend="threads", num_workers=1) as loader:
        settings = loader.config.settings
        assert (settings.batch_size, settings.backend, settings.num_workers) == (2, "threads", 1)
        assert (settings.prefetch_factor, settings.persistent_workers) == (5, False)


def test_tuned_settings_of_another_dataset_machine_or_size_are_refused_with_every_difference(
    image_folder: Path, tuned: TunedConfig
) -> None:
    values = tuned.to_dict()
    values["dataset"]["fingerprint"] = "f" * 64
    values["machine"]["usable_cores"] = 96
    with pytest.raises(TunedConfigMismatchError) as caught:
        DataLoader(image_folder, tuned=TunedConfig.from_dict(values), image_size=16)

    message = str(caught.value)
    assert "dataset fingerprint ffffffffffff (11 samples) then" in message
    assert "usable_cores 96 then" in message
    assert "image_size 8 then, 16 now" in message
    assert "Run wellfed tune here" in message


def test_a_tuned_file_of_a_newer_schema_is_refused(image_folder: Path, tuned: TunedConfig, tmp_path: Path) -> None:
    text = tuned.to_json().replace('"schema_version": 1,\n  "settings"', '"schema_version": 9,\n  "settings"')
    assert text != tuned.to_json()
    (tmp_path / "tuned.json").write_text(text)

    with pytest.raises(SchemaVersionError, match="Upgrade wellfed"):
        DataLoader(image_folder, tuned=str(tmp_path / "tuned.json"))


def test_a_torch_dataset_gives_torchdatas_loader_with_torchs_defaults(recwarn: pytest.WarningsRecorder) -> None:
    loader = DataLoader(NUMBERS)

    assert isinstance(loader, StatefulDataLoader)
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (1, 0, False)
    assert [batch[0].tolist() for batch in loader] == [[number] for number in range(10)]
    assert not [warning for warning in recwarn if "set_vital" in str(warning.message)]


def test_a_torch_dataset_takes_torchs_arguments_and_resumes() -> None:
    loader = DataLoader(NUMBERS, 4, False, drop_last=True)
    batches = iter(loader)
    assert next(batches)[0].tolist() == [0, 1, 2, 3]
    state = loader.state_dict()

    again = DataLoader(NUMBERS, batch_size=4, drop_last=True)
    again.load_state_dict(state)
    assert [batch[0].tolist() for batch in again] == [[4, 5, 6, 7]]


def test_an_iterable_dataset_works() -> None:
    assert [batch.tolist() for batch in DataLoader(Countdown(), batch_size=2)] == [[5, 4], [3, 2], [1]]


def test_a_build_of_torch_without_set_vital_works(monkeypatch: pytest.MonkeyPatch) -> None:
    # Some versions have the name, some resolve it in the module's __getattr__.
    monkeypatch.delitem(vars(torch), "set_vital", raising=False)
    original = torch.__getattr__

    def without(name: str) -> Any:
        if name == "set_vital":
            raise AttributeError(name)
        return original(name)

    monkeypatch.setattr(torch, "__getattr__", without)

    assert len(list(DataLoader(NUMBERS, batch_size=5))) == 2
    assert "set_vital" not in vars(torch)


def test_tuned_settings_reach_a_torch_dataset_where_left_out(tuned: TunedConfig) -> None:
    loader = DataLoader(NUMBERS, tuned=tuned, batch_size=3)
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (3, 3, 5)
    assert loader.persistent_workers is False

    inline = DataLoader(NUMBERS, tuned=tuned, num_workers=0)
    assert (inline.batch_size, inline.num_workers, inline.prefetch_factor) == (6, 0, None)

    batched = DataLoader(NUMBERS, tuned=tuned, num_workers=0, batch_sampler=[[1, 2], [3]])
    assert [batch[0].tolist() for batch in batched] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"augment": "train"}, "are for stored datasets.*got 'augment'"),
        ({"batchsize": 4}, "batch_size.*got 'batchsize'"),
    ],
)
def test_a_torch_dataset_refuses_what_is_not_torchs(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DataLoader(NUMBERS, **given)
