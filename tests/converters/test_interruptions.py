"""Killed, interrupted, out of disk, or run twice: the dataset ends byte-identical, or untouched."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from wellfed.converters import convert, verify
from wellfed.converters.destination import Destination
from wellfed.converters.outputs import lmdb as lmdb_output
from wellfed.converters.plan import OutputName
from wellfed.pipeline.errors import ResourceError, UsageError

Digests = Callable[[Path], dict[str, str]]
OUTPUTS: tuple[OutputName, ...] = ("webdataset", "lmdb")
SHARD_BYTES = 20_000  # three shards of the twelve photos

# Where a run is killed: while it packs (a finished task is three renames), and while it assembles, publishes and
# cleans up (the share of its own renames and removals that are done).
MOMENTS: list[str | float] = ["first task", "second task", 0.4, 0.7, 1.0]


class Command:
    """Runs `wellfed convert` in a process group of its own, so that what it leaves behind can be seen."""

    def __init__(self, environment: dict[str, str], interrupt: Path, wait_until_gone: Callable[[int], None]) -> None:
        self.environment = environment
        self.interrupt = interrupt
        self.wait_until_gone = wait_until_gone

    def __call__(
        self,
        photos: Path,
        out: Path,
        output: str,
        at: str = "",
        *,
        count: Path | None = None,
        file_size: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        environment = dict(self.environment)
        if at:
            environment["PYTHONPATH"] = f"{self.interrupt}{os.pathsep}{environment['PYTHONPATH']}"
            environment["TEST_INTERRUPT"] = at
        if count:
            environment["TEST_COUNT"] = str(count)
        arguments = ["convert", str(photos), str(out), "--format", output, "--shard-size", f"{SHARD_BYTES}B"]

        def limit() -> None:
            if file_size is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

        process = subprocess.Popen(
            [sys.executable, "-m", "wellfed.pipeline", *arguments, "--workers", "1"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=limit,
        )
        stdout, stderr = process.communicate(timeout=120)
        self.wait_until_gone(process.pid)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@pytest.fixture
def command(environment: dict[str, str], interrupt: Path, wait_until_group_is_gone: Callable[[int], None]) -> Command:
    return Command(environment, interrupt, wait_until_group_is_gone)


@pytest.mark.parametrize("output", OUTPUTS)
def test_killed_run_continues_and_ends_byte_identical(
    photos: Path, tmp_path: Path, output: OutputName, command: Command, digests: Digests
) -> None:
    (photos / "b" / "notes.jpg").write_text("not an image")
    count = tmp_path / "count"
    assert command(photos, tmp_path / "whole", output, "parent:0:9", count=count).returncode == 3
    whole = digests(tmp_path / "whole")
    events = count.stat().st_size
    assert events > 10
    for number, moment in enumerate(MOMENTS):
        out = tmp_path / f"killed-{number}"
        if isinstance(moment, float):
            at = f"parent:{round(events * moment)}:9"
        else:
            at = f"parent-from-worker:{3 if moment == 'first task' else 6}:9"
        assert command(photos, out, output, at).returncode == -signal.SIGKILL, moment
        assert digests(out) != whole
        assert (out / ".wellfed-work").is_dir()
        result = convert(photos, out, output=output, shard_bytes=SHARD_BYTES)
        assert (result.stored, result.rejected) == (12, 1)
        assert digests(out) == whole, moment
        if moment == "second task":
            assert result.resumed > 0


@pytest.mark.long
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("overwrite", [False, True], ids=["new", "overwrite"])
def test_killed_at_every_rename_and_removal(
    photos: Path, tmp_path: Path, output: OutputName, overwrite: bool, command: Command, digests: Digests
) -> None:
    count = tmp_path / "count"
    command(photos, tmp_path / "whole", output, "parent:0:9", count=count)
    whole = digests(tmp_path / "whole")
    for event in range(1, count.stat().st_size + 1):
        out = tmp_path / f"killed-{event}"
        assert command(photos, out, output, f"parent:{event}:9").returncode == -signal.SIGKILL
        convert(photos, out, output=output, shard_bytes=SHARD_BYTES, overwrite=overwrite)
        assert digests(out) == whole, event


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_with_130_and_no_process_left(
    photos: Path, tmp_path: Path, number: signal.Signals, command: Command
) -> None:
    ended = command(photos, tmp_path / "out", "webdataset", f"parent-from-worker:3:{int(number)}")
    assert ended.returncode == 130
    assert "interrupted" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert convert(photos, tmp_path / "out", output="webdataset", shard_bytes=SHARD_BYTES).stored == 12


def test_killed_worker_costs_nothing_but_its_task(
    photos: Path, tmp_path: Path, interrupt: Path, monkeypatch: pytest.MonkeyPatch, digests: Digests
) -> None:
    convert(photos, tmp_path / "whole", output="webdataset", shard_bytes=SHARD_BYTES)
    monkeypatch.setenv("PYTHONPATH", str(interrupt), prepend=os.pathsep)
    monkeypatch.setenv("TEST_INTERRUPT", "worker:4:9")
    monkeypatch.setenv("TEST_ONCE", str(tmp_path / "once"))
    convert(photos, tmp_path / "out", output="webdataset", shard_bytes=SHARD_BYTES)
    assert (tmp_path / "once").exists()
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


@pytest.mark.parametrize(("output", "file_size"), [("webdataset", 10_000), ("lmdb", 25_000)])
def test_file_size_limit_is_an_error_that_loses_nothing(
    photos: Path, tmp_path: Path, output: OutputName, file_size: int, command: Command, digests: Digests
) -> None:
    ended = command(photos, tmp_path / "out", output, file_size=file_size)
    assert ended.returncode == 1
    assert "must hold the whole dataset" in ended.stderr
    assert "run the same command again" in ended.stderr
    convert(photos, tmp_path / "out", output=output, shard_bytes=SHARD_BYTES)
    convert(photos, tmp_path / "whole", output=output, shard_bytes=SHARD_BYTES)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB. Its own `df` would end a conversion before it starts, see the tests."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"cannot mount a small file system here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("output", OUTPUTS)
def test_full_disk_is_found_before_the_start_and_in_the_middle(
    photos: Path,
    small_disk: Path,
    tmp_path: Path,
    output: OutputName,
    monkeypatch: pytest.MonkeyPatch,
    digests: Digests,
) -> None:
    out = small_disk / "out"
    with pytest.raises(ResourceError, match=r"must have .* GB free"):
        convert(photos, out, output=output, shard_bytes=SHARD_BYTES)
    assert not out.exists()
    with monkeypatch.context() as patch:
        patch.setattr(Destination, "check_space", lambda self, needed: None)
        with pytest.raises(ResourceError, match="must hold the whole dataset"):
            convert(photos, out, output=output, shard_bytes=SHARD_BYTES)
    assert (out / ".wellfed-work" / "tasks" / "000000.json").exists()
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    assert convert(photos, out, output=output, shard_bytes=SHARD_BYTES).resumed >= 3
    convert(photos, tmp_path / "whole", output=output, shard_bytes=SHARD_BYTES)
    assert digests(out) == digests(tmp_path / "whole")


def test_second_run_on_a_destination_is_refused(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Destination(out).locked(), pytest.raises(UsageError, match="one conversion at a time"):
        convert(photos, out, output="webdataset")
    assert not out.exists()
    convert(photos, out, output="webdataset")


def test_full_map_is_enlarged_and_its_transaction_written_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_output, "map_bytes", lambda sizes, **options: 1 << 15)
    assert convert(photos, tmp_path / "out", output="lmdb").stored == 12
    assert verify(tmp_path / "out", deep=True).problems == ()


def test_map_is_large_enough_for_any_mixture_of_sizes(tmp_path: Path) -> None:
    import numpy as np

    random = np.random.default_rng(0)
    for number, most in enumerate((10, 1500, 2040, 5000, 70_000)):
        sizes = random.integers(1, most, 3000)
        folder = tmp_path / str(number)
        environment = lmdb.open(str(folder), map_size=lmdb_output.map_bytes([sizes]), lock=False, sync=False)
        with environment, environment.begin(write=True) as transaction:
            for key, size in enumerate(sizes.tolist()):
                assert transaction.put(b"%010d.json" % key, bytes(size), append=True)
