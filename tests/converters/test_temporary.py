"""Spool folders where several processes make, lock and sweep them at once."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from wellfed.converters.inputs.temporary import TemporaryFolder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_that_another_process_swept_before_it_was_locked_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = tempfile.mkdtemp, []

    def swept_at_first(**options: str) -> str:
        made.append(real(**options))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept_at_first)
    folder = TemporaryFolder()
    assert (str(folder.path), folder.path.is_dir(), len(made)) == (made[1], True, 2)
    folder.close()


def test_a_folder_that_goes_while_others_are_listed_is_no_error(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Path(tempfile.mkdtemp(prefix="wellfed-spool-"))

    class Listing:
        """A listing whose folder is removed before its owner is asked."""

        def __enter__(self) -> list[os.DirEntry[str]]:
            with scandir(temporary) as entries:
                found = list(entries)
            gone.rmdir()
            return found

        def __exit__(self, *_: object) -> None: ...

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda _: Listing())
    folder = TemporaryFolder()
    monkeypatch.undo()
    assert folder.path.is_dir()
    folder.close()


def test_a_folder_left_by_a_killed_process_goes_and_one_in_use_stays() -> None:
    left = Path(tempfile.mkdtemp(prefix="wellfed-spool-"))
    used = TemporaryFolder()
    assert not left.exists()
    other = TemporaryFolder()
    assert used.path.is_dir()
    used.close()
    other.close()
    assert not used.path.exists()
