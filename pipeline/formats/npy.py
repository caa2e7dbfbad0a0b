"""Read .npy files that may be damaged: whatever NumPy makes of one, a ValueError comes out."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

_MAGIC = b"\x93NUMPY"


def map_npy(path: Path) -> np.ndarray:
    """Map the array of a file read-only.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is no whole .npy file.
    """
    # Not np.load, which takes any zip for a dictionary of arrays.
    with open(path, "rb") as file:
        start = file.read(len(_MAGIC))
    with _damage(start):
        return np.lib.format.open_memmap(path, mode="r")


def parse_npy(data: bytes) -> np.ndarray:
    """The array in the bytes of a file. Raises ValueError where they are no whole .npy file."""
    with _damage(data):
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


@contextmanager
def _damage(start: bytes) -> Iterator[None]:
    if not start.startswith(_MAGIC):
        raise ValueError("it does not begin as an .npy file does")
    try:
        yield
    except (OSError, ValueError):
        raise
    except Exception as error:
        # Its header is a Python literal: a damaged one raises what the tokenizer, the compiler or dtypes do.
        raise ValueError(f"its header is damaged ({type(error).__name__})") from error
