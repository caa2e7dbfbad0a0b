"""The benchmarks lie at the root of the repository and are no installed package."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A module of the benchmarks, by its name below `benchmarks`."""
    monkeypatch.syspath_prepend(str(REPOSITORY))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.fixture(scope="session")
def run_options() -> dict[str, Any]:
    """How subprocess.run starts a benchmark."""
    path = os.pathsep.join(filter(None, sys.path))
    return {"cwd": REPOSITORY, "env": {**os.environ, "PYTHONPATH": path}, "check": True, "timeout": 280}


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four made photographs in two classes."""
    from wellfed.pipeline.demo.photolike import make_photolike

    folder = tmp_path_factory.mktemp("photos")
    make_photolike(folder, count=4, classes=2)
    return folder
