"""A user's own step, `module:function`: found, called, and checked.

A training script that calls `wellfed.pipeline.tune` may hold its step too, with or without a main guard: where such a
script is imported for its step, it runs up to that call and no further.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ..errors import StepError, UsageError, words_of
from ..loader.step_source import main_module_name

__all__ = ["build_user_step", "stop_while_importing"]

_being_imported: list[str] = []
"""Modules that are imported for their steps now; calls of `tune` in them are not meant."""


class _ReachedTune(BaseException):
    """Ends the import of a script at its call of `tune`; no Exception, so that the script's handlers let it pass."""


def stop_while_importing() -> None:
    """End the import of a script where it would measure itself; does nothing in a script that runs."""
    if _being_imported:
        raise _ReachedTune


def build_user_step(
    name: str,
    keywords: Mapping[str, Any],
    *,
    passes_through: Callable[[BaseException], bool],
    before_call: Callable[[], None] = lambda: None,
) -> Callable[..., Any]:
    """Import `module:function` (the working directory comes first on the path) and call it.

    Args:
        name: checked by `validate_step_name`.
        keywords: what the function may ask for; it gets those it accepts.
        passes_through: says of an exception that it must not be wrapped (out of device memory).
        before_call: called between import and call: what the function finds, and the import must not.

    Returns:
        The callable it returned, which takes (images, labels).

    Raises:
        UsageError: no such module or attribute, not callable, or it needs arguments other than those of `keywords`.
        StepError: importing or calling it raised, or it returned something that cannot be called.
    """
    build = _find(name)
    accepted = _accepted(name, build, keywords)
    before_call()
    try:
        step = build(**accepted)
    # SystemExit too: a script that parses arguments or exits must not end the measurement without a word.
    except (Exception, SystemExit) as error:
        if passes_through(error):
            raise
        raise StepError(
            f"building the step {name} must return a callable, and raised",
            got=words_of(error),
            remedy=_remedy(error),
        ) from error
    if not callable(step):
        raise StepError(
            f"the function of the step {name} must return a callable that takes (images, labels)",
            got=type(step).__name__,
            remedy="Return a function, or an object with __call__, that trains on one batch.",
        )
    return step


def _remedy(error: BaseException) -> str:
    if "process group has not been initialized" in str(error):
        return (
            "Start with torchrun, as `torchrun --standalone --nproc-per-node 1 -m wellfed.pipeline ...`, which has one "
            "made; or call tune() after init_process_group."
        )
    return "Mend the function; --debug shows its traceback."


def _find(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        found: Any = _import(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _import_failed(module_name, error) from error
        raise UsageError(
            f"the step's module {module_name!r} must be importable from {here!r} or the Python path",
            got=module_name if module_name.endswith(".py") else str(error),
            remedy=f"Write {module_name.removesuffix('.py')}:{attribute}, without .py."
            if module_name.endswith(".py")
            else "Run from the folder that holds the file, or set PYTHONPATH.",
        ) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(module_name, error) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            functions = sorted(k for k, v in vars(found).items() if callable(v) and not k.startswith("_"))[:10]
            raise UsageError(
                f"the step's module {module_name!r} must have the function {attribute!r}",
                got=f"a module with {', '.join(functions) or 'no functions'}",
                remedy="Write module:function with a function of that module.",
            )
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(
            f"the step {name!r} must name a function",
            got=type(found).__name__,
            remedy="Name a function that builds and returns the step.",
        )
    return found


def _import(name: str) -> ModuleType:
    if name == main_module_name():
        return sys.modules["__main__"]
    if name in sys.modules:
        return sys.modules[name]
    with _importing(name):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except _ReachedTune:
            # What stands above the call is there, and the step must: the call named it.
            return module
        except BaseException:
            sys.modules.pop(name, None)
            raise
    parent, _, child = name.rpartition(".")
    module = sys.modules[name]  # a module may put something else in its place
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


@contextmanager
def _importing(name: str) -> Iterator[None]:
    _being_imported.append(name)
    try:
        yield
    finally:
        _being_imported.remove(name)


def _import_failed(module_name: str, error: Exception | SystemExit) -> StepError:
    return StepError(
        f"the step's module {module_name!r} must import without an error",
        got=words_of(error),
        remedy="Put what runs as a script under `if __name__ == '__main__':`."
        if isinstance(error, SystemExit)
        else "Mend the module; --debug shows its traceback.",
    )


def _accepted(name: str, build: Callable[..., Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        # Some built-in callables have no signature; they get everything and may refuse it themselves.
        return dict(keywords)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        accepted = dict(keywords)
    else:
        by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        accepted = {key: value for key, value in keywords.items() if key in by_name}
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in accepted
    ]
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    if missing or positional:
        raise UsageError(
            f"the function of the step {name} may require only the keywords {', '.join(keywords)}",
            got=f"a function that requires {', '.join(dict.fromkeys([*missing, *positional]))}",
            remedy="Give its other parameters defaults.",
        )
    return accepted
