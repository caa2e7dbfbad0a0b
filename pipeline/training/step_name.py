"""The name under which child processes import a step that a script gives as a function."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..loader.step_source import file_of_module, main_module_name

__all__ = ["name_of_step"]

_RULE = "a step given as a function must be importable, because child processes import it again to probe memory"


def name_of_step(step: str | Callable[..., Any]) -> str:
    """The name of a step: a text as it is, a function as "module:function".

    Raises:
        UsageError: a lambda, a closure, an object, or a function of a notebook, with the reason.
    """
    if isinstance(step, str):
        return step
    module, name = getattr(step, "__module__", None), getattr(step, "__qualname__", None)
    if not callable(step) or not isinstance(module, str) or not isinstance(name, str):
        raise _refused(f"an object of type {type(step).__name__}, which has no name of its own")
    if "<lambda>" in name:
        raise _refused("a lambda, which has no name")
    if "<locals>" in name:
        raise _refused(f"{name}, a closure: it is there only while the function around it runs")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not step:
        raise _refused(f"{module}.{name}, under which name the module holds something else")
    if module == "__main__":
        module = _importable_main(name)
    return f"{module}:{name}"


def _importable_main(function: str) -> str:
    name = main_module_name()
    if name is None:
        raise UsageError(
            _RULE,
            got=f"{function}, a function of a notebook or an interactive session",
            remedy=f"Write it to a file, in a notebook with %%writefile mystep.py, and give step='mystep:{function}'.",
        )
    main = sys.modules["__main__"]
    file, found = Path(str(main.__file__)), file_of_module(name)
    if found is None or not found.samefile(file):
        raise UsageError(
            f"the running script must be what `import {name}` finds, because child processes import its step",
            got=f"{file}, while that finds {found or 'nothing'} from {os.getcwd()}",
            remedy="Run from the script's folder, rename the script, or move the step into a module of its own.",
        )
    return name


def _refused(got: str) -> UsageError:
    return UsageError(
        _RULE, got=got, remedy="Define it by `def` at the top level of a module, or give step='module:function'."
    )
