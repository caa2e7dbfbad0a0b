"""The C extension of native/module.c."""

from collections.abc import Sequence
from typing import Any

KERNELS: str
LIBRARY: str

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
def decode_files(
    descriptors: Any,
    offsets: Any,
    sizes: Any,
    boxes: Any,
    orientations: Any,
    flips: Any,
    out: Any,
    size: int,
    dct_scaling: bool,
    portable: bool,
    status: Any,
    /,
) -> None: ...
def read_files(descriptors: Any, offsets: Any, sizes: Any, out: Any, /) -> int: ...
def plain_header(image: Any, /) -> tuple[int, int, str] | None: ...
def ordinary(images: Sequence[Any], widths: Any, heights: Any, out: Any, /) -> None: ...
def check(image: Any, /) -> tuple[int, int, str]: ...
def baseline(image: Any, /) -> tuple[int, int, str, bytes | None]: ...
def resize(
    image: Any, orientation: int, width: int, height: int, headroom: int, quality: int, grey: bool, /
) -> tuple[int, int, str, bytes | None]: ...
