"""The arrows of the design's section 1, and: importing a module does nothing."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("pipeline", "converters")
SOURCES = sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))

# Each layer may import itself and what stands below it. `demo` makes its pictures and is run by the command line.
ALLOWED = {
    "errors": set(),
    "augmentations": {"errors"},
    "config": {"augmentations", "errors"},
    "hardware": {"config", "errors"},
    "formats": {"config", "errors"},
    "sampling": {"config", "errors"},
    "decode": {"formats", "sampling", "hardware", "config", "errors"},
    "augment": {"augmentations", "sampling", "config", "errors"},
    "loader": {"augment", "decode", "formats", "sampling", "hardware", "config", "errors"},
    "training": {"loader", "decode", "formats", "sampling", "hardware", "config", "errors"},
    "tune": {"training", "loader", "decode", "formats", "sampling", "hardware", "config", "errors"},
    "monitor": {"tune", "training", "loader", "decode", "formats", "sampling", "hardware", "config", "errors"},
    "report": {
        "monitor",
        "tune",
        "training",
        "loader",
        "decode",
        "formats",
        "sampling",
        "hardware",
        "config",
        "errors",
    },
}
EVERYTHING = {*ALLOWED, "report", "demo", "cli"}
ALLOWED["demo"] = EVERYTHING - {"cli"}
ALLOWED["cli"] = EVERYTHING
FOR_CONVERTERS = {"errors", "config", "formats", "sampling", "decode", "hardware"}

# Nothing of these may be loaded by importing a module; torch may, by the modules that compute with it.
HEAVY = ("nvidia.dali", "plotly", "ray", "fastapi", "uvicorn", "s3fs", "pyarrow", "datasets")


def module_name(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(("wellfed", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import in the file, those inside functions included."""
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def layer(dotted: str) -> str | None:
    """The layer of `wellfed.pipeline` a dotted name lies in; None for what is no layer of it, as `__version__`."""
    parts = dotted.split(".")
    return parts[2] if parts[:2] == ["wellfed", "pipeline"] and len(parts) > 2 and parts[2] in EVERYTHING else None


def wrong_arrows(path: Path) -> list[str]:
    name = module_name(path)
    own = layer(name)
    wrong = []
    for line, target in imported_names(path):
        where = f"{path.relative_to(REPOSITORY)}:{line} imports {target}"
        if target.split(".")[0] in ("pipeline", "converters"):
            wrong.append(f"{where}: write wellfed.{target}")
        if name.startswith("wellfed.pipeline"):
            if target.startswith("wellfed.converters") and own != "cli":
                wrong.append(f"{where}: pipeline never imports converters")
            if own is not None and (other := layer(target)) is not None and other != own and other not in ALLOWED[own]:
                wrong.append(f"{where}: {own} may not import {other}")
        elif (other := layer(target)) is not None and other not in FOR_CONVERTERS:
            wrong.append(f"{where}: converters may not import {other}")
    return wrong


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_arrows_run_one_way(path: Path) -> None:
    assert wrong_arrows(path) == []


def test_every_folder_of_the_pipeline_has_its_place_in_the_order() -> None:
    folders = {path.parent.name for path in (REPOSITORY / "pipeline").glob("*/__init__.py")}
    assert folders <= EVERYTHING


def test_the_command_line_imports_converters_only_inside_functions() -> None:
    wrong = []
    for path in (REPOSITORY / "pipeline" / "cli").glob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)) and "converters" in ast.unparse(node):
                wrong.append(f"{path.name}:{node.lineno}")
    assert wrong == []


def test_a_wrong_arrow_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a file of `formats` that reaches up, once from inside a function
    monkeypatch.setitem(globals(), "REPOSITORY", tmp_path)
    path = tmp_path / "pipeline" / "formats" / "bad.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "from ..errors import UsageError\ndef f():\n    from ..loader import DataLoader\nimport wellfed.tune\n"
    )
    # when it is checked, then the arrow to the loader is the one reported
    assert wrong_arrows(path) == [
        "pipeline/formats/bad.py:3 imports wellfed.pipeline.loader.DataLoader: formats may not import loader"
    ]


def test_files_stay_short() -> None:
    paths = [*SOURCES, *(REPOSITORY / "tests").rglob("*.py"), *(REPOSITORY / "benchmarks").rglob("*.py")]
    lengths = {str(path.relative_to(REPOSITORY)): len(path.read_text("utf-8").splitlines()) for path in paths}
    assert {name: length for name, length in lengths.items() if length > 450} == {}


WATCH = """
import importlib, json, os, sys, threading
before = dict(os.environ)
for library in ("torch", "torchvision"):  # what these do at import is theirs
    importlib.import_module(library)
os.environ.clear()
os.environ.update(before)
found = {}
for name in sys.argv[1:]:
    importlib.import_module(name)
    if threading.active_count() > 1:
        found.setdefault(name, []).append("started a thread")
    if dict(os.environ) != before:
        found.setdefault(name, []).append("changed the environment")
        os.environ.clear()
        os.environ.update(before)
torch = sys.modules["torch"]
print(json.dumps({
    "found": found,
    "cuda": torch.cuda.is_initialized(),
    "children": len(__import__("multiprocessing").active_children()),
    "loaded": sorted(sys.modules),
}))
"""


def test_importing_does_nothing() -> None:
    # given every module of both packages; __main__ is the one that is meant to act
    names = [module_name(path) for path in SOURCES if path.name != "__main__.py"]
    # when all are imported in one fresh process
    run = subprocess.run(
        [sys.executable, "-c", WATCH, *names],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / ".typing")},
    )
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    # then no thread, process, environment change or CUDA context came of it, and nothing optional was loaded
    assert seen["found"] == {}
    assert (seen["cuda"], seen["children"]) == (False, 0)
    assert [name for name in HEAVY if name in seen["loaded"]] == []
