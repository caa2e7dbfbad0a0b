"""CIFAR's pickled batches, read without running anything that a pickle may hold.

Unpickling builds objects by calling what the file names. Here it can name five things, and each stands for a class or
function of this file that only keeps bytes: no NumPy object is ever unpickled.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from wellfed.pipeline.errors import UsageError, words_of


def read_batch(path: Path) -> dict[str, Any]:
    """A batch or meta file: its dictionary, arrays as u1.

    Raises:
        UsageError: it cannot be read, is cut short, or holds anything but text, numbers, lists, dictionaries and arrays
            of unsigned bytes.
    """
    try:
        data = path.read_bytes()
        _check_sizes(data)
        found = _Restricted(io.BytesIO(data), encoding="latin1").load()
    except OSError as error:
        raise UsageError(f"{path.name} must be readable", got=error.strerror or str(error)) from error
    except Exception as error:
        # What a damaged pickle makes of the unpickler is not limited to its own errors.
        raise UsageError(
            f"{path.name} must be a whole pickled batch of CIFAR",
            got=words_of(error),
            remedy="It is damaged, cut short or of another kind; fetch it again.",
        ) from error
    if not isinstance(found, dict):
        raise UsageError(f"{path.name} must hold a dictionary", got=type(found).__name__)
    named = {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}
    empty = [name for name, value in named.items() if _is_array(value) and not hasattr(value, "values")]
    if empty:
        raise UsageError(
            f"{path.name} must be a whole pickled batch of CIFAR",
            got=f"an array without values for {empty[0]!r}",
            remedy="It is damaged, cut short or of another kind; fetch it again.",
        )
    return {name: value.values if _is_array(value) else value for name, value in named.items()}


def _check_sizes(data: bytes) -> None:
    """Refuse places in the memo beyond the data, for which the unpickler would take memory at once."""
    for opcode, argument, _ in pickletools.genops(data):
        # A place in the memo is kept in a table that reaches up to it.
        if opcode.name in _PLACES and isinstance(argument, int) and argument > len(data):
            raise ValueError(f"a value at place {argument} of {len(data)} bytes")


def _is_array(value: object) -> bool:
    return isinstance(value, _Array)


_PLACES = ("PUT", "BINPUT", "LONG_BINPUT")


class _Dtype:
    """Stands for `numpy.dtype`."""

    def __init__(self, name: object, *_: object) -> None:
        if name not in ("u1", "|u1", "uint8"):
            raise ValueError(f"an array of {name!r}, where pixels are u1")

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment; bytes have none."""


class _Array:
    """Stands for `numpy.ndarray`."""

    values: np.ndarray

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype):
            raise ValueError("an array without a dtype")
        # Pickles of Python 2 hold text, which Latin-1 maps to bytes one to one.
        raw = data.encode("latin-1") if isinstance(data, str) else bytes(data)
        if len(raw) != math.prod(shape):
            raise ValueError(f"{len(raw)} bytes for an array of shape {shape}")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


def _reconstruct(kind: object, shape: object, type_code: object) -> _Array:
    if kind is not _Array or shape != (0,):
        raise ValueError("an array that is not made empty and then filled")
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"bytes written as {encoding!r}")
    return text.encode("latin-1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch of CIFAR needs")
        return _ALLOWED[module, name]
