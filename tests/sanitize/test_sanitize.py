"""`make sanitize` runs clean for a moment, and finds faults that are put into a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not here"),
]

FAULT = """
import argparse, sys
from pathlib import Path
from sanitize.__main__ import build, run

folder, checkout = Path(sys.argv[1]), Path(sys.argv[2])
given = argparse.Namespace(seconds=3.0, images=[])
findings = run(build(folder, checkout), folder, given, 1)
print("FINDINGS", findings)
"""


def python(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(repository / "tests")}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=250)


def test_ten_seconds_are_clean(repository: Path) -> None:
    ended = python(repository, "-m", "sanitize", "--seconds", "10")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("seed ")
    assert "crops decoded" in ended.stdout


@pytest.mark.parametrize(
    ("file", "right", "wrong", "said"),
    [
        ("resample.c", "    taps->outputs = outputs;", "    taps->outputs = outputs + 1;", "heap-buffer-overflow"),
        ("jpegcheck.c", "    free(c->row);\n", "", "leak of"),
        (
            "jpegcodec.c",
            "    int scale = 1;",
            "    volatile int most = 2147483647; most = most + 1; int scale = 1;",
            "runtime error",
        ),
    ],
)
def test_faults_are_found(repository: Path, tmp_path: Path, file: str, right: str, wrong: str, said: str) -> None:
    copy = tmp_path / "checkout"
    for name in ("pipeline", "converters"):
        shutil.copytree(repository / name, copy / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, copy / name)
    path = copy / "pipeline" / "decode" / "native" / file
    text = path.read_text()
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong))

    ended = python(repository, "-c", FAULT, str(tmp_path), str(copy))

    assert said in ended.stdout, ended.stdout + ended.stderr
