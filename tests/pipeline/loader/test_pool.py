"""The pool of decoding threads, and decoders that never come back."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from wellfed.pipeline.errors import ResourceError, WorkerError
from wellfed.pipeline.loader import batch as batch_module
from wellfed.pipeline.loader.pool import DecodingPool


def test_work_is_done_in_threads_that_were_prepared() -> None:
    prepared = threading.local()

    def prepare() -> None:
        prepared.done = True

    pool = DecodingPool(2, "wellfed-test", prepare)
    futures = [pool.submit(lambda given: (given, prepared.done), number) for number in range(20)]
    assert [future.result(10) for future in futures] == [(number, True) for number in range(20)]
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(10)
    pool.shutdown()
    pool.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wellfed-test")]
    with pytest.raises(RuntimeError, match="takes no more work"):
        pool.submit(len, ())


def test_a_shutdown_cancels_what_has_not_begun() -> None:
    begun, go_on = threading.Event(), threading.Event()
    pool = DecodingPool(1, "wellfed-test", lambda: None)

    def first() -> str:
        begun.set()
        go_on.wait(30)
        return "done"

    running, waiting = pool.submit(first), pool.submit(len, ())
    assert begun.wait(30)
    pool.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    go_on.set()
    pool.shutdown(wait=True)
    assert running.result(10) == "done"


def test_threads_that_the_system_refuses_are_an_error_and_leave_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def one_alone(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", one_alone)
    with pytest.raises(ResourceError, match=r"start 2 threads; got can't start new thread.*fewer num_workers"):
        DecodingPool(2, "wellfed-test", lambda: None)
    started[0].join(30)
    assert not started[0].is_alive()


def test_a_decoder_that_hangs_is_left_behind_and_a_new_iteration_has_new_threads(
    open_loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    decode_chunk = batch_module.decode_chunk
    monkeypatch.setattr(batch_module, "decode_chunk", lambda *args: never.wait(120))
    loader = open_loader(num_workers=2, timeout=0.2, fields=("image", "index"))
    with pytest.raises(WorkerError, match=r"within timeout=0\.2 seconds.*no transform of yours hangs"):
        list(loader)
    # Neither ending the loop nor the next one waits for the hanging threads.
    monkeypatch.setattr(batch_module, "decode_chunk", decode_chunk)
    assert [batch["index"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    loader.close()
    never.set()


def test_closing_waits_for_a_hanging_decoder_no_longer_than_the_timeout(
    open_loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    monkeypatch.setattr(batch_module, "decode_chunk", lambda *args: never.wait(120))
    loader = open_loader(num_workers=1, timeout=0.2)
    iter(loader)
    loader.close()
    assert not never.is_set()
    never.set()


@pytest.mark.long
def test_processes_that_hang_are_ended(open_loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "decode_chunk", lambda *args: threading.Event().wait(600))
    loader = open_loader(backend="processes", num_workers=2, timeout=0.5)
    with pytest.raises(WorkerError, match="must give its batch within the timeout"):
        list(loader)
    assert not multiprocessing.active_children()


PROGRAM = """
import sys, threading
from wellfed.pipeline.errors import WorkerError
from wellfed.pipeline.loader import DataLoader, batch

batch.decode_chunk = lambda *args: threading.Event().wait()
try:
    list(DataLoader(sys.argv[1], image_size=8, num_workers=2, timeout=0.2))
except WorkerError:
    print("refused", flush=True)
"""


def test_a_program_ends_in_spite_of_a_decoder_that_hangs(image_folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(image_folder)], capture_output=True, text=True, timeout=120
    )
    assert ended.stdout == "refused\n", ended.stderr
    assert ended.returncode == 0, ended.stderr
