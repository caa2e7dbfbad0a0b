"""What a dataset holds, counted from its index and manifest; no image is opened."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .base import Source
from .folder import FolderSource
from .index import MODES
from .stored import StoredSource


def summarize(source: Source) -> dict[str, Any]:
    """Counts of a dataset as plain JSON types.

    Returns:
        "kind", "location", "fingerprint", "samples", "classes" ([{"name", "samples"}], in label order),
        "image_bytes", "width" and "height" ({"total" (bytes only), "min", "mean", "median", "max"}; pixels as encoded;
        None with the reason in "not_measured" where headers were not read or there are no images), "modes",
        "orientations" and "extensions" (counts, None likewise), "rejected", "skipped", "notes", and for a converted
        dataset "fields", "shards", "files", "options", "source", "tool_version".
    """
    index = source.index
    labels = np.bincount(index["label"], minlength=len(source.class_names))
    has_images = "size_image" in (index.dtype.names or ())
    measured = has_images and bool(np.all(index["width"] > 0))
    reason = "image headers are not read before conversion" if has_images else "the dataset has no images"
    summary: dict[str, Any] = {
        "kind": source.kind,
        "location": source.location,
        "fingerprint": source.fingerprint,
        "samples": len(source),
        "classes": [
            {"name": name, "samples": int(count)} for name, count in zip(source.class_names, labels, strict=True)
        ],
        "image_bytes": {"total": int(index["size_image"].sum()), **(_spread(index["size_image"]) or {})}
        if has_images
        else None,
        "width": _spread(index["width"]) if measured else None,
        "height": _spread(index["height"]) if measured else None,
        "modes": _counts(index["mode"], [*MODES]) if measured else None,
        "orientations": _counts(index["orientation"], None) if measured else None,
        "not_measured": None if measured else reason,
        "extensions": _counts(index["ext"], None) if has_images else None,
    }
    if isinstance(source, StoredSource):
        manifest = source.manifest
        summary |= {
            "rejected": manifest.source.get("rejected"),
            "skipped": manifest.source.get("skipped"),
            "notes": dict(manifest.notes),
            "fields": list(manifest.fields),
            "shards": [dataclasses.asdict(shard) for shard in manifest.shards],
            "files": dict(manifest.files),
            "options": dict(manifest.options),
            "source": dict(manifest.source),
            "tool_version": manifest.tool_version,
        }
    elif isinstance(source, FolderSource):
        scan = source.scan
        summary |= {"rejected": len(scan.reasons), "skipped": dict(scan.skipped), "notes": dict(scan.notes)}
    return summary


def printable(name: str) -> str:
    """A name as one printable line: a newline or a byte that is not UTF-8 must not disturb a terminal or a page."""
    shown = "".join(c if c.isprintable() or "\udc80" <= c <= "\udcff" else repr(c)[1:-1] for c in name)
    return shown.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _spread(column: np.ndarray) -> dict[str, float] | None:
    if not len(column):
        return None
    return {
        "min": int(column.min()),
        "mean": round(float(column.mean()), 1),
        "median": float(np.median(column)),
        "max": int(column.max()),
    }


def _counts(column: np.ndarray, names: list[str] | None) -> dict[str, int]:
    values, counts = np.unique(column, return_counts=True)
    counted: dict[str, int] = {}
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        if names is not None:
            name = names[value] if value < len(names) else names[0]
        else:
            name = value.decode("ascii", "backslashreplace") if isinstance(value, bytes) else str(value)
        counted[name] = counted.get(name, 0) + count
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))
