"""Publish the index of shards that stay where they lie: everything staged, then put into place, the manifest last."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wellfed.pipeline import __version__
from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.formats import INDEX_NAME, Manifest, Shard, index_dtype
from wellfed.pipeline.formats.manifest import MANIFEST_NAME
from wellfed.pipeline.formats.names import NAMES_BLOB, NAMES_OFFSETS, NamesWriter

from .files import IndexWriter, join_files, sha256_of, sync_folder, write_file
from .inputs.tar import TarInput
from .outputs.webdataset import WIDS_NAME, index_name, wids_index
from .plan import CheckName
from .reindex_task import IN_PLACE, IndexResult, idx_name, rejects_name, rows_name
from .rejects import REJECTS_NAME, first_reject

WORK_NAME = ".wellfed-index"
OURS_NAME = "ours.json"
"""In the work folder, from the moment that files appear beside the shards: their names."""


@dataclass(frozen=True)
class StoredFields:
    """Fields as the manifest lists them.

    Attributes:
        types: field to {"type", "ext"}.
        places: field to the listing's columns for offset and size.
        left_out: fields whose extension no manifest can hold.
    """

    types: Mapping[str, Mapping[str, str | None]]
    places: Mapping[str, tuple[str, str]]
    left_out: int

    @property
    def extensions(self) -> dict[str, str | None]:
        """Field to its extension; None for the image's."""
        return {field: each["ext"] for field, each in self.types.items()}


def publish(
    source: TarInput,
    paths: Sequence[Path],
    directory: Path,
    work: Path,
    fields: StoredFields,
    results: Sequence[IndexResult],
    ours: set[str],
    check: CheckName,
) -> Manifest:
    """Write everything into the work folder and then, the manifest last, into place.

    Args:
        ours: files of an earlier index, replaced or removed.

    Raises:
        UsageError: every sample was rejected.
    """
    stored = sum(result.samples for result in results)
    final = work / "final"
    final.mkdir()
    rejected = len(source) - stored
    files = {REJECTS_NAME: join_files((work / rejects_name(each.archive) for each in results), final / REJECTS_NAME)}
    if not stored:
        first = first_reject(final / REJECTS_NAME)
        raise UsageError(
            "the shards must hold at least one image that can be loaded",
            got=f"{rejected} samples, all rejected; the first is "
            f"{first.name.decode('utf-8', 'backslashreplace')!r}: {first.reason}",
            remedy="Check the path, and that the images are whole.",
        )
    with (
        IndexWriter(final / INDEX_NAME, index_dtype(tuple(fields.places)), stored) as index,
        NamesWriter(final) as names,
    ):
        for result in results:
            rows = np.load(work / rows_name(result.archive), mmap_mode="r")
            index.add(rows)
            for key in rows["key"].tolist():
                names.add(source.name(key))
    for name in (INDEX_NAME, NAMES_BLOB, NAMES_OFFSETS):
        files[name] = sha256_of(final / name)
    shards = tuple(
        Shard(name=path.name, samples=each.samples, size=each.size, sha256=each.sha256)
        for path, each in zip(paths, results, strict=True)
    )
    notes = Counter(source.notes)
    for result in results:
        notes.update(result.notes)
    if fields.left_out:
        notes["field_left_out"] = fields.left_out
    files |= _side_indexes(directory, work, final, shards, results, ours, notes)
    manifest = Manifest(
        kind="webdataset",
        samples=stored,
        class_names=source.class_names,
        fields=tuple(fields.types),
        field_types=fields.types,
        shards=shards,
        files=files,
        options={IN_PLACE: True, "check": check, "image": "keep"},
        source={
            "kind": source.kind,
            "fingerprint": source.fingerprint,
            "found": len(source),
            "rejected": rejected,
            "skipped": dict(source.skipped),
        },
        notes=dict(notes),
        tool_version=__version__,
    )
    write_file(work / OURS_NAME, json.dumps(sorted(ours | set(files))).encode())
    (directory / MANIFEST_NAME).unlink(missing_ok=True)
    sync_folder(directory)
    for name in ours - set(files) - {MANIFEST_NAME}:
        (directory / name).unlink(missing_ok=True)
    for name in sorted(files):
        os.replace(final / name, directory / name)
    sync_folder(directory)
    # Through the work folder: what a killed run leaves there goes, and never lies among the shards.
    write_file(final / MANIFEST_NAME, manifest.dump().encode("ascii"))
    os.replace(final / MANIFEST_NAME, directory / MANIFEST_NAME)
    sync_folder(directory)
    (work / OURS_NAME).unlink()
    return manifest


def _side_indexes(
    directory: Path,
    work: Path,
    final: Path,
    shards: Sequence[Shard],
    results: Sequence[IndexResult],
    ours: set[str],
    notes: Counter[str],
) -> dict[str, str]:
    """DALI and wids indexes where all names are safe and no file of others has the index's name."""
    files: dict[str, str] = {}
    alike = [
        shard.name.count(".") == 1 and shard.name.endswith(".tar") and result.safe
        for shard, result in zip(shards, results, strict=True)
    ]
    for shard, result, safe in zip(shards, results, alike, strict=True):
        name = index_name(shard.name)
        if not safe:
            continue
        if name not in ours and os.path.lexists(directory / name):
            notes["idx_of_others_kept"] += 1
        else:
            files[name] = write_file(final / name, (work / idx_name(result.archive)).read_bytes())
    if all(alike) and all(result.plain and not result.rejected for result in results):
        if WIDS_NAME not in ours and os.path.lexists(directory / WIDS_NAME):
            notes["wids_index_of_others_kept"] += 1
        else:
            files[WIDS_NAME] = write_file(final / WIDS_NAME, wids_index(shards))
    return files
