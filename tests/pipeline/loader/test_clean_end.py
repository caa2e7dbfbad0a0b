"""However an iteration ends, no process, thread or shared-memory segment is left."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from wellfed.pipeline.errors import WorkerError
from wellfed.pipeline.loader import DataLoader

HAS_DALI = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
DALI = pytest.mark.skipif(not HAS_DALI, reason="needs NVIDIA DALI (pip install 'wellfed[dali]')")
# The hybrid runs all that DALI by itself does, and more.
BACKENDS = ["threads", "processes", pytest.param("hybrid", marks=DALI)]


def segments() -> set[str]:
    return set(os.listdir("/dev/shm"))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = segments()
    yield
    gc.collect()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("wellfed")]
    assert not multiprocessing.active_children()
    # Others may use /dev/shm at the same time; torch's segments carry the process id of their maker or parent.
    assert not [name for name in segments() - before if str(os.getpid()) in name]


@pytest.fixture(params=BACKENDS)
def loader(request: pytest.FixtureRequest, image_folder: Path) -> Any:
    return DataLoader(image_folder, batch_size=2, image_size=8, num_workers=2, backend=request.param)


def test_closing_in_the_middle_and_twice(loader: Any) -> None:
    next(iter(loader))
    loader.close()
    loader.close()


def test_closing_before_the_first_iteration(loader: Any) -> None:
    loader.close()


def test_an_exception_in_the_with_block(loader: Any) -> None:
    def train() -> None:
        with loader:
            for _ in loader:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropping_the_loader(image_folder: Path, backend: str) -> None:
    loader = DataLoader(image_folder, batch_size=2, image_size=8, num_workers=2, backend=backend)
    for _ in loader:
        break
    del loader


@pytest.mark.parametrize("backend", BACKENDS)
def test_breaking_without_persistent_workers_ends_them_at_once(image_folder: Path, backend: str) -> None:
    loader = DataLoader(
        image_folder, batch_size=2, image_size=8, num_workers=2, backend=backend, persistent_workers=False
    )
    for _ in loader:
        break

    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("wellfed")]
    assert not multiprocessing.active_children()
    loader.close()


class Failing:
    """In place of torch's iterator: what is being read when something strikes."""

    def __init__(self, error: BaseException, alive: bool) -> None:
        self._error = error
        self._workers = [SimpleNamespace(pid=4711, is_alive=lambda: alive)]

    def __next__(self) -> Any:
        raise self._error


def test_a_loader_with_processes_is_iterated_again_after_an_interrupt(image_folder: Path) -> None:
    # given an interrupt while a batch is read, which torch's iterator would wait for afterwards
    with DataLoader(image_folder, batch_size=2, image_size=8, num_workers=1, backend="processes") as loader:
        batches = iter(loader)
        next(batches)
        loader._stream._workers = Failing(KeyboardInterrupt(), alive=True)  # type: ignore[union-attr]
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert not multiprocessing.active_children()
        # then new workers load the next epoch
        assert len(list(loader)) == 6


def deaf(batch: Any) -> Any:
    """As a worker whose memory is long in being given back: a signal does not end it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    return batch


def test_a_worker_that_outlives_the_signal_is_gone_once_the_loader_is_closed(
    image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)
    monkeypatch.setattr("wellfed.pipeline.loader.processes._END_SECONDS", 0.5)
    loader = DataLoader(
        image_folder, batch_size=2, image_size=8, num_workers=1, backend="processes", transform=deaf, timeout=1
    )
    with loader, pytest.raises(WorkerError, match="timeout"):
        next(iter(loader))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("alive", [False, True])
def test_a_batch_that_went_with_its_worker_is_an_error_of_the_worker(image_folder: Path, alive: bool) -> None:
    with DataLoader(image_folder, batch_size=2, image_size=8, num_workers=1, backend="processes") as loader:
        batches = iter(loader)
        next(batches)
        loader._stream._workers = Failing(FileNotFoundError(2, "No such file"), alive)  # type: ignore[union-attr]
        expected = pytest.raises(FileNotFoundError) if alive else pytest.raises(WorkerError, match="process 4711 ended")
        with expected:
            next(batches)


SCRIPT = """
import sys
from wellfed.pipeline.loader import DataLoader

if __name__ == "__main__":
    loader = DataLoader(sys.argv[1], batch_size=2, image_size=8, num_workers=2, backend=sys.argv[2])
    first = True
    while True:
        for batch in loader:
            if first:
                print("going", flush=True)
            first = False
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_ctrl_c_leaves_nothing(image_folder: Path, tmp_path: Path, backend: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    before = segments()
    child = subprocess.Popen(
        [sys.executable, str(tmp_path / "train.py"), str(image_folder), backend],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "going\n", child.communicate()[1]
        family = psutil.Process(child.pid).children(recursive=True)

        # A terminal sends it to the whole group, workers included.
        os.killpg(child.pid, signal.SIGINT)
        _, errors = child.communicate(timeout=30)
    finally:
        child.kill()

    assert child.returncode in (-signal.SIGINT, 130, 1)
    assert "KeyboardInterrupt" in errors
    # The fork server and its helpers end when they see that their parent is gone.
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    assert not [name for name in segments() - before if str(child.pid) in name]
