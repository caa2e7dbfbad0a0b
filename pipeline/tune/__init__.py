"""Finding loader settings and batch size by measuring: preflight, parts, model, search, hold, verdict.

The package is what a training script calls: `wellfed.pipeline.tune(source, step=...)`; see `call.tune`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .bench import run_bench
    from .outcome import TuneOutcome
    from .run import run_tune

__all__ = ["TuneOutcome", "run_bench", "run_tune"]

_HOME = {"TuneOutcome": "outcome", "run_bench": "bench", "run_tune": "run"}


__getattr__, __dir__ = lazy_names(__name__, _HOME)


class _CallablePackage(ModuleType):
    # `wellfed.pipeline.tune` is this package wherever anything of it was imported, so a function of that name in
    # wellfed.pipeline would be there or not by what ran before.
    def __call__(self, source: Any, **arguments: Any) -> TuneOutcome:
        from .call import tune

        return tune(source, **arguments)


sys.modules[__name__].__class__ = _CallablePackage
