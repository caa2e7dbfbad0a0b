"""Whether the program is the kernel of a notebook."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["in_notebook"]


def in_notebook() -> bool:
    """Whether cells of a notebook (Jupyter, Colab, an editor's) run in this process.

    Asked of IPython where the program has loaded it. A library that merely imports ipykernel makes no notebook, nor
    does IPython on a terminal: neither has the kernel's threads, or shows HTML.
    """
    find: Any = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = find() if find is not None else None
    return getattr(shell, "kernel", None) is not None
