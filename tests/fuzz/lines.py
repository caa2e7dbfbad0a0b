"""Which lines of chosen modules ran, by sys.settrace: for keeping inputs, and for the share in the report."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from .target import Target

Line = tuple[str, int]


def countable(target: Target) -> set[Line]:
    """(file, line) of every line in the bodies of the target's functions, those left out by name excepted.

    Raises:
        SystemExit: a name or a part of a line that is to be left out is not there any more.
    """
    found: set[Line] = set()
    used: set[str] = set()
    for module in target.modules:
        path = str(importlib.import_module(module).__file__)
        text = Path(path).read_text("utf-8")
        source = text.splitlines()
        for code in _functions(compile(text, path, "exec")):
            if target.functions and not code.co_qualname.startswith(target.functions):
                continue
            if code.co_qualname in target.uncounted:
                used.add(code.co_qualname)
                continue
            for _, _, line in code.co_lines():
                if line is None or line == code.co_firstlineno:
                    continue
                reasons = [part for part in target.uncounted if part in source[line - 1]]
                used.update(reasons)
                if not reasons:
                    found.add((path, line))
    if stale := set(target.uncounted) - used:
        raise SystemExit(f"{target.name}: no line to leave out has {', '.join(map(repr, sorted(stale)))}")
    return found


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            # A class's body runs when its module is imported.
            if constant.co_flags & 0x2:  # CO_NEWLOCALS: functions
                yield constant
            yield from _functions(constant)


class Tracer:
    """Collects the lines, and the pairs of lines after one another, that run in some files."""

    def __init__(self, files: Sequence[str]) -> None:
        self.lines: set[Line] = set()
        self.pairs: set[tuple[int, int]] = set()
        self._last = 0
        self._locals = {path: self._local(path, number << 20) for number, path in enumerate(sorted(set(files)))}

    def _local(self, path: str, base: int) -> Any:
        lines, pairs = self.lines, self.pairs

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                here = base + frame.f_lineno
                pair = (self._last, here)
                if pair not in pairs:
                    pairs.add(pair)
                    lines.add((path, frame.f_lineno))
                self._last = here
            return trace

        return trace

    def _global(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._locals.get(frame.f_code.co_filename)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Trace what runs inside."""
        self._last = 0
        sys.settrace(self._global)
        try:
            yield
        finally:
            sys.settrace(None)
