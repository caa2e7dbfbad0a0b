"""`make test-torchdata`: what it says of a small checkout, and without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest
from torchdata.stateful_dataloader import Stateful, StatefulDataLoader


class TestLoader:
    def test_resuming(self):
        batches = iter(loader := StatefulDataLoader(list(range(6)), batch_size=2))
        next(batches)
        state = loader.state_dict()
        assert isinstance(loader, StatefulDataLoader)
        resumed = StatefulDataLoader(list(range(6)), 2)
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == [[2, 3], [4, 5]]

    def test_derived(self):
        class Derived(StatefulDataLoader):
            pass

        assert len(Derived([1, 2, 3])) == 3

    def test_without_a_loader(self):
        assert Stateful

    def test_that_torchdata_fails(self):
        assert len(StatefulDataLoader([1])) == 2

    def test_only_torchdatas_error(self):
        with pytest.raises(TypeError):
            StatefulDataLoader([1], colour="red")

    def test_skipping(self):
        pytest.skip("here")
"""


def start(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    folders = [str(repository / "tests"), str(repository / ".typing")]
    return subprocess.run(
        [sys.executable, "-m", "stateful", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )


@pytest.mark.long
def test_a_checkout_is_compared_with_torchdatas_own_loader(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "test" / "stateful_dataloader"
    folder.mkdir(parents=True)
    (folder / "test_small.py").write_text(TESTS)
    (folder / "test_incremental_state.py").write_text("raise SystemExit\n")
    (folder / "test_old.py").write_text("from torchdata import gone\n")
    done = start(repository, str(tmp_path))
    assert done.returncode == 1, done.stderr
    said = done.stdout.splitlines()
    assert "1 tests passed with loaders that wellfed.pipeline.DataLoader made, in test_old.py, test_small.py" in said
    assert "2 passed without making one here" in said
    assert "1 skipped themselves" in said
    assert "left out (not_applicable.txt): test_incremental_state.py" in said
    assert "fails with torchdata's own loader, too: test_old.py" in said
    assert "fails with torchdata's own loader, too: test_small.py::TestLoader::test_that_torchdata_fails" in said
    assert [line for line in said if line.startswith("FAILS")] == [
        "FAILS only with ours: test_small.py::TestLoader::test_only_torchdatas_error"
    ]


@pytest.mark.parametrize("wrong", ["", "nothing-here"])
def test_without_a_checkout_it_says_what_to_give(repository: Path, tmp_path: Path, wrong: str) -> None:
    done = start(repository, str(tmp_path / wrong))
    assert done.returncode == 2
    assert "a checkout of pytorch/data has tests in test/stateful_dataloader" in done.stderr
