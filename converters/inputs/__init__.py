"""What can be converted: one file for each kind of input."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from wellfed.pipeline.errors import UsageError

from .base import USUAL_FIELDS, Field, FieldType, Input, InputOptions, Record
from .uses import check_uses

__all__ = [
    "REGISTRY",
    "USUAL_FIELDS",
    "Field",
    "FieldType",
    "Input",
    "InputOptions",
    "Kind",
    "Record",
    "kinds",
    "list_input",
    "open_saved",
]


class Kind(NamedTuple):
    """A kind of input: its name, and the module here and class that read it.

    The module also has `matches(location: str) -> bool`, cheap and without raising: whether the location is, by
    itself, of this kind. Modules import what is heavy, or optional, only inside functions.
    """

    name: str
    module: str
    class_name: str


REGISTRY = (
    Kind("stored", "stored", "StoredInput"),
    Kind("tar", "tar", "TarInput"),
    Kind("zip", "zip", "ZipInput"),
    Kind("lmdb", "lmdb_foreign", "LmdbInput"),
    Kind("hf", "hf", "HfInput"),
    Kind("binary", "binary", "BinaryInput"),
    Kind("torch", "torch_dataset", "TorchDatasetInput"),
    Kind("table", "table", "TableInput"),
    Kind("store", "store", "StoreInput"),
    Kind("flat", "flat", "FlatInput"),
    Kind("folder", "folder", "FolderInput"),
)
"""In the order in which they are asked; the folder, which fits any path, comes last."""


def kinds() -> tuple[str, ...]:
    """Names of all kinds of input."""
    return tuple(kind.name for kind in REGISTRY)


def list_input(location: str, options: InputOptions) -> Input:
    """List what is at a location.

    Raises:
        UsageError: it is no input, no such kind is known, or this kind has no use for one of the options.
    """
    kind = _kind(options.kind) if options.kind is not None else _detect(location, options)
    check_uses(kind.name, location, options)
    listed: Input = _class_of(kind).list(location, options)
    return listed


def open_saved(kind: str, location: str, directory: Path) -> Input:
    """The input at `location` as `save` wrote it into `directory`: the listing of the plan, not of now."""
    loaded: Input = _class_of(_kind(kind)).load(location, directory)
    return loaded


def _kind(name: str) -> Kind:
    for kind in REGISTRY:
        if kind.name == name:
            return kind
    raise UsageError(f"the kind of input must be one of {', '.join(kinds())}", got=name, remedy="Choose one of those.")


def _detect(location: str, options: InputOptions) -> Kind:
    found = next((kind for kind in REGISTRY if _module_of(kind).matches(location)), REGISTRY[-1])
    if found.name == "folder" and options.label_regex is not None:
        return _kind("flat")
    return found


def _module_of(kind: Kind) -> ModuleType:
    return import_module(f".{kind.module}", __name__)


def _class_of(kind: Kind) -> Any:
    return getattr(_module_of(kind), kind.class_name)
