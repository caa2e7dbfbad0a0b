"""Where a Hugging Face dataset on disk keeps its files, which splits it has, and what its columns are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wellfed.pipeline.errors import UsageError

from .arrow_files import ARROW_SUFFIXES, PARQUET_SUFFIXES

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_SPLIT_WORDS = ("train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval")


@dataclass(frozen=True)
class HfFiles:
    """The files of one split.

    Attributes:
        base: folder that paths start from.
        files: relative to it, in order.
        split: its name; None where the source has no splits.
        features: the columns' types as `datasets` writes them; empty where only the files know.
        rows: that the dataset's own record promises; None without one.
    """

    base: Path
    files: tuple[str, ...]
    split: str | None
    features: Mapping[str, Any]
    rows: int | None


def find_files(location: Path, split: str | None) -> HfFiles:
    """The files of the split that was asked for, or of the only one.

    Raises:
        UsageError: no such dataset; several splits and none chosen, or another one; damaged records.
    """
    if (location / SPLITS).is_file():
        names = _record(location / SPLITS).get("splits")
        if not isinstance(names, list) or not names or not all(_plain_name(each) for each in names):
            raise UsageError(f"{SPLITS} must list the names of the splits", got=repr(names))
        return _saved(location / _choose(names, split), None)
    if (location / STATE).is_file():
        return _saved(location, split)
    if location.is_file():
        return _loose(location.parent, [location], split)
    if not location.is_dir():
        raise UsageError("the source must exist", got=str(location), remedy="Check the path.")
    return _loose(location, loose_files(location), split)


def loose_files(folder: Path) -> list[Path]:
    """Arrow or Parquet files in a folder and below it, sorted by path; hidden ones are left out."""
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix in (*ARROW_SUFFIXES, *PARQUET_SUFFIXES)
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and not path.name.startswith("cache-")  # results that `datasets` keeps of its own map() and filter()
    ]
    return [path for path in found if path.is_file()]


def features_of_metadata(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """The types that `datasets` wrote into a file's schema; empty without them."""
    try:
        found = json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _saved(folder: Path, split: str | None) -> HfFiles:
    state = _record(folder / STATE)
    info = _record(folder / INFO) if (folder / INFO).is_file() else {}
    own = state.get("_split")
    if split is not None and split != own:
        raise UsageError("the split must be one that the source has", got=split, remedy=f"It has {own}.")
    if state.get("_indices_data_files"):
        raise UsageError(
            "a saved dataset must hold its rows in order, and this one holds a list of indices",
            got=folder.name,
            remedy="Load it, call flatten_indices() and save it again.",
        )
    try:
        names = tuple(entry["filename"] for entry in state["_data_files"])
    except (KeyError, TypeError) as error:
        raise UsageError(f"{STATE} must list the data files", got=folder.name, remedy=_SAVE_AGAIN) from error
    if not names:
        raise UsageError("the source must hold at least one row", got=f"{folder.name}, which has no data files")
    if not all(_plain_name(name) for name in names):
        raise UsageError(f"{STATE} must name files of its own folder", got=", ".join(map(str, names)))
    for name in names:
        if not (folder / name).is_file():
            raise UsageError("every data file of a saved dataset must be there", got=f"no {name}", remedy=_SAVE_AGAIN)
    features = info.get("features")
    promised = (info.get("splits") or {}).get(own) if isinstance(info.get("splits"), dict) else None
    rows = promised.get("num_examples") if isinstance(promised, dict) else None
    # A filtered dataset keeps the record of what it was filtered from, so only a file count of its own is a promise.
    lengths = promised.get("shard_lengths") if isinstance(promised, dict) else None
    whole = isinstance(lengths, list) and len(lengths) == len(names)
    return HfFiles(folder, names, own, features if isinstance(features, dict) else {}, rows if whole else None)


_SAVE_AGAIN = "Save it again, or copy all of its files."


def _loose(base: Path, paths: list[Path], split: str | None) -> HfFiles:
    if not paths:
        raise UsageError(
            "a Hugging Face dataset must have Arrow or Parquet files",
            got=f"{base}, which has none",
            remedy="Give the folder that save_to_disk wrote, or one that holds .arrow or .parquet files.",
        )
    info = _record(base / INFO) if (base / INFO).is_file() else {}
    known = info.get("splits") if isinstance(info.get("splits"), dict) else {}
    by_split: dict[str | None, list[Path]] = {}
    for path in paths:
        by_split.setdefault(_split_of(path, base, known or {}), []).append(path)
    names = [each for each in by_split if each is not None]
    if split is None and names and None in by_split:
        raise UsageError(
            "all files must be of one split, and some name none",
            got=", ".join(path.name for path in (by_split[names[0]][0], by_split[None][0])),
            remedy="Name the split (--source-split), or give one file.",
        )
    chosen = None if split is None and by_split.keys() == {None} else _choose(names, split)
    files = by_split[chosen]
    folders = sorted({str(path.parent.relative_to(base)) for path in files})
    if len(folders) > 1:
        raise UsageError(
            "the files of a split must lie in one folder", got=", ".join(folders), remedy="Give one of the folders."
        )
    features = info.get("features")
    names_of_files = tuple(str(path.relative_to(base)) for path in files)
    return HfFiles(base, names_of_files, chosen, features if isinstance(features, dict) else {}, None)


def _split_of(path: Path, base: Path, known: Mapping[str, Any]) -> str | None:
    stem = _SHARD.sub("", path.stem)
    word = stem.rsplit("-", 1)[-1]
    if stem != path.stem or word in known or word in _SPLIT_WORDS:
        return word
    parent = path.parent.name
    return parent if path.parent != base and (parent in known or parent in _SPLIT_WORDS) else None


def _choose(names: list[str], split: str | None) -> str:
    if split is None and len(names) == 1:
        return names[0]
    words = ", ".join(names) or "none that its files name"
    if split is None:
        raise UsageError(
            "a source with several splits is converted one split at a time",
            got=f"the splits {words}",
            remedy="Name one of them (--source-split).",
        )
    if split not in names:
        raise UsageError("the split must be one that the source has", got=split, remedy=f"It has {words}.")
    return split


def _plain_name(name: object) -> bool:
    return isinstance(name, str) and bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name


def _record(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path.name} must be readable JSON", got=str(error).replace(str(path), path.name)) from error
    if not isinstance(found, dict):
        raise UsageError(f"{path.name} must hold a JSON object", got=type(found).__name__)
    return found
