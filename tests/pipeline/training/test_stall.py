"""A step or a loader that does not return ends the measurement, in whichever thread it runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from wellfed.pipeline.errors import StepError
from wellfed.pipeline.training.stall import guarded_from_stalls


def step_of(call: Any) -> Any:
    class Called:
        name, model, optimizer = "m:build", None, None

        def __call__(self, images: Any, labels: Any) -> Any:
            return call()

    return Called()


def run(call: Any, batches: Iterator[Any], **more: Any) -> int:
    done = 0
    with guarded_from_stalls(step_of(call), batches, limit_seconds=0.2, poll_seconds=0.02, **more) as (step, watched):
        for images, labels in watched:
            step(images, labels)
            done += 1
    return done


def guards() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "wellfed-stall-guard"]


def waits_for_itself() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def test_what_returns_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGURG)
    assert run(lambda: None, iter([(1, 1)] * 5)) == 5
    assert signal.getsignal(signal.SIGURG) is before
    assert guards() == []


def test_a_deadlock_in_the_step_is_an_error_with_its_place() -> None:
    with pytest.raises(StepError, match=r"the step m:build did not within 0\.2 s") as caught:
        run(waits_for_itself, iter([(1, 1)]))
    assert "in waits_for_itself" in caught.value.__notes__[0]
    assert guards() == []


def test_a_step_that_catches_every_exception_does_not_catch_that() -> None:
    def stubborn() -> None:
        try:
            waits_for_itself()
        except Exception:
            return

    with pytest.raises(StepError, match="the step m:build did not"):
        run(stubborn, iter([(1, 1)]))


def test_a_loader_that_gives_no_batch_is_named() -> None:
    def none_comes() -> Iterator[Any]:
        yield (1, 1)
        waits_for_itself()

    with pytest.raises(StepError, match="a batch of the loader did not"):
        run(lambda: None, none_comes())


def test_another_thread_is_interrupted_as_soon_as_it_runs_python() -> None:
    caught: list[BaseException] = []

    def spins() -> None:
        while True:
            threading.Event().wait(0.01)

    def train() -> None:
        try:
            run(spins, iter([(1, 1)]))
        except StepError as error:
            caught.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert len(caught) == 1


def test_what_cannot_be_interrupted_ends_the_program() -> None:
    released, reasons = threading.Event(), []

    def deaf() -> None:
        while not released.is_set():
            try:
                released.wait()
            except BaseException:
                continue

    def give_up(reason: str) -> None:
        reasons.append(reason)
        released.set()

    assert run(deaf, iter([(1, 1)]), grace_seconds=0.1, give_up=give_up) == 1
    assert reasons == ["the step m:build did not return within 0.2 s"]


ENDS = """
import subprocess, sys
from wellfed.pipeline.training.stall import _end_program
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(child.pid, flush=True)
_end_program("the step did not return")
"""


def test_the_end_of_the_program_takes_workers_along_and_shows_the_stacks() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "wellfed: the step did not return, and cannot be interrupted" in ended.stderr
    assert "_end_program" in ended.stderr
    pid = int(ended.stdout)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_an_error_of_the_step_passes_as_it_is() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(fails, iter([(1, 1)]))
    assert guards() == []


def test_models_and_optimizers_stay_visible() -> None:
    inner: Any = SimpleNamespace(name="s", model="model", optimizer="optimizer")
    with guarded_from_stalls(inner, iter([]), limit_seconds=1) as (step, _):
        assert (step.name, step.model, step.optimizer) == ("s", "model", "optimizer")
