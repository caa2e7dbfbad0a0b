"""Which GPU, memory and cores a loader takes where several ranks share a machine."""

from __future__ import annotations

import multiprocessing
import os
import threading
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wellfed.pipeline.config import LoaderConfig, LoaderSettings
from wellfed.pipeline.errors import ConfigError, ResourceError
from wellfed.pipeline.hardware import Fact
from wellfed.pipeline.hardware.nvml import Reading
from wellfed.pipeline.loader import factory, images, placement
from wellfed.pipeline.loader import memory as memory_module
from wellfed.pipeline.loader.placement import Near, Placement, choose_cores, core_words, keep_to, place_workers
from wellfed.pipeline.loader.ranks import device_of_rank, rank_bytes
from wellfed.pipeline.loader.shared_memory import shared_memory_available

EIGHT = frozenset(range(8))
FIRST_HALF = Near(Reading(frozenset(range(4))), "NVML", gpus=2)


def choose(near: Near = FIRST_HALF, **options: Any) -> Placement:
    return choose_cores(near, **{"allowed": EIGHT, "workers": 2, "ranks": 4, "device": "cuda:1", **options})


def test_near_cores_are_chosen_where_they_suffice() -> None:
    # given 4 of 8 cores near two GPUs, when each of 4 ranks has 2 workers: two ranks at most share them
    chosen = choose()

    assert chosen == Placement(frozenset({0, 1, 2, 3}), "cores 0-3, near cuda:1 (NVML), for 2 of 4 local ranks")


@pytest.mark.parametrize(
    ("near", "options", "words"),
    [
        (FIRST_HALF, {"workers": 3}, "the 4 near cuda:1 (NVML) are too few for 3 workers of each of 2 local ranks"),
        (FIRST_HALF, {"allowed": frozenset({1, 2})}, "all that this process may use are near"),
        (FIRST_HALF, {"allowed": frozenset({6, 7})}, "none that this process may use is near"),
        (Near(Reading(None, "no driver")), {}, "which are near cuda:1 is not known (no driver)"),
    ],
)
def test_otherwise_the_system_places_decoding(near: Near, options: dict[str, Any], words: str) -> None:
    chosen = choose(near, **options)

    assert chosen.cores is None
    assert words in chosen.words


def test_the_affinity_is_never_widened() -> None:
    assert choose(allowed=frozenset({2, 3, 6, 7}), ranks=2, workers=1).cores == {2, 3}
    # Three of six are too few for two ranks of two; alone on their node a rank takes them.
    assert choose(allowed=frozenset({1, 2, 3, 5, 6, 7})).cores is None
    alone = Near(FIRST_HALF.found, "NVML", gpus=1)
    assert choose(alone, allowed=frozenset({1, 2, 3, 5, 6, 7})).cores == {1, 2, 3}


def test_core_numbers_in_words() -> None:
    assert core_words(frozenset({0, 1, 2, 5, 8, 9})) == "0-2,5,8-9"


@pytest.fixture
def two_cards(fake_nvml: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A torch that sees a card whose near cores are 0 and 1 of the 4 that this process may use; two local ranks."""
    fake_nvml.near = [0b11]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="aa", pci_bus_id=0x65))
    monkeypatch.setattr(placement.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    return fake_nvml


def config(**options: Any) -> LoaderConfig:
    return LoaderConfig(settings=LoaderSettings(num_workers=options.pop("num_workers", 1)), device="cuda:1", **options)


def test_workers_are_placed_by_what_nvml_says_of_the_card(two_cards: Any) -> None:
    card = torch.device("cuda:1")

    found = place_workers(config(), card, nvml=two_cards)

    assert found == Placement(frozenset({0, 1}), "cores 0-1, near cuda:1 (NVML), for 1 of 2 local ranks")
    assert two_cards.shutdowns == 1
    two_cards.count = 2
    assert place_workers(config(num_workers=2), card, nvml=two_cards).cores is None


def test_where_nothing_is_to_be_placed_nothing_is_asked(two_cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    card, untouched = torch.device("cuda:1"), SimpleNamespace()
    for given, device, words in (
        (config(worker_cores="any"), card, "worker_cores='any'"),
        (config(num_workers=0), card, "the calling thread decodes"),
        (config(), torch.device("cpu"), "batches stay on the CPU"),
    ):
        assert place_workers(given, device, nvml=untouched) == Placement(None, f"any cores: {words}")
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert place_workers(config(), card, nvml=untouched).words == "any cores: this rank has the machine to itself"


def test_a_wrong_choice_of_cores_is_refused() -> None:
    with pytest.raises(ConfigError, match="worker_cores must be one of 'near', 'any'"):
        config(worker_cores="far")


HAS_DALI = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
DALI = pytest.mark.skipif(not HAS_DALI, reason="needs NVIDIA DALI (pip install 'wellfed[dali]')")


@pytest.mark.parametrize("backend", ["threads", "processes", pytest.param("dali", marks=DALI)])
def test_decoding_keeps_to_the_chosen_cores_and_the_program_does_not(
    open_loader: Any, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    monkeypatch.setattr(images, "place_workers", lambda *args: Placement(frozenset({core}), "chosen"))

    with open_loader(backend=backend, num_workers=2) as loader:
        # Three batches: each of two processes has decoded one.
        assert len(list(loader)) == 3
        if backend != "processes":
            ids = [t.native_id for t in threading.enumerate() if t.name.startswith("wellfed-decode")]
        else:
            ids = [process.pid for process in multiprocessing.active_children()]
        assert [os.sched_getaffinity(each or 0) for each in ids] == [{core}, {core}]
        assert loader.worker_cores == "chosen"

    assert os.sched_getaffinity(0) == before


def test_cores_that_are_gone_are_a_warning() -> None:
    before = os.sched_getaffinity(0)
    with pytest.warns(UserWarning, match=r"cannot keep to cores 4000 and runs on any"):
        keep_to(frozenset({4000}))
    assert os.sched_getaffinity(0) == before


def test_an_unnumbered_cuda_device_is_the_ranks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("is_available", True), ("device_count", 2), ("is_initialized", False)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert device_of_rank("cuda") == "cuda"

    monkeypatch.setenv("LOCAL_RANK", "1")
    assert [device_of_rank(name) for name in ("cuda", "cuda:0", "cpu")] == ["cuda:1", "cuda:0", "cpu"]

    # given a script that chose its current device itself
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert device_of_rank("cuda") == "cuda:3"


def test_the_loader_asks_for_the_ranks_device(open_loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "device_of_rank", lambda name: "cpu" if name == "cuda" else name)

    assert open_loader(device="cuda").config.device == "cpu"


def test_a_rank_may_count_on_its_share_of_all_not_of_what_others_left() -> None:
    assert rank_bytes(100, 200) == 100
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", "4")
        # 200 over four ranks; what others hold of theirs already does not count twice.
        assert (rank_bytes(100, 200), rank_bytes(30, 200)) == (50, 30)
        assert (rank_bytes(None, 200), rank_bytes(100, None)) == (None, 100)


def test_shared_memory_and_memory_are_divided_by_the_ranks(
    open_loader: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stat = SimpleNamespace(f_bavail=90, f_blocks=100, f_frsize=10)
    monkeypatch.setattr(os, "statvfs", lambda path: stat)
    assert shared_memory_available() == 900
    monkeypatch.setattr(memory_module, "available_memory", lambda: Fact("memory available", 4000))
    monkeypatch.setattr(memory_module, "memory_total", lambda: [Fact("memory", 4000), Fact("memory limit", None)])
    # two batches of 4 x 3 x 8 x 8 bytes fit into 4000
    assert len(list(open_loader())) == 3

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert shared_memory_available() == 250
    with pytest.raises(ResourceError, match=r"got 1000 bytes available to one of 4 local ranks"):
        open_loader()
