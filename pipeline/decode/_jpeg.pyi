"""The C extension of native/module.c."""

from collections.abc import Sequence
from typing import Any

KERNELS: str

def decode(
    images: Sequence[Any],
    boxes: Any,
    orientations: Any,
    flips: Any,
    out: Any,
    size: int,
    dct_scaling: bool,
    portable: bool,
    status: Any,
    /,
) -> list[str]: ...
def check(image: Any, /) -> tuple[int, int, str]: ...
