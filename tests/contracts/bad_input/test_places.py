"""The bad-input table for destinations, sources that change, and disks that are full or fail."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wellfed.converters import run
from wellfed.converters.inputs import InputOptions, temporary
from wellfed.converters.outputs import lmdb as lmdb_output


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"cannot mount a small file system here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_destination_that_exists_is_an_error_unless_overwritten(
    two_classes: Path, bad_convert: Callable[..., Any]
) -> None:
    assert bad_convert(two_classes).code == 0
    again = bad_convert(two_classes)
    assert (again.code, "--overwrite" in again.err) == (2, True)
    assert bad_convert(two_classes, "--dry-run").code == 2
    assert bad_convert(two_classes, "--overwrite").code == 0


def test_destination_with_files_of_others_is_an_error_even_with_overwrite(
    two_classes: Path, tmp_path: Path, bad_convert: Callable[..., Any]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("x")
    for options in ((), ("--overwrite",)):
        ended = bad_convert(two_classes, *options)
        assert (ended.code, "thesis.txt" in ended.err) == (2, True)
    assert os.listdir(tmp_path / "out") == ["thesis.txt"]


def test_source_changed_between_plan_and_run_rejects_that_sample(
    two_classes: Path, bad_convert: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = run.prepare

    def prepare_and_change(request: Any) -> Any:
        jobs = prepare(request)
        (two_classes / "cat" / "0.jpg").write_bytes(b"shorter")
        (two_classes / "dog" / "1.jpg").unlink()
        return jobs

    monkeypatch.setattr(run, "prepare", prepare_and_change)
    ended = bad_convert(two_classes)
    ended.assert_counts(stored=2, rejected=2)
    assert "must not change" in ended.rejects[b"cat/0.jpg"]
    assert "must be readable" in ended.rejects[b"dog/1.jpg"]


def test_source_changed_before_resume_is_an_error(
    two_classes: Path, tmp_path: Path, bad_convert: Callable[..., Any]
) -> None:
    # given a conversion that stopped at a reject, and a source that changes before it continues
    (two_classes / "cat" / "2.jpg").write_bytes(b"text")
    assert bad_convert(two_classes, "--max-rejects", 0).code == 1
    (two_classes / "dog" / "0.jpg").write_bytes(b"something else")
    ended = bad_convert(two_classes, "--max-rejects", 5)
    assert (ended.code, "must not change before an unfinished conversion continues" in ended.err) == (1, True)
    assert not (tmp_path / "out" / "wellfed.json").exists()


def test_eio_while_reading_rejects_that_sample(
    two_classes: Path, bad_convert: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a worker in whose process the disk fails at one file
    (tmp_path / "fault").mkdir()
    (tmp_path / "fault" / "sitecustomize.py").write_text(
        "import os\nread, names = os.read, os.open\nbad = set()\n"
        "def open_(path, *rest, **more):\n    number = names(path, *rest, **more)\n"
        "    bad.discard(number)\n    if os.fsencode(path).endswith(b'cat/1.jpg'): bad.add(number)\n    return number\n"
        "def read_(number, size):\n    if number in bad: raise OSError(5, 'Input/output error')\n"
        "    return read(number, size)\n"
        "os.open, os.read = open_, read_\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'fault'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    ended = bad_convert(two_classes)
    ended.assert_counts(stored=3, rejected=1)
    assert ended.rejects == {b"cat/1.jpg": "the file must be readable; got Input/output error"}


def test_eio_while_listing_names_the_source_not_the_destination(
    two_classes: Path, bad_convert: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(location: str, options: InputOptions) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), location)

    monkeypatch.setattr("wellfed.converters.request.list_input", fail)
    bad_convert(two_classes).assert_error(2, "the source must be readable", str(two_classes), "Input/output error")


def test_disk_full_is_an_error_and_the_run_resumes(
    two_classes: Path, small_disk: Path, convert_any: Callable[..., Any], image: Callable[..., bytes]
) -> None:
    for number in range(8):
        (two_classes / "cat" / f"large {number}.jpg").write_bytes(image(size=(150, 100)))
    # The check of free space before the start stops it; nothing is written.
    ended = convert_any(two_classes, small_disk / "out")
    ended.assert_error(1, "must have", "GB free")
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    convert_any(two_classes, small_disk / "out").assert_counts(stored=12, rejected=0)


def test_disk_full_in_the_middle_keeps_finished_shards_and_resumes(
    two_classes: Path,
    small_disk: Path,
    convert_any: Callable[..., Any],
    image: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(8):
        (two_classes / "cat" / f"large {number}.jpg").write_bytes(image(size=(150, 100)))
    options = ("--shard-size", "2samples")
    with monkeypatch.context() as patch:
        patch.setattr("wellfed.converters.destination.Destination.check_space", lambda self, needed: None)
        ended = convert_any(two_classes, small_disk / "out", *options)
    assert (ended.code, "run the same command again" in ended.err) == (1, True)
    assert not (small_disk / "out" / "wellfed.json").exists()
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    ended = convert_any(two_classes, small_disk / "out", *options)
    ended.assert_counts(stored=12, rejected=0)
    assert "were finished by an earlier run" in ended.out


def test_full_temporary_folder_is_named_and_not_the_destination(
    two_classes: Path, small_disk: Path, bad_convert: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        (two_classes / "cat" / f"{'long name ' * 20}{number}.jpg").write_bytes(b"x")
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    ended = bad_convert(two_classes)
    ended.assert_error(1, f"the folder for temporary files, {small_disk}, must hold", "No space left", "TMPDIR")
    assert str(ended.folder) not in ended.err
    gc.collect()  # From Python 3.12 on the error's frames, which have the folder, are in a cycle.
    assert os.listdir(small_disk) == []


def test_map_full_is_enlarged_and_nothing_is_lost(
    two_classes: Path, bad_convert: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_output, "map_bytes", lambda sizes, **options: 1 << 15)
    ended = bad_convert(two_classes, "--format", "lmdb")
    assert (ended.code, ended.manifest["samples"]) == (0, 4)


def test_spool_of_a_killed_run_is_removed_by_the_next_and_one_in_use_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    # given what a killed process left: a folder without a lock; another tool's folder; and one in use
    (tmp_path / "wellfed-spool-killed" / "deep").mkdir(parents=True)
    (tmp_path / "wellfed-spool-killed" / "deep" / "rows").write_bytes(b"x")
    (tmp_path / "wellfed-demo").mkdir()
    (tmp_path / "wellfed-spool-link").symlink_to(tmp_path / "wellfed-demo")
    used = temporary.TemporaryFolder()
    # when the next run makes its own
    mine = temporary.TemporaryFolder()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"wellfed-demo", "wellfed-spool-link", used.path.name, mine.path.name}
    used.close()
    mine.close()
    assert {path.name for path in tmp_path.iterdir()} == {"wellfed-demo", "wellfed-spool-link"}
