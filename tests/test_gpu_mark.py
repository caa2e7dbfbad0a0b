"""What the `gpu` mark does, in a pytest run of its own where torch sees no GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.gpu
def test_needs_a_gpu():
    assert True

@pytest.mark.gpu
def test_skips_itself():
    pytest.skip("not on this card")

def test_needs_none():
    pytest.skip("for another reason")
"""


# Stands in for torch in that run: all that the mark asks it is whether a GPU is there.
FAKE_TORCH = """
import os

class cuda:
    @staticmethod
    def is_available():
        return os.environ["FAKE_GPU"] == "yes"
"""


def outcomes(folder: Path, repository: Path, *, gpu: str, promised: str) -> tuple[int, str]:
    """Exit code and output of a pytest run over TESTS beside a copy of our conftest.py."""
    shutil.copy(repository / "tests" / "conftest.py", folder)
    (folder / "torch.py").write_text(FAKE_TORCH)
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "FAKE_GPU": gpu, "WELLFED_REQUIRE_GPU": promised},
    )
    return run.returncode, run.stdout


def test_without_a_gpu_they_are_skipped(tmp_path: Path, repository: Path) -> None:
    code, output = outcomes(tmp_path, repository, gpu="no", promised="")
    assert code == 0, output
    assert "3 skipped in" in output


def test_a_promised_gpu_that_is_not_there_is_an_error(tmp_path: Path, repository: Path) -> None:
    code, output = outcomes(tmp_path, repository, gpu="no", promised="1")
    assert code == 1, output
    assert "1 skipped, 2 errors in" in output
    assert "WELLFED_REQUIRE_GPU=1 promises a GPU" in output


def test_where_a_gpu_is_promised_a_skip_is_a_failure(tmp_path: Path, repository: Path) -> None:
    code, output = outcomes(tmp_path, repository, gpu="yes", promised="1")
    assert code == 1, output
    assert "1 failed, 1 passed, 1 skipped in" in output
    assert "yet this was skipped: Skipped: not on this card" in output


def test_where_a_gpu_is_promised_a_file_that_skips_itself_fails(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "test_more.py").write_text("import pytest\npytest.importorskip('no_such_library')\n")
    code, output = outcomes(tmp_path, repository, gpu="yes", promised="1")
    assert code == 2, output
    assert "1 error in" in output
    assert "no_such_library" in output


@pytest.mark.gpu
def test_torch_sees_the_gpu() -> None:
    import torch

    assert torch.cuda.device_count() >= 1
    assert torch.ones(2, device="cuda").sum().item() == 2.0
