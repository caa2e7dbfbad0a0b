"""Which options each kind of input has a use for: one that would do nothing is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from wellfed.pipeline.errors import UsageError

from .base import InputOptions

USES: Mapping[str, frozenset[str]] = {
    "stored": frozenset({"classes"}),
    "tar": frozenset({"label_regex", "image_column", "label_column", "columns", "prefix", "classes"}),
    "zip": frozenset({"label_regex", "image_column", "label_column", "columns", "prefix", "classes"}),
    "lmdb": frozenset({"label_regex", "image_column", "label_column", "allow_pickle", "encoding", "classes"}),
    "hf": frozenset({"image_column", "label_column", "columns", "root", "prefix", "split_name", "classes"}),
    "binary": frozenset({"label_column", "encoding", "prefix", "split_name", "classes"}),
    "torch": frozenset({"image_column", "label_column", "columns", "encoding", "classes"}),
    "table": frozenset({"label_regex", "image_column", "label_column", "columns", "root", "classes"}),
    "store": frozenset({"label_regex", "classes"}),
    "flat": frozenset({"label_regex", "classes"}),
    "folder": frozenset({"classes"}),
}
"""By kind of input; `InputOptions.kind` is for all."""

FLAGS: Mapping[str, str] = {
    "label_regex": "--label-regex",
    "image_column": "--image-column",
    "label_column": "--label-column",
    "columns": "--column",
    "root": "--root",
    "allow_pickle": "--allow-pickle",
    "prefix": "--prefix",
    "encoding": "--encoding",
    "classes": "--classes",
    "split_name": "--source-split",
}
"""What each option is called on the command line."""


def check_uses(kind: str, location: str, options: InputOptions) -> None:
    """Refuse an option that differs from its default and that this kind of input would ignore.

    Raises:
        UsageError: naming the first such option, and the kinds that use it.
    """
    for each in fields(InputOptions):
        name = each.name
        if name == "kind" or name in USES[kind] or getattr(options, name) == each.default:
            continue
        users = ", ".join(sorted(other for other, used in USES.items() if name in used))
        raise UsageError(
            f"{FLAGS[name]} is for inputs of the kinds {users}",
            got=f"{location}, read as {kind}",
            remedy="Leave the option out, or say with --input how else the source is to be read.",
        )


def refuse_unused(options: InputOptions, names: tuple[str, ...], why: str) -> None:
    """Refuse options that this one source has no use for, though others of its kind may.

    Raises:
        UsageError: naming the first of them, and why.
    """
    for name in names:
        value = getattr(options, name)
        if value != getattr(InputOptions(), name):
            raise UsageError(
                f"{FLAGS[name]} must have a use", got=f"{value!r}, and {why}", remedy="Leave the option out."
            )
