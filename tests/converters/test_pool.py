"""Worker processes: results, errors, deaths, and nothing left behind."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from wellfed.converters import convert
from wellfed.converters.pool import early_workers, keep_needed, run_tasks
from wellfed.pipeline.errors import ResourceError, WorkerError

FUNCTIONS = """
import os, signal, sys
from pathlib import Path
from wellfed.pipeline.errors import ResourceError

def double(number, *, report):
    print("not on the parent's stdout")
    report(number)
    return 2 * number

def die_once(mark, *, report):
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"

def die(*, report):
    report("half way")
    os._exit(7)

def full(*, report):
    raise ResourceError("the disk must hold it", got="ENOSPC", remedy="Make room.")

def broken(*, report):
    raise ZeroDivisionError("by zero")

def full_or_wait(number, *, report):
    if number:
        signal.pause()
    full(report=report)
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that workers can import, as they take over `sys.path`."""
    (tmp_path / "pool_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "pool_functions", raising=False)
    return importlib.import_module("pool_functions")


def children() -> set[str]:
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}


def run(function: Any, tasks: list[tuple[Any, ...]], workers: int = 2, **options: Any) -> dict[int, Any]:
    results: dict[int, Any] = {}
    before = children()
    try:
        run_tasks(
            function,
            tasks,
            workers=workers,
            describe=lambda number, last: f"task {number}, {last}",
            on_result=results.__setitem__,
            **options,
        )
    finally:
        assert children() == before
    return results


def test_each_task_gives_its_result_and_progress(functions: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, int]] = []
    results = run(
        functions.double, [(n,) for n in range(7)], on_progress=lambda task, value: seen.append((task, value))
    )
    assert results == {0: 0, 1: 2, 2: 4, 3: 6, 4: 8, 5: 10, 6: 12}
    assert sorted(seen) == [(n, n) for n in range(7)]
    assert capfd.readouterr().out == ""


def test_no_tasks_start_no_worker(functions: ModuleType) -> None:
    assert run(functions.double, []) == {}


def test_early_workers_are_ended_when_it_is_known_how_many_get_a_task(functions: ModuleType) -> None:
    before = children()
    with early_workers(functions.double, 3) as early:
        started = {str(worker.process.pid) for worker in early}
        assert children() - before == started
        keep_needed(early, 2)
        kept = [str(worker.process.pid) for worker in early]
        assert len(kept) == 2
        assert children() - before == set(kept)
        keep_needed(early, 5)
        assert children() - before == set(kept)
        # One of the two is used, and is gone with its tasks.
        results: dict[int, Any] = {}
        run_tasks(
            functions.double,
            [(21,)],
            workers=1,
            describe=lambda number, last: "",
            on_result=results.__setitem__,
            early=early,
        )
        assert results == {0: 42}
        assert children() - before == {kept[0]}
    assert children() == before


@pytest.mark.parametrize(("shard_samples", "expected"), [(12, 1), (6, 2), (4, 2)])
def test_a_conversion_holds_no_more_workers_than_it_has_tasks(
    photos: Path, tmp_path: Path, shard_samples: int, expected: int
) -> None:
    # given 12 photos, two workers asked for, and 1, 2 or 3 shards
    before, seen = children(), []
    convert(
        photos,
        tmp_path / "out",
        output="webdataset",
        shard_samples=shard_samples,
        workers=2,
        progress=lambda progress: seen.append(len(children() - before)),
    )
    assert max(seen) == expected
    assert children() == before


def test_task_of_a_killed_worker_runs_again(functions: ModuleType, tmp_path: Path) -> None:
    assert run(functions.die_once, [(str(tmp_path / "mark"),)]) == {0: "survived"}


def test_task_that_always_kills_its_worker_is_an_error(functions: ModuleType) -> None:
    with pytest.raises(WorkerError, match=r"3 in a row died at task 0, half way; got 'exit code 7'|exit code 7"):
        run(functions.die, [()])


def test_death_can_be_a_result(functions: ModuleType) -> None:
    deaths: list[tuple[int, str]] = []
    run(functions.die, [(), ()], attempts=1, on_death=lambda task, how: deaths.append((task, how)))
    assert sorted(deaths) == [(0, "exit code 7"), (1, "exit code 7")]


def test_error_of_ours_arrives_whole_and_ends_the_others(functions: ModuleType) -> None:
    with pytest.raises(ResourceError) as caught:
        run(functions.full_or_wait, [(0,), (1,)])
    assert (caught.value.rule, caught.value.got, caught.value.remedy) == (
        "the disk must hold it",
        "ENOSPC",
        "Make room.",
    )


def test_unexpected_error_names_itself(functions: ModuleType) -> None:
    with pytest.raises(WorkerError, match="ZeroDivisionError: by zero"):
        run(functions.broken, [()])
