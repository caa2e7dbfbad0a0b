"""From packed shards to everything that a dataset holds, staged and ready to be published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from wellfed.pipeline import __version__
from wellfed.pipeline.errors import UsageError, WellfedError
from wellfed.pipeline.formats import INDEX_NAME, Manifest, index_dtype
from wellfed.pipeline.formats.manifest import MANIFEST_NAME
from wellfed.pipeline.formats.names import NAMES_BLOB, NAMES_OFFSETS, NamesWriter

from .destination import Destination
from .files import IndexWriter, join_files, sha256_of, write_file
from .follow import part_of
from .inputs import Input
from .layout import Layout
from .outputs import Follower, Output
from .plan import Plan
from .progress import ProgressCallback, Tally
from .rejects import REJECTS_NAME, first_reject
from .selection import Selection
from .task import ShardResult, rejects_name


def assemble(
    source: Input,
    selection: Selection,
    plan: Plan,
    output: Output,
    destination: Destination,
    results: Sequence[ShardResult],
    progress: ProgressCallback | None,
    follower: Follower,
) -> None:
    """Write index, names, rejects, manifest and what the output adds, and record all that is to be published.

    Raises:
        UsageError: see `check_any_stored`.
    """
    stored, rejected = (sum(getattr(result, name) for result in results) for name in ("samples", "rejected"))
    if stored + rejected != selection.found:
        raise WellfedError("stored and rejected samples must add up to those found", got=f"{stored}, {rejected}")
    layout = Layout.of(source.fields)
    rejects = [destination.tasks / rejects_name(result.number) for result in results if result.rejected]
    check_any_stored(plan.part, destination, results)
    parts = [part_of(destination, layout, result) for result in results if result.samples]
    write_tally = Tally("write", stored, progress)
    assembled = output.assemble(
        parts, destination.scratch, destination.final, lambda done: write_tally.running(0, done, rejected), follower
    )
    files = dict(assembled.files)
    with (
        IndexWriter(destination.final / INDEX_NAME, index_dtype(tuple(layout.members)), stored) as index,
        NamesWriter(destination.final) as names,
    ):
        for rows in output.published_rows(parts):
            index.add(rows)
            for key in rows["key"].tolist():
                names.add(source.name(selection.row(key)))
    for name in (INDEX_NAME, NAMES_BLOB, NAMES_OFFSETS):
        files[name] = sha256_of(destination.final / name)
    files[REJECTS_NAME] = join_files(rejects, destination.final / REJECTS_NAME)
    notes = Counter(source.notes)
    for result in results:
        notes.update(result.notes)
    manifest = Manifest(
        kind=output.kind,
        samples=stored,
        class_names=source.class_names,
        fields=tuple(layout.types),
        field_types=layout.types,
        shards=assembled.shards,
        files=files,
        options=plan.options.published(plan.part),
        source={
            "kind": source.kind,
            "fingerprint": source.fingerprint,
            "found": selection.found,
            "rejected": rejected,
            "skipped": {**source.skipped, **selection.skipped},
        },
        notes=dict(notes),
        tool_version=__version__,
    )
    write_file(destination.final / MANIFEST_NAME, manifest.dump().encode("ascii"))
    destination.stage(
        [
            *assembled.moves,
            *((destination.final / name, name) for name in sorted(files)),
            (destination.final / MANIFEST_NAME, MANIFEST_NAME),
        ]
    )


def check_any_stored(part: str | None, destination: Destination, results: Sequence[ShardResult]) -> None:
    """Refuse a dataset without samples, of a part of a split or the only one.

    Raises:
        UsageError: every sample was rejected; the work folder is emptied.
    """
    if any(result.samples for result in results):
        return
    rejected = [result for result in results if result.rejected]
    first = first_reject(destination.tasks / rejects_name(rejected[0].number))
    destination.clean()
    whole = "the source" if part is None else f"the part {part!r} of the split"
    raise UsageError(
        f"{whole} must hold at least one image that can be stored",
        got=f"{sum(result.rejected for result in rejected)} samples, all rejected; the first is "
        f"{first.name.decode('utf-8', 'backslashreplace')!r}: {first.reason}",
        remedy="Check the path, and that the images are whole."
        if part is None
        else "Mend them, or give the part a larger share; no part was published.",
    )
