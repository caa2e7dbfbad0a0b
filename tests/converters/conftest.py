"""Small image folders, and the bytes of what was published."""

from __future__ import annotations

import hashlib
import io
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image


def jpeg(seed: int, width: int = 40, height: int = 30) -> bytes:
    noise = random.Random(seed).randbytes(width * height * 3)
    buffer = io.BytesIO()
    Image.frombytes("RGB", (width, height), noise).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to themselves, conversion and verification start one worker: a test that wants more says so."""
    from wellfed.converters import checks, request
    from wellfed.pipeline.hardware import Fact

    for module in (request, checks):
        monkeypatch.setattr(module, "usable_cores", lambda: Fact("usable cores", 1, "cores", "test"))


@pytest.fixture
def make_jpeg() -> Callable[..., bytes]:
    """(seed, width, height) to the bytes of a JPEG of noise."""
    return jpeg


def write_photos(root: Path) -> Path:
    for label, name in enumerate("abc"):
        (root / name).mkdir(parents=True)
        for number in range(4):
            (root / name / f"{number}.jpg").write_bytes(jpeg(10 * label + number))
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes ("a", "b", "c") of four JPEGs each."""
    return write_photos(tmp_path / "photos")


@pytest.fixture(scope="module")
def module_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same photos for tests that only read them."""
    return write_photos(tmp_path_factory.mktemp("input") / "photos")


@pytest.fixture
def digests() -> Callable[[Path], dict[str, str]]:
    """A folder to the SHA-256 of each file in it, whatever the depth."""

    def of(folder: Path) -> dict[str, str]:
        found = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    return of


@pytest.fixture
def environment(repository: Path) -> dict[str, str]:
    """The environment of a child process that runs the checkout."""
    paths = [str(repository / ".typing"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


INTERRUPT = '''
"""Sends a signal to the conversion when it, or its worker, has done so many renames and removals of its files."""
import os, signal, sys

role, left, number = os.environ["TEST_INTERRUPT"].split(":")
left = int(left)
in_parent = sys.orig_argv[1:2] == ["-m"]

def hook(event, args):
    global left
    if event in ("os.rename", "os.remove") and b".wellfed-work" in os.fsencode(args[0]):
        left -= 1
        if left == 0:
            os.kill(os.getppid() if role == "parent-from-worker" else os.getpid(), int(number))
        if "TEST_COUNT" in os.environ:
            with open(os.environ["TEST_COUNT"], "a") as file:
                file.write("x")

if in_parent == (role == "parent"):
    mark = os.environ.get("TEST_ONCE")
    if mark is None or not os.path.exists(mark):
        if mark is not None:
            open(mark, "w").close()
        sys.addaudithook(hook)
'''


@pytest.fixture
def interrupt(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH: TEST_INTERRUPT="ROLE:N:SIGNAL" sends the signal at the N-th rename or removal.

    ROLE "parent" signals itself, "parent-from-worker" is signalled by its worker, "worker" signals itself. With
    TEST_ONCE=FILE only the first process does it, with TEST_COUNT=FILE each event adds a byte.
    """
    folder = tmp_path / "interrupt"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(INTERRUPT)
    return folder
