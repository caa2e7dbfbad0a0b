"""A user's step as text: where `module:function` is defined, found without importing anything."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import textwrap
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["file_of_module", "main_module_name", "step_source_sha256"]


def main_module_name() -> str | None:
    """The name under which other processes import the running script; None in a notebook or an interactive session.

    `python train.py` gives "train", `python -m package.train` gives "package.train".
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name)
    path = getattr(main, "__file__", None)
    return Path(path).stem if path and Path(path).stem.isidentifier() else None


def file_of_module(name: str) -> Path | None:
    """The source file that `import name` would run, the current folder first; None where there is none."""
    places: list[str] | None = [os.getcwd(), *sys.path]
    found = None
    for part in name.split("."):
        # Not importlib.util.find_spec: it imports the packages around a module.
        found = None if places is None else PathFinder.find_spec(part, places)
        if found is None:
            return None
        locations = found.submodule_search_locations
        places = None if locations is None else list(locations)
    path = None if found is None or found.origin is None else Path(found.origin)
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


def step_source_sha256(name: str) -> str | None:
    """SHA-256 of the source text of `module:function`, its decorators included.

    Returns:
        None for a reference step, and where the text is not found: a module that is not there or not Python, a name
        that is not defined by `def` or `class` in it.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        return None
    main = sys.modules.get("__main__")
    path = Path(str(getattr(main, "__file__", ""))) if module == main_module_name() else file_of_module(module)
    if path is None:
        return None
    try:
        text = path.read_text("utf-8")
        body = ast.parse(text).body
    except (OSError, ValueError, SyntaxError):
        return None
    node: ast.stmt | None = None
    for part in attribute.split("."):
        # The last one counts, as it does when the module is run.
        node = next((n for n in reversed(body) if isinstance(n, _DEFINITIONS) and n.name == part), None)
        if not isinstance(node, _DEFINITIONS):
            return None
        body = node.body
    if not isinstance(node, _DEFINITIONS):
        return None
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    return hashlib.sha256(textwrap.dedent("\n".join(lines)).encode()).hexdigest()


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
