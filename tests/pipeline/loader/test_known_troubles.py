"""What users of other loaders ran into and no other test here says: few shards, odd places to resume, memory, kills."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from wellfed.converters.run import convert
from wellfed.pipeline.loader import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
MIB = 1 << 20


def keys(batches: Any) -> list[int]:
    return [key for batch in batches for key in batch["key"].tolist()]


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_fewer_shards_than_workers_still_give_every_sample_once(
    image_folder: Path, tmp_path: Path, backend: str
) -> None:
    # given 11 samples in one shard, when three workers on two ranks read them
    assert convert(image_folder, tmp_path / "one", output="webdataset", workers=1).shards == 1
    got = []
    for rank in range(2):
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "tail": "partial", "fields": ("key",)}
        with DataLoader(
            tmp_path / "one", batch_size=2, image_size=8, backend=backend, num_workers=3, **options
        ) as loader:
            got += keys(loader)
    # then neither rank repeats or drops one
    assert sorted(got) == list(range(11))


@pytest.mark.parametrize("done", [0, 1, 3, 6])
def test_resuming_before_the_first_batch_or_after_the_last_with_other_workers(open_loader: Any, done: int) -> None:
    # given two epochs of 6 batches (11 samples by two, the last alone), each in an order of its own
    options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 5, "tail": "partial", "fields": ("key",)}
    whole = open_loader(num_workers=2, **options)
    epochs = [keys(whole), keys(whole)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(11))] * 2
    assert epochs[0] != epochs[1]
    # when a run stops after `done` batches of the first, and goes on without workers
    stopped = open_loader(num_workers=2, **options)
    batches = iter(stopped)
    for _ in range(done):
        next(batches)
    resumed = open_loader(num_workers=0, **options)
    resumed.load_state_dict(stopped.state_dict())
    # then it goes on with the next sample: of the second epoch, where the first was over
    rest = epochs[0][2 * done :]
    assert keys(resumed) == (rest or epochs[1])


@pytest.mark.long
def test_persistent_workers_do_not_grow_from_epoch_to_epoch(image_folder: Path) -> None:
    # given images of 1.2 MB when decoded: one that is kept for each epoch would show; and a worker that shares no
    # memory with this process, for a page that this process writes would become the worker's own
    loader = DataLoader(
        image_folder,
        batch_size=2,
        image_size=640,
        backend="processes",
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )

    def private(epochs: int) -> int:
        used = 0
        for _ in range(epochs):
            for _ in loader:
                used = sum(child.memory_full_info().uss for child in psutil.Process().children())
        return used

    with loader:
        # Batches in flight that only the worker has mapped yet, and what allocators keep, come and go, up to 45 MiB
        # in all; a leak adds up, to 120 MB.
        first, second = private(10), private(100)
    assert first > 0
    assert second - first < 70 * MIB


def test_workers_share_the_index_instead_of_copying_it(image_folder: Path) -> None:
    # given a source of a million rows, when it goes to a worker as it would by spawn
    import pickle

    from wellfed.pipeline.formats import open_source
    from wellfed.pipeline.formats.repeat import RepeatedSource

    source = RepeatedSource(open_source(image_folder), 100_000)
    assert len(source) == 1_100_000
    # then what is copied does not grow with the rows: no list of samples is held
    assert len(pickle.dumps(source)) < 100_000


KILLED = """
import random, sys, time
from wellfed.pipeline.formats import RepeatedSource, open_source
from wellfed.pipeline.loader import DataLoader

folder, when = sys.argv[1:]
source, prefetch = open_source(folder), 2
if when == "results wait":
    # More results than a pipe holds, so that a worker waits for somebody to read them.
    source, prefetch = RepeatedSource(source, 30), 32
loader = DataLoader(
    source,
    batch_size=2,
    image_size=64,
    backend="processes",
    num_workers=2,
    prefetch_factor=prefetch,
    multiprocessing_context="fork",
)
if when == "workers start":
    # torch seeds each worker before it looks who the worker's parent is.
    random.seed = lambda seed: time.sleep(5)
batches = iter(loader)
if when != "workers start":
    next(batches)
if when == "results wait":
    time.sleep(3)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("when", ["workers wait", "results wait", "workers start"])
def test_a_killed_loader_leaves_no_segment_and_no_worker(image_folder: Path, repository: Path, when: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(image_folder), when],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(repository / ".typing")},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    owners = {process.pid, *(child.pid for child in children)}
    assert [name for name in os.listdir("/dev/shm") if any(f"_{owner}_" in name for owner in owners)] == []


class Knot:
    """Garbage that only the collector finds, and that says which process collects it."""

    def __init__(self, file: Path) -> None:
        self.itself, self.file = self, file

    def __del__(self) -> None:
        with self.file.open("a") as file:
            file.write(f"{os.getpid()}\n")


@pytest.mark.parametrize("frozen", [False, True])
def test_workers_do_not_collect_garbage_of_the_program(
    image_folder: Path, tmp_path: Path, request: pytest.FixtureRequest, frozen: bool
) -> None:
    # given garbage as tensors on a CUDA device may be, whose end in a forked worker aborts it, and a program that has
    # frozen objects itself
    collected = tmp_path / "collected"
    if frozen:
        gc.freeze()
        request.addfinalizer(gc.unfreeze)
    before = gc.get_freeze_count()
    gc.disable()
    try:
        Knot(collected)
        options: dict[str, Any] = {"backend": "processes", "num_workers": 1, "multiprocessing_context": "fork"}
        with DataLoader(image_folder, batch_size=2, image_size=8, transform=collecting, **options) as loader:
            # when a worker collects
            assert len(list(loader)) == 6
        # then that garbage is left to this process, which still collects it
        assert not collected.exists()
    finally:
        # From here on this process may collect it at any time.
        gc.enable()
    gc.collect()
    assert collected.read_text() == f"{os.getpid()}\n"
    assert gc.get_freeze_count() == before


def collecting(image: torch.Tensor) -> torch.Tensor:
    gc.collect()
    return image
