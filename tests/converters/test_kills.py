"""Killed at random moments, or at each change of a file: what is published is whole, and the next run ends the same.

The whole process group gets SIGKILL, as from a batch system or the kernel. WELLFED_KILL_SEED repeats the random moments
of an earlier run; they are printed where a test fails.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wellfed.converters import convert, reindex, verify
from wellfed.converters.destination import WORK_NAME
from wellfed.converters.outputs.webdataset import WIDS_NAME
from wellfed.converters.plan import OutputName
from wellfed.converters.reindex import index_shards
from wellfed.converters.repair import repair
from wellfed.converters.selection import SelectionOptions
from wellfed.pipeline.errors import UsageError, WorkerError
from wellfed.pipeline.formats.manifest import MANIFEST_NAME
from wellfed.pipeline.hardware import Fact

Digests = Callable[[Path], dict[str, str]]

HALVES = (("train", 0.5), ("val", 0.5))
RUNS: dict[str, tuple[OutputName, SelectionOptions]] = {
    "webdataset": ("webdataset", SelectionOptions()),
    "lmdb": ("lmdb", SelectionOptions()),
    "webdataset-shuffle": ("webdataset", SelectionOptions(shuffle=7)),
    "webdataset-split": ("webdataset", SelectionOptions(shuffle=7, split=HALVES)),
    "lmdb-split": ("lmdb", SelectionOptions(split=HALVES)),
}
SHARD_BYTES = 12_000

_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")
_READS = ("open", "os.listdir", "os.scandir")


def moments(count: int) -> list[float]:
    """Shares of a run, one random one in each of `count` equal parts; printed, and settable by their seed."""
    seed = int(os.environ.get("WELLFED_KILL_SEED") or random.randrange(1 << 32))
    print(f"WELLFED_KILL_SEED={seed}")
    chosen = random.Random(seed)
    return [(number + chosen.random()) / count for number in range(count)]


class Killed:
    """Runs something in a process group of its own, and kills the group."""

    def __init__(self, folder: Path, wait_until_gone: Callable[[int], None]) -> None:
        self._count = folder / "events"
        self._wait_until_gone = wait_until_gone

    @property
    def events(self) -> int:
        """How many events of the last run were counted."""
        return self._count.stat().st_size if self._count.exists() else 0

    def __call__(
        self,
        function: Callable[[], Any],
        *,
        seconds: float | None = None,
        event: int | None = None,
        of: tuple[str, ...] = _CHANGES,
        below: Path | None = None,
        number: signal.Signals = signal.SIGKILL,
    ) -> bool:
        """Whether it was killed; it may end before.

        Args:
            seconds: when to kill it.
            event: kill it before the N-th event of these kinds, at a path below a folder.
        """
        self._count.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            if below is not None:
                self._watch(os.fsencode(below), of, event)
            try:
                function()
            except BaseException:
                os._exit(1)
            os._exit(0)
        os.setpgid(child, child)
        if seconds is not None:
            deadline = time.monotonic() + seconds
            ended = 0
            while not ended and (left := deadline - time.monotonic()) > 0:
                time.sleep(min(0.005, left))
                ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            os.killpg(child, number)
        status = os.waitpid(child, 0)[1]
        self._wait_until_gone(child)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, -signal.SIGKILL), f"it failed by itself, with {code}"
        return code != 0

    def _watch(self, below: bytes, kinds: tuple[str, ...], last: int | None) -> None:
        count = os.open(self._count, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        seen = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if event not in kinds or not isinstance(arguments[0], str | bytes | os.PathLike):
                return
            if os.fsencode(arguments[0]).startswith(below):
                seen += 1
                os.write(count, b"x")
                if seen == last:
                    os.killpg(0, signal.SIGKILL)

        sys.addaudithook(hook)


@pytest.fixture
def killed(tmp_path: Path, wait_until_group_is_gone: Callable[[int], None]) -> Killed:
    return Killed(tmp_path, wait_until_group_is_gone)


@pytest.fixture
def source(photos: Path) -> Path:
    """The twelve photos and one file that is rejected."""
    (photos / "b" / "notes.jpg").write_text("not an image")
    return photos


def published(found: dict[str, str]) -> dict[str, str]:
    """Without what is still being worked on."""
    return {name: digest for name, digest in found.items() if WORK_NAME not in Path(name).parts}


def check_published(out: Path, whole: dict[str, str], digests: Digests) -> None:
    """Every file under a final name is the whole file, and with a manifest all of its dataset are there."""
    there = published(digests(out))
    for name, digest in there.items():
        assert whole.get(name) == digest, f"{name} is half-written, or no file of the dataset"
    for name in there:
        if Path(name).name == MANIFEST_NAME:
            folder = Path(name).parent
            wanted = {each for each in whole if Path(each).parent == folder}
            assert wanted <= set(there), f"a manifest without {wanted - set(there)}"


LONG = [pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.mark.parametrize(
    ("run", "count"),
    [("lmdb", 2), ("webdataset-split", 3), *(pytest.param(run, 20, marks=LONG) for run in RUNS)],
)
def test_killed_at_random_moments_of_the_run(
    source: Path, tmp_path: Path, run: str, count: int, killed: Killed, digests: Digests
) -> None:
    output, selection = RUNS[run]

    def go(out: Path) -> None:
        convert(source, out, output=output, shard_bytes=SHARD_BYTES, selection=selection, workers=2)

    started = time.monotonic()
    assert not killed(lambda: go(tmp_path / "whole"))
    seconds = time.monotonic() - started
    whole = digests(tmp_path / "whole")
    assert sum(name.endswith(MANIFEST_NAME) for name in whole) == (2 if "split" in run else 1)
    for number, moment in enumerate(moments(count)):
        out = tmp_path / f"killed-{number}"
        was_killed = killed(lambda out=out: go(out), seconds=moment * seconds)  # type: ignore[misc]
        if out.exists():
            check_published(out, whole, digests)
        print(f"at {moment:.3f} of {seconds:.2f} s: {'killed' if was_killed else 'had ended'}")
        if was_killed or not (out / MANIFEST_NAME).exists():
            if published(digests(out)) == whole and not any(out.rglob(WORK_NAME)):
                continue  # killed after its last change
            go(out)
        assert digests(out) == whole, moment


@pytest.mark.long
def test_killed_twice_and_then_continued(source: Path, tmp_path: Path, killed: Killed, digests: Digests) -> None:
    def go(out: Path) -> None:
        convert(source, out, output="webdataset", shard_bytes=SHARD_BYTES, workers=1)

    go(tmp_path / "whole")
    whole = digests(tmp_path / "whole")
    out = tmp_path / "out"
    assert killed(lambda: go(out), event=12, below=out)
    check_published(out, whole, digests)
    assert killed(lambda: go(out), event=3, below=out)
    check_published(out, whole, digests)
    go(out)
    assert digests(out) == whole


def test_killed_while_listing_leaves_nothing(source: Path, tmp_path: Path, killed: Killed, digests: Digests) -> None:
    def go(out: Path) -> None:
        convert(source, out, output="webdataset", shard_bytes=SHARD_BYTES)

    go(tmp_path / "whole")
    out = tmp_path / "out"
    for event in (1, 3):
        assert killed(lambda: go(out), event=event, of=_READS, below=source)
        assert not out.exists()
    go(out)
    assert digests(out) == digests(tmp_path / "whole")


def test_a_worker_that_always_dies_is_an_error_that_names_the_file(
    source: Path, tmp_path: Path, interrupt: Path, monkeypatch: pytest.MonkeyPatch, digests: Digests
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(interrupt), prepend=os.pathsep)
        patch.setenv("TEST_INTERRUPT", "worker:1:9")
        with pytest.raises(WorkerError, match=r"died at .*/\d\.jpg.*killed by signal 9"):
            convert(source, out, output="webdataset", shard_bytes=SHARD_BYTES)
    assert published(digests(out)) == {}
    convert(source, out, output="webdataset", shard_bytes=SHARD_BYTES)
    convert(source, tmp_path / "whole", output="webdataset", shard_bytes=SHARD_BYTES)
    assert digests(out) == digests(tmp_path / "whole")


def test_second_process_is_refused_while_the_first_one_writes(source: Path, tmp_path: Path, digests: Digests) -> None:
    out = tmp_path / "out"
    child = os.fork()
    if not child:
        # Stopped, as by Ctrl-Z, in the middle of its work.
        hook_stops_at(out / WORK_NAME / "plan.json")
        try:
            convert(source, out, output="webdataset", shard_bytes=SHARD_BYTES)
        except BaseException:
            os._exit(1)
        os._exit(0)
    try:
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        with pytest.raises(UsageError, match="one conversion at a time"):
            convert(source, out, output="webdataset", shard_bytes=SHARD_BYTES)
    finally:
        os.kill(child, signal.SIGCONT)
        status = os.waitpid(child, 0)[1]
    assert status == 0
    convert(source, tmp_path / "whole", output="webdataset", shard_bytes=SHARD_BYTES)
    assert digests(out) == digests(tmp_path / "whole")


def hook_stops_at(path: Path) -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and os.fsencode(arguments[1]) == os.fsencode(path):
            os.kill(os.getpid(), signal.SIGSTOP)

    sys.addaudithook(hook)


@pytest.fixture
def foreign(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tars of another tool's, with labels, in a folder of their own."""
    monkeypatch.setattr(reindex, "usable_cores", lambda: Fact("usable cores", 1, "cores", "test"))
    folder = tmp_path / "shards"
    folder.mkdir()
    for shard, name in enumerate("ab"):
        (source / name / "label").write_text(str(shard))
        with tarfile.open(folder / f"{name}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(4):
                tar.add(source / name / f"{number}.jpg", f"{name}{number}.jpg")
                tar.add(source / name / "label", f"{name}{number}.cls")
    return folder


@pytest.mark.parametrize("all_events", [False, pytest.param(True, marks=pytest.mark.long)])
def test_killed_indexing_leaves_the_shards_and_ends_the_same(
    foreign: Path, tmp_path: Path, all_events: bool, killed: Killed, digests: Digests
) -> None:
    before = digests(foreign)
    assert not killed(lambda: index_shards(str(foreign)), below=foreign)
    events, whole = killed.events, digests(foreign)
    assert events > 5
    assert set(whole) > set(before)
    for event in range(1, events + 1) if all_events else (events // 2, events):
        for name in set(whole) - set(before):
            (foreign / name).unlink()
        assert killed(lambda: index_shards(str(foreign)), event=event, below=foreign), event
        there = digests(foreign)
        assert before.items() <= there.items()
        if MANIFEST_NAME in there:
            assert whole.items() <= there.items()
        # A run that was killed after its manifest was published left a whole index, which is replaced when asked.
        index_shards(str(foreign), overwrite=MANIFEST_NAME in there)
        assert digests(foreign) == whole, event


@pytest.mark.parametrize(
    ("output", "all_events"),
    [("webdataset", False), *(pytest.param(output, True, marks=LONG) for output in ("webdataset", "lmdb"))],
)
def test_killed_repairing_loses_nothing_and_ends_the_same(
    source: Path, tmp_path: Path, output: OutputName, all_events: bool, killed: Killed, digests: Digests
) -> None:
    out = tmp_path / "out"
    convert(source, out, output=output, shard_bytes=SHARD_BYTES)
    whole = digests(out)
    shards = [each["name"] for each in json.loads((out / MANIFEST_NAME).read_text())["shards"]]
    victims = [shards[0], *({WIDS_NAME} & set(whole)), "wellfed.names.bin"]

    def damage() -> None:
        for name in victims:
            if (out / name).exists():
                (out / name).write_bytes((out / name).read_bytes()[:-1] + b"?")

    def mend() -> None:
        repair(out, verify(out, workers=1).problems, source=str(source), workers=1)

    damage()
    assert not killed(mend, below=out)
    events = killed.events
    assert events > 5
    assert digests(out) == whole
    for event in range(1, events + 1) if all_events else (events // 2, events):
        damage()
        hurt = digests(out)
        assert killed(mend, event=event, below=out), event
        there = published(digests(out))
        for name, digest in there.items():
            assert digest in (whole[name], hurt[name]), (event, name)
        assert set(there) == set(whole)
        mend()
        left = digests(out)
        assert published(left) == whole, event
        assert left == whole, (event, "the work folder stays")
