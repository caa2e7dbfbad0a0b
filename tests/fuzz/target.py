"""What a fuzzing target is: a parser, valid files to start from, and what must hold for any input."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

MEBIBYTE = 1 << 20

Case = tuple[str, bytes]
"""Which of a target's files the bytes stand for, and the bytes."""


def as_it_is(rng: random.Random, slot: str, data: bytes) -> bytes:
    """No repair."""
    return data


@dataclass(frozen=True, kw_only=True)
class Target:
    """A parser under test.

    Attributes:
        run: (slot, bytes, empty folder of this process) reads them. Only errors of wellfed's may come out; a wrong
            success is an AssertionError.
        seeds: makes the valid files, each under its slot's name; a slot may be there several times.
        modules: the parser's modules, whose lines are counted.
        functions: qualified names, or starts of them, that are counted; empty for all of `modules`.
        uncounted: a function's qualified name, or part of a line's text, to the reason why it is not counted.
        words: what this parser's files are made of, for inserting.
        repair: makes sums and lengths right again, sometimes, so that damage reaches what is behind them.
        memory: bytes that one input may take beside what was taken before.
        cpu: seconds of CPU time that one input may take.
    """

    name: str
    run: Callable[[str, bytes, Path], None]
    seeds: Callable[[], list[Case]]
    modules: tuple[str, ...]
    functions: tuple[str, ...] = ()
    uncounted: Mapping[str, str] = field(default_factory=dict)
    words: tuple[bytes, ...] = ()
    repair: Callable[[random.Random, str, bytes], bytes] = as_it_is
    memory: int = 64 * MEBIBYTE
    cpu: int = 5
