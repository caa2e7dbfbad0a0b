"""What is particular to threads and to processes: cores, memory, dead workers, timeouts."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from wellfed.pipeline.config import BackendName, LoaderConfig
from wellfed.pipeline.errors import CorruptSampleError, DamagedDatasetError, ResourceError, WorkerError
from wellfed.pipeline.formats import RepeatedSource, open_source
from wellfed.pipeline.loader import batch as batch_module
from wellfed.pipeline.loader import threads as threads_module
from wellfed.pipeline.loader.backend import BACKENDS, InlineBackend, open_backend
from wellfed.pipeline.loader.batch import BatchDecoder, BatchTask
from wellfed.pipeline.loader.processes import ProcessesBackend, start_method
from wellfed.pipeline.loader.shared_memory import InFlight, check_shared_memory
from wellfed.pipeline.loader.threads import ThreadsBackend


@pytest.fixture
def decoder(image_folder: Path) -> BatchDecoder:
    return BatchDecoder(source=open_source(image_folder), seed=0, augment="eval", image_size=8, on_error="raise")


def tasks(*rows: list[int]) -> Any:
    for number, these in enumerate(rows):
        yield BatchTask(epoch=0, rows=np.array(these), valid=np.ones(len(these), bool), position_after=number)


def test_the_registry_makes_the_backend_that_is_named(
    decoder: BatchDecoder, make_config: Callable[..., LoaderConfig]
) -> None:
    assert set(BACKENDS) == set(get_args(BackendName))
    made = [open_backend(decoder, make_config(backend=name, num_workers=2)) for name in ("threads", "processes")]
    assert [type(backend) for backend in made] == [ThreadsBackend, ProcessesBackend]
    assert isinstance(open_backend(decoder, make_config(backend="processes", num_workers=0)), InlineBackend)
    assert not multiprocessing.active_children()


def test_decoding_threads_use_one_core_each_and_leave_the_callers_setting_alone(
    decoder: BatchDecoder, make_config: Callable[..., LoaderConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    decode_chunk = batch_module.decode_chunk

    def noted(*args: Any) -> dict[int, str]:
        seen.append(torch.get_num_threads())
        return decode_chunk(*args)

    monkeypatch.setattr(batch_module, "decode_chunk", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    backend = ThreadsBackend(decoder, make_config(num_workers=3))
    try:
        list(backend.run(tasks([0, 1, 2], [3, 4])))
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert torch.get_num_threads() == 5
        assert later == [5]
    finally:
        backend.close()
        torch.set_num_threads(before)
    assert set(seen) == {1}


def test_threads_take_a_bounded_number_of_batches_ahead(
    decoder: BatchDecoder, make_config: Callable[..., LoaderConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def counted() -> Any:
        for number, task in enumerate(tasks(*[[0, 1]] * 20)):
            taken.append(number)
            yield task

    backend = ThreadsBackend(decoder, make_config(num_workers=2, prefetch_factor=3, batch_size=2))
    stream = backend.run(counted())
    assert len(taken) == 6
    next(stream)
    assert len(taken) == 7
    backend.close()

    # Large batches: two at a time, since all threads work on one.
    taken.clear()
    monkeypatch.setattr(threads_module, "IN_FLIGHT_BYTES", 500)
    backend = ThreadsBackend(decoder, make_config(num_workers=2, prefetch_factor=3, batch_size=2))
    backend.run(counted())
    assert len(taken) == 2
    backend.close()


def test_an_error_waits_for_its_turn_and_the_stream_is_not_ready_for_it(
    decoder: BatchDecoder, make_config: Callable[..., LoaderConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Damaged:
        def __init__(self) -> None:
            self.whole = decoder.source

        def __getattr__(self, name: str) -> Any:
            return getattr(self.whole, name)

        def read(self, row: int) -> bytes:
            if row == 2:
                raise DamagedDatasetError("bytes must be there", got="none")
            return self.whole.read(row)

    object.__setattr__(decoder, "source", Damaged())
    backend = ThreadsBackend(decoder, make_config(num_workers=1, batch_size=2))
    stream = backend.run(tasks([0, 1], [2, 3]))
    for work in stream._pending:
        for chunk in work.chunks:
            chunk.exception()

    assert stream.ready()
    next(stream)
    assert not stream.ready()
    with pytest.raises(DamagedDatasetError, match="bytes must be there"):
        next(stream)
    backend.close()


def test_a_batch_that_takes_longer_than_the_timeout_is_an_error(
    decoder: BatchDecoder, make_config: Callable[..., LoaderConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(batch_module, "decode_chunk", lambda *args: answer.wait(60))
    backend = ThreadsBackend(decoder, make_config(num_workers=1, timeout=0.05))
    stream = backend.run(tasks([0]))
    try:
        with pytest.raises(WorkerError, match=r"within timeout=0\.05 seconds"):
            next(stream)
    finally:
        answer.set()
        backend.close()


def test_shared_memory_that_is_too_small_is_said_before_the_first_batch(
    decoder: BatchDecoder, make_config: Callable[..., LoaderConfig]
) -> None:
    config = make_config(backend="processes", num_workers=2, prefetch_factor=3, batch_size=100)
    backend = ProcessesBackend(decoder, config, available_bytes=lambda: 163_839)

    # (2 x 3 + 2) batches of 100 x 3 x 8 x 8 bytes, each in 5 pages of 4,096.
    with pytest.raises(ResourceError, match="163840 bytes; got 163839 bytes available") as caught:
        backend.run(tasks([0]))

    assert "--shm-size=65m" in str(caught.value)
    assert not multiprocessing.active_children()
    in_flight = InFlight(workers=2, prefetch_factor=3, batch_bytes=20_480)
    check_shared_memory(in_flight, 163_840)
    check_shared_memory(in_flight, None)


def test_a_killed_worker_is_named_and_the_next_iteration_starts_new_ones(open_loader: Any) -> None:
    loader = open_loader(backend="processes", num_workers=1, fields=("index",))
    next(iter(loader))
    worker = multiprocessing.active_children()[0]
    assert worker.pid is not None
    batches = iter(loader)
    os.kill(worker.pid, signal.SIGKILL)

    with pytest.raises(WorkerError, match=f"process {worker.pid} ended"):
        list(batches)
    assert not multiprocessing.active_children()
    assert [batch["index"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


@pytest.mark.parametrize("before", [True, False])
def test_more_workers_that_die_while_a_death_is_handled_leave_none_behind(
    decoder: BatchDecoder, make_config: Callable[..., LoaderConfig], monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    # given torch's handler of SIGCHLD, which raises wherever the program is: as the end of the others begins, or ends
    backend = ProcessesBackend(decoder, make_config(backend="processes", num_workers=2))
    shut_down = _MultiProcessingDataLoaderIter._shutdown_workers
    killed: list[int] = []

    def interrupted(workers: Any) -> None:
        if not before:
            shut_down(workers)
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    def many_tasks() -> Any:
        for number, task in enumerate(tasks(*[[0]] * 5000)):
            if number == 20:
                killed.append(backend.worker_pids[0])
                os.kill(killed[0], signal.SIGKILL)
            yield task

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_shutdown_workers", interrupted)
    with pytest.raises(WorkerError, match=r"process \d+ ended") as caught:
        for _ in backend.run(many_tasks()):
            pass
    assert f"process {killed[0]} ended" in str(caught.value)
    assert not multiprocessing.active_children()


def test_worker_processes_live_between_epochs_only_when_persistent(open_loader: Any) -> None:
    loader = open_loader(backend="processes", num_workers=2, persistent_workers=True)
    list(loader)
    first = {child.pid for child in multiprocessing.active_children()}
    list(loader)
    assert {child.pid for child in multiprocessing.active_children()} == first
    assert len(first) == 2
    loader.close()

    loader = open_loader(backend="processes", num_workers=2, persistent_workers=False)
    list(loader)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_start_by_the_method_asked_for(open_loader: Any, method: str) -> None:
    loader = open_loader(backend="processes", num_workers=1, multiprocessing_context=method, fields=("index",))
    batches = iter(loader)
    assert type(multiprocessing.active_children()[0]).__name__ == f"{method.capitalize()}Process"
    assert next(batches)["index"].tolist() == [0, 1, 2, 3]


def test_workers_start_by_fork_or_by_spawn_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_method() == "fork"
    # given IPython on a terminal, and then in a kernel
    shell = types.SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert start_method() == "fork"
    shell.kernel = object()
    assert start_method() == "spawn"


def test_the_decoder_and_its_errors_travel_between_processes(decoder: BatchDecoder) -> None:
    again = pickle.loads(pickle.dumps(decoder))
    task = next(tasks([4, 2]))
    assert torch.equal(again.decode(task).images, decoder.decode(task).images)

    error = CorruptSampleError("must decode", got="text", remedy="Mend.", dataset="d", index=3, path="a/b.jpg")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.index, copy.path) == (str(error), 3, "a/b.jpg")


def test_a_corrupt_sample_of_a_repeated_source_is_named_by_its_own_row(tmp_path: Path) -> None:
    # given two files, the second of which is text, repeated three times
    for name, content in (("a.jpg", b"text"), ("b.jpg", b"text too")):
        (tmp_path / "class").mkdir(exist_ok=True)
        (tmp_path / "class" / name).write_bytes(content)
    repeated = RepeatedSource(open_source(tmp_path), 3)
    decoder = BatchDecoder(source=repeated, seed=0, augment="eval", image_size=8, on_error="raise")
    # when row 5 is asked for, then the error names row 1, which is b.jpg
    with pytest.raises(CorruptSampleError, match=r"Sample 1 of .* originally 'class/b\.jpg'"):
        decoder.decode(next(tasks([5])))


LOAD_WITHOUT_TORCHVISION = """
import sys
from wellfed.pipeline import DataLoader
with DataLoader(sys.argv[1], batch_size=4, image_size=8, augment="train", num_workers=1) as loader:
    assert len(next(iter(loader))[0]) == 4
assert "torchvision" not in sys.modules
"""


def test_jpegs_load_without_the_second_that_importing_torchvision_takes(image_folder: Path) -> None:
    pytest.importorskip("wellfed.pipeline.decode._jpeg", reason="without the C extension torchvision decodes")
    run = subprocess.run(
        [sys.executable, "-c", LOAD_WITHOUT_TORCHVISION, str(image_folder)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert run.returncode == 0, run.stderr
