"""Batches of worker processes in shared memory that is used again: each is what the threads give, and stays so."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from wellfed.pipeline.errors import CorruptSampleError, ResourceError, WorkerError
from wellfed.pipeline.formats import open_source
from wellfed.pipeline.loader import DataLoader
from wellfed.pipeline.loader.batch import BatchDecoder, BatchTask, HostBatch
from wellfed.pipeline.loader.parcels import Batches, Parcel, Tasks
from wellfed.pipeline.loader.processes import ProcessesBackend
from wellfed.pipeline.loader.shared_pixels import SharedPixels

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SIDE = 24


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """45 JPEGs of noise in 3 classes, no two alike."""
    root = tmp_path_factory.mktemp("parcels") / "noise"
    generator = np.random.default_rng(3)
    for number in range(45):
        path = root / f"class{number % 3}" / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(path, quality=90)
    return root


def opened(folder: Path, **options: Any) -> Any:
    given = {"batch_size": 4, "image_size": SIDE, "shuffle": True, "seed": 5, "augment": "train", **options}
    return DataLoader(folder, **given)


def tensors(value: Any) -> list[torch.Tensor]:
    return list(value.values() if isinstance(value, dict) else value)


def script(loader: Any, seed: int, epochs: int) -> Iterator[list[torch.Tensor]]:
    """Batches of epochs some of which are left early, by a consumer that goes on, raises, or begins anew meanwhile."""
    chance = random.Random(seed)
    for _ in range(epochs):
        batches = iter(loader)
        left = False
        try:
            for batch in batches:
                yield tensors(batch)
                if chance.random() < 0.1:
                    raise ValueError
        except ValueError:
            left = True
        if left and chance.random() < 0.5:
            # The older iterator lives on beside the newer one.
            yield tensors(next(iter(loader)))
        del batches


def a_hold(images: torch.Tensor, chance: random.Random) -> tuple[Any, Any]:
    """Something made of a batch's images, and a copy of it."""
    kind = chance.randrange(4)
    if kind == 0:
        return images, images.clone()
    if kind == 1:
        return images[1:2, :, ::2], images[1:2, :, ::2].clone()
    array = images.numpy()[:, 1:] if kind == 2 else np.asarray(images.permute(0, 2, 3, 1)).reshape(len(images), -1)
    return array, array.copy()


OPTIONS: dict[str, dict[str, Any]] = {
    "one worker": {"num_workers": 1, "prefetch_factor": 1},
    "one worker, two ahead": {"num_workers": 1, "persistent_workers": True},
    "two workers": {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True},
    "four workers": {"num_workers": 4, "prefetch_factor": 1, "persistent_workers": True},
    "new workers each epoch": {"num_workers": 2, "persistent_workers": False},
    "fields": {"num_workers": 2, "fields": ("key", "image", "box", "flip", "valid", "index", "class")},
    "no image": {"num_workers": 2, "fields": ("key", "index")},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
    "forkserver": {"num_workers": 1, "multiprocessing_context": "forkserver", "persistent_workers": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_batch_is_the_threads_and_stays_so_while_it_is_held(noise: Path, name: str) -> None:
    # given both loaders, doing the same
    options = OPTIONS[name]
    threads = opened(noise, backend="threads", **{**options, "multiprocessing_context": None})
    processes = opened(noise, backend="processes", **options)
    chance, kept = random.Random(name), []
    with threads, processes:
        both = zip(script(threads, 1, 12), script(processes, 1, 12), strict=True)
        # when batches and parts of them are held for a while, some over epochs
        for number, (right, found) in enumerate(both):
            assert len(right) == len(found)
            assert all(torch.equal(one, other) for one, other in zip(right, found, strict=True)), number
            images = next((each for each in found if each.dim() == 4), found[0])
            if images.dim() == 4 and chance.random() < 0.4:
                kept.append(a_hold(images, chance))
            del right, found, images
            while len(kept) > 8 or (kept and chance.random() < 0.3):
                kept.pop(chance.randrange(len(kept)))
            # then none changes
            assert all(np.array_equal(np.asarray(held), np.asarray(copy)) for held, copy in kept), number
        assert number > 60
    # and neither does one once the loader is closed
    assert all(np.array_equal(np.asarray(held), np.asarray(copy)) for held, copy in kept)


def test_a_list_of_all_batches_takes_more_than_there_are_blocks_for(noise: Path) -> None:
    with (
        opened(noise, backend="threads", num_workers=2) as threads,
        opened(noise, backend="processes", num_workers=1, prefetch_factor=1) as processes,
    ):
        for _ in range(3):
            right, found = list(threads), list(processes)
            assert len(found) == 12
            for one, other in zip(right, found, strict=True):
                assert torch.equal(one[0], other[0])
                assert torch.equal(one[1], other[1])
            # Three blocks are in use; the others came by torch's own way, in segments that it knows.
            assert [batch[0].is_shared() for batch in found].count(False) == 3
            del right, found, one, other


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_corrupt_samples(noise: Path, tmp_path: Path, on_error: str) -> None:
    # given a folder with a file in the midst that is no image
    for path in sorted(noise.rglob("*.jpg")):
        copy = tmp_path / path.relative_to(noise)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes() if path.stem != "07" else b"text")
    options = {"shuffle": False, "on_error": on_error, "num_workers": 1, "fields": ("image", "index", "valid")}
    seen: list[list[Any]] = []
    for backend in ("threads", "processes"):
        with opened(tmp_path, backend=backend, **options) as loader:
            given: list[Any] = []
            # when the epoch is tried again and again, more often than there are blocks
            for _ in range(6):
                try:
                    given += [{name: value.clone() for name, value in batch.items()} for batch in loader]
                except CorruptSampleError as error:
                    given.append(error.index)
            seen.append(given)
    # then both say and give the same
    assert len(seen[0]) == len(seen[1]) >= 6
    for one, other in zip(*seen, strict=True):
        if isinstance(one, dict):
            assert all(torch.equal(one[name], other[name]) for name in one)
        else:
            assert one == other


def test_a_held_batch_outlives_the_loader_and_a_killed_worker(noise: Path) -> None:
    with opened(noise, backend="processes", num_workers=1, persistent_workers=True) as loader:
        held, _ = next(iter(loader))
        copy = held.clone()
        worker = multiprocessing.active_children()[0].pid
        assert worker is not None
        batches = iter(loader)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(WorkerError, match=f"process {worker} ended"):
            list(batches)
        # New workers have new memory.
        for _ in range(3):
            assert sum(len(labels) for _, labels in loader) == 45
        assert torch.equal(held, copy)
    assert torch.equal(held, copy)


def doubled(image: torch.Tensor) -> torch.Tensor:
    return image.float() * 2


def test_pixels_that_only_a_transform_sees_take_no_block(noise: Path) -> None:
    options = {"num_workers": 2, "transform": doubled}
    with opened(noise, backend="threads", **options) as threads, opened(noise, backend="processes", **options) as other:
        for right, found in zip(threads, other, strict=True):
            assert torch.equal(right[0], found[0])


@pytest.fixture
def decoder(noise: Path) -> Iterator[BatchDecoder]:
    source = open_source(noise)
    yield BatchDecoder(source=source, seed=0, augment="eval", image_size=SIDE, on_error="raise")
    source.close()


def tasks(count: int) -> Iterator[BatchTask]:
    for number in range(count):
        rows = np.arange(number * 4, number * 4 + 4, dtype=np.int64) % 45
        yield BatchTask(epoch=0, rows=rows, valid=np.ones(4, dtype=np.bool_), position_after=number * 4 + 4)


@pytest.mark.parametrize("allowed", [0, 3])
def test_shared_memory_that_others_fill_meanwhile_is_an_error_and_no_bus_error(
    decoder: BatchDecoder, make_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    # given memory for so many batches
    reserve = os.posix_fallocate
    reserved: list[int] = []

    def full(file: int, start: int, size: int) -> None:
        if len(reserved) == allowed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserved.append(start)
        reserve(file, start, size)

    config = make_config(backend="processes", num_workers=1, prefetch_factor=2, batch_size=4, image_size=SIDE)
    backend = ProcessesBackend(decoder, config)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        stream = backend.run(tasks(6))
        held: list[HostBatch] = []
        # when they are kept, then those are handed over, and the next is an error that says what would help
        with pytest.raises(ResourceError, match=r"1 workers x 2 \+ 2 batches of 8192 bytes.*No space left") as caught:
            held.extend(stream)
        assert "--shm-size=65m" in str(caught.value)
        assert [batch.rows.tolist()[0] for batch in held] == [0, 4, 8][:allowed]
    # and with memory it goes on
    held.clear()
    assert [batch.rows.tolist()[0] for batch in backend.run(tasks(6))] == [0, 4, 8, 12, 16, 20]
    backend.close()
    assert not multiprocessing.active_children()


def test_a_folder_that_takes_no_file_is_said_before_the_first_batch(
    decoder: BatchDecoder, make_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*args: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    config = make_config(backend="processes", num_workers=1, batch_size=4, image_size=SIDE)
    with pytest.raises(ResourceError, match=r"shared memory \(/dev/shm\) must hold.*Read-only file system"):
        ProcessesBackend(decoder, config).run(tasks(1))
    assert not multiprocessing.active_children()


def one_batch(decoder: BatchDecoder) -> HostBatch:
    return decoder.decode(next(tasks(1)))


KNOWN = {"labels": torch.int64, "rows": torch.int64, "keys": torch.int64, "boxes": torch.int32}
MARKS = {"flips": torch.bool, "valid": torch.bool}


def test_a_pickled_batch_is_the_same_and_can_be_written_to(decoder: BatchDecoder) -> None:
    batch = one_batch(decoder)
    batch.flips[1] = True
    again = pickle.loads(pickle.dumps(batch))

    assert torch.equal(again.images, batch.images)
    assert again.images.is_contiguous(memory_format=torch.channels_last)
    for name, dtype in {**KNOWN, **MARKS}.items():
        found = getattr(again, name)
        assert found.dtype == dtype
        assert torch.equal(found, getattr(batch, name))
        # A tensor over memory that may not be written warns, or crashes, when it is.
        assert found.numpy().flags.writeable
        found.zero_()
        assert not found.any()
    assert batch.rows.tolist() == [0, 1, 2, 3]


def a_parcel(decoder: BatchDecoder, blocks: int) -> tuple[Tasks, SharedPixels, Parcel]:
    """A decoded batch of the first task, and who lent its block."""
    pixels = SharedPixels(blocks, 4 * 3 * SIDE * SIDE)
    orders = Tasks()
    orders.lend(pixels)
    orders.begin(tasks(9))
    return orders, pixels, Batches(decoder, pixels.memory)[next(orders)]


def test_pinning_gives_the_block_back_once_the_copy_is_made(
    decoder: BatchDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given one block, and page-locked memory that is none
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, device=None: self.clone())
    orders, pixels, parcel = a_parcel(decoder, blocks=1)
    assert next(orders).block is None
    pinned: list[Any] = []

    def as_torchs_thread_does() -> None:
        nonlocal parcel
        parcel = torch.utils.data._utils.pin_memory.pin_memory(parcel)
        pinned.append(parcel.open())

    thread = threading.Thread(target=as_torchs_thread_does)
    thread.start()
    thread.join()

    # then another batch may be decoded into it, which the copy does not notice
    order = next(orders)
    assert order.block == 0
    pixels.memory.rows[0][:] = 0
    right = one_batch(decoder)
    assert torch.equal(pinned[0].images, right.images)
    assert torch.equal(pinned[0].rows, right.rows)


def test_an_error_travels_through_pinning_and_gives_its_block_back(noise: Path, decoder: BatchDecoder) -> None:
    pixels = SharedPixels(1, 4 * 3 * SIDE * SIDE)
    orders = Tasks()
    orders.lend(pixels)
    orders.begin(tasks(3))
    order = next(orders)
    error = CorruptSampleError("must decode", got="text", remedy="Mend.", dataset="d", index=3, path="a.jpg")

    assert Parcel(error, order.lender, order.block).pin_memory().open() is error
    assert next(orders).block == 0


def test_a_parcel_of_a_loader_that_was_closed_touches_no_other_loaders_memory(decoder: BatchDecoder) -> None:
    orders, _, parcel = a_parcel(decoder, blocks=1)
    orders.lend(None)
    others = SharedPixels(1, 4 * 3 * SIDE * SIDE)
    orders.lend(others)
    orders.begin(tasks(3))
    assert next(orders).block == 0

    content = parcel.open()

    assert isinstance(content, HostBatch)
    assert content.images.numel() == 0
    assert others.take() is None


@pytest.mark.parametrize("keep", [False, True])
def test_torchs_own_pinning_thread(
    decoder: BatchDecoder, make_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *args, **options: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *args, **options: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, device=None: self.clone())
    right = {int(task.rows[0]): decoder.decode(task).images for task in tasks(40)}
    config = make_config(backend="processes", num_workers=2, prefetch_factor=2, batch_size=4, image_size=SIDE)
    backend = ProcessesBackend(decoder, config)
    backend._pin = True
    kept: list[HostBatch] = []
    try:
        # when runs are left at every place, so that batches are thrown away in all states
        for stop in (40, *range(12), 40):
            for number, batch in enumerate(backend.run(tasks(40))):
                assert torch.equal(batch.images, right[int(batch.rows[0])])
                kept += [batch] if keep else []
                if number == stop:
                    break
            assert any(thread.name.endswith("(_pin_memory_loop)") for thread in threading.enumerate())
        # then there are as many blocks as ever, copies being what is kept
        assert backend._pixels is not None
        assert len(backend._pixels._recycled) + len(backend._pixels._out) == backend._pixels._begun
        assert all(torch.equal(batch.images, right[int(batch.rows[0])]) for batch in kept)
    finally:
        backend.close()


def run_once(decoder: BatchDecoder, config: Any) -> list[torch.Tensor]:
    backend = ProcessesBackend(decoder, config)
    try:
        return [batch.images.clone() for batch in backend.run(tasks(8))]
    finally:
        backend.close()


def test_the_loader_needs_nothing_that_only_torch_itself_should_call(
    decoder: BatchDecoder, make_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(backend="processes", num_workers=2, batch_size=4, image_size=SIDE)
    usual = run_once(decoder, config)
    # given a torch that has neither name
    with monkeypatch.context() as patch:
        patch.delattr(torch.autograd.profiler, "_is_profiler_enabled")
        without = run_once(decoder, config)
    with monkeypatch.context() as patch:
        iterator = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
        shown = iterator._next_data
        patch.setattr(iterator, "__next__", lambda self: shown(self))
        patch.delattr(iterator, "_next_data")
        patch.delattr(torch.utils.data.dataloader._BaseDataLoaderIter, "_next_data")
        renamed = run_once(decoder, config)

    assert len(usual) == 8
    for other in (without, renamed):
        assert all(torch.equal(one, two) for one, two in zip(usual, other, strict=True))


@pytest.mark.parametrize(
    "profile",
    [
        lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        lambda: torch.autograd.profiler.profile(use_kineto=True),
    ],
    ids=["torch.profiler", "torch.autograd.profiler"],
)
def test_a_profiler_sees_the_loader(
    decoder: BatchDecoder, make_config: Callable[..., Any], profile: Callable[[], Any]
) -> None:
    config = make_config(backend="processes", num_workers=1, batch_size=4, image_size=SIDE)
    backend = ProcessesBackend(decoder, config)
    try:
        stream = backend.run(tasks(8))
        before = next(stream).images.clone()
        with profile() as seen:
            within = [next(stream).images.clone() for _ in range(3)]
        after = list(stream)
    finally:
        backend.close()

    marks = [each for each in seen.key_averages() if each.key.startswith("enumerate(DataLoader)")]
    assert [mark.count for mark in marks] == [3]
    right = [decoder.decode(task).images for task in tasks(8)]
    found = [before, *within, *(batch.images for batch in after)]
    assert all(torch.equal(one, other) for one, other in zip(right, found, strict=True))
