"""Compiled steps among several batch sizes: each gets the graph it would have in training, which sees but one size."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_MOST_GRAPHS = 64
"""Of one function: batch sizes, and the memory formats that loaders give. Beyond its limit torch runs it uncompiled."""


class StaticGraphs:
    """Has `torch.compile` make one graph with fixed shapes for each batch size.

    By itself it makes the second size's graph for any size, and that one is slower: ResNet-50 at 4,372 img/s instead of
    6,590 on an H200. What a step asks for itself (`dynamic=True`, `mark_dynamic`) holds all the same. The settings are
    those of "Dynamic Shapes" and "Recompilation" in PyTorch's manual for torch.compile.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def apply(self) -> None:
        """Set it where a step has brought the compiler in, which takes seconds to import; again does nothing."""
        config = getattr(sys.modules.get("torch._dynamo"), "config", None)
        if config is None or self._undo:
            return
        self._set(config, "automatic_dynamic_shapes", False)
        self._set(config, "recompile_limit", max(_MOST_GRAPHS, config.recompile_limit))

    def restore(self) -> None:
        """Put back what was set before."""
        while self._undo:
            self._undo.pop()()

    def _set(self, config: Any, name: str, value: Any) -> None:
        before = getattr(config, name)
        self._undo.append(lambda: setattr(config, name, before))
        setattr(config, name, value)
