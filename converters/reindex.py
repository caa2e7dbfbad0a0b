"""Index tar shards where they lie: manifest, index and names beside them, the tars themselves left untouched."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wellfed.pipeline.errors import DamagedDatasetError, UsageError
from wellfed.pipeline.formats import INDEX_NAME, Manifest
from wellfed.pipeline.formats.manifest import MANIFEST_NAME
from wellfed.pipeline.formats.names import NAMES_BLOB, NAMES_OFFSETS
from wellfed.pipeline.hardware import usable_cores

from .files import disk_errors
from .inputs.base import InputOptions
from .inputs.shards import TAR_ENDINGS, compression, expand
from .inputs.tar import TarInput
from .outputs.webdataset import WIDS_NAME
from .plan import CheckName
from .pool import run_tasks
from .progress import ProgressCallback, Tally
from .reindex_publish import OURS_NAME, WORK_NAME, StoredFields, publish
from .reindex_task import IN_PLACE, IndexResult, IndexTask, index_shard
from .rejects import REJECTS_NAME

_SHOWN = 5
_EXTENSION = re.compile(r"[a-z0-9_-]+\Z")


@dataclass(frozen=True, kw_only=True)
class IndexingResult:
    """What indexing did.

    Attributes:
        directory: the dataset's folder, which can be loaded from now on.
        stored, rejected, found: samples; stored + rejected = found.
        shards, bytes: tars.
        dali_indexes: tars that got an `.idx`; wids_index: the set got one.
        unsafe_names: of some samples whose names other readers may read differently, so that their tars got none.
        convert_command: makes a dataset that has both.
        notes: remarks on samples, counted.
        fingerprint: the dataset's identity.
    """

    directory: str
    stored: int
    rejected: int
    found: int
    shards: int
    bytes: int
    dali_indexes: int
    wids_index: bool
    unsafe_names: tuple[str, ...]
    convert_command: str
    notes: Mapping[str, int]
    fingerprint: str

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return asdict(self)


def index_shards(
    location: str,
    *,
    options: InputOptions | None = None,
    check: CheckName = "decode",
    workers: int | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> IndexingResult:
    """Make plain tar shards of one folder a dataset that loads without conversion.

    Writes the manifest, index, names and rejects beside them; a DALI index for each shard, and a wids index for the
    set, only where every name is one that all their readers read alike.

    Args:
        location: paths, braces, globs, a folder; see `inputs.shards.expand`.
        options: label rule, columns and classes; see `InputOptions`.
        check: "decode" decodes each image once and so finds all damage; "header" reads only headers.
        workers: processes; None for one on each usable core.
        overwrite: replace an earlier index of ours.

    Raises:
        UsageError: shards that cannot be read in place (compressed, members of a sample apart), with the command that
            converts them; in several folders; a folder with a dataset; no samples; a cut or damaged tar.
        SourceChangedError: a shard changed meanwhile.
        ResourceError: too little disk space.
    """
    options = options or InputOptions()
    if workers is not None and workers < 1:
        raise UsageError("there must be at least 1 worker", got=workers, remedy="Leave it out for one a core.")
    paths = expand(location, TAR_ENDINGS)
    directory = _folder_of(paths)
    command = _convert_command(location, options)
    packed = [path.name for path in paths if compression(path) != "plain"]
    if packed:
        raise UsageError(
            "only plain tars can be indexed in place",
            got=f"{len(packed)} compressed: {_listed(packed)}",
            remedy=f"Convert them: {command}",
        )
    with disk_errors(directory), _work_folder(directory) as work:
        ours = _our_files(directory, overwrite)
        source = TarInput.list(location, options)
        if scattered := source.listing.facts["scattered"]:
            raise UsageError(
                "the members of a sample must lie next to each other to be indexed in place",
                got=f"{source.listing.facts['scattered_samples']} samples apart, such as {_listed(scattered)}",
                remedy=f"Convert them: {command}",
            )
        source.save(work)
        fields = _fields(source)
        results = _run(source, location, paths, work, fields, check, workers, progress)
        manifest = publish(source, paths, directory, work, fields, results, ours, check)
    return IndexingResult(
        directory=str(directory),
        stored=manifest.samples,
        rejected=manifest.source["rejected"],
        found=manifest.source["found"],
        shards=len(manifest.shards),
        bytes=sum(shard.size for shard in manifest.shards),
        dali_indexes=sum(name.endswith(".idx") for name in manifest.files),
        wids_index=WIDS_NAME in manifest.files,
        unsafe_names=tuple(each.unsafe_name for each in results if each.unsafe_name is not None)[:_SHOWN],
        convert_command=command,
        notes=manifest.notes,
        fingerprint=manifest.fingerprint,
    )


def _folder_of(paths: Sequence[Path]) -> Path:
    folders = sorted({str(path.parent) for path in paths})
    if len({os.path.realpath(folder) for folder in folders}) > 1:
        raise UsageError(
            "shards that are indexed in place must lie in one folder, which becomes the dataset",
            got=_listed(folders),
            remedy="Index each folder, or bring the shards together by hard links.",
        )
    return Path(folders[0])


def _convert_command(location: str, options: InputOptions) -> str:
    words = ["wellfed", "convert", location, "DST", "--format", "webdataset"]
    for option, value in (
        ("--label-regex", options.label_regex),
        ("--label-column", options.label_column),
        ("--image-column", options.image_column),
    ):
        words += [option, value] if value is not None else []
    return shlex.join(words)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _our_files(directory: Path, overwrite: bool) -> set[str]:
    """Files of an earlier index of ours, which may be replaced; raises where others' would be."""
    ours: set[str] = set()
    if os.path.lexists(directory / MANIFEST_NAME):
        try:
            manifest = Manifest.load(directory)
        except DamagedDatasetError as error:
            raise UsageError(
                "a folder with a manifest must have a readable one",
                got=str(error.got),
                remedy=f"Remove {MANIFEST_NAME} yourself if it is no longer needed.",
            ) from error
        if not manifest.options.get(IN_PLACE):
            raise UsageError(
                "a dataset that wellfed wrote has its index already", got=str(directory), remedy="Load it as it is."
            )
        if not overwrite:
            raise UsageError(
                "the shards must not be indexed already", got=str(directory), remedy="Use --overwrite to index again."
            )
        ours = {MANIFEST_NAME, *manifest.files}
    # A killed run says which files beside the shards it had begun to write.
    try:
        ours |= set(json.loads((directory / WORK_NAME / OURS_NAME).read_bytes()))
    except FileNotFoundError:
        pass
    except ValueError as error:
        raise UsageError(
            "the work folder must be readable", got=f"{directory / WORK_NAME}", remedy="Remove it."
        ) from error
    names = (MANIFEST_NAME, INDEX_NAME, NAMES_BLOB, NAMES_OFFSETS, REJECTS_NAME)
    if foreign := [name for name in names if name not in ours and os.path.lexists(directory / name)]:
        raise UsageError(
            "files of others must not be replaced",
            got=f"{directory}, which holds {_listed(foreign)}",
            remedy="Move it.",
        )
    return ours


@contextmanager
def _work_folder(directory: Path) -> Iterator[Path]:
    """An empty work folder, held by a lock on the folder itself; removed unless a publication was cut short."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                "one command at a time may index a folder", got=str(directory), remedy="Wait for the other to end."
            ) from error
        work = directory / WORK_NAME
        work.mkdir(exist_ok=True)
        _empty(work)
        try:
            yield work
        finally:
            _empty(work)
            if not (work / OURS_NAME).exists():
                work.rmdir()
    finally:
        os.close(descriptor)


def _empty(work: Path) -> None:
    """Remove all but the record of files that a publication had begun to write."""
    for entry in work.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != OURS_NAME:
            entry.unlink()


def _fields(source: TarInput) -> StoredFields:
    types: dict[str, Mapping[str, str | None]] = {"image": {"type": "image", "ext": None}}
    places = {"image": ("offset", "size")}
    left_out = 0
    facts = source.listing.facts
    if "class_offset" in source.listing.columns:
        types["class"] = {"type": "class", "ext": facts["label_extension"]}
        places["class"] = ("class_offset", "class_size")
    further = [field for field in source.fields if field.type not in ("image", "class")]
    for number, (field, extension) in enumerate(zip(further, facts["extensions"], strict=False)):
        if not _EXTENSION.match(extension):
            left_out += 1
            continue
        name = "json" if extension == "json" else field.name
        types[name] = {"type": field.type, "ext": extension}
        places[name] = (f"f{number}_offset", f"f{number}_size")
    return StoredFields(types, places, left_out)


def _run(
    source: TarInput,
    location: str,
    paths: Sequence[Path],
    work: Path,
    fields: StoredFields,
    check: CheckName,
    workers: int | None,
    progress: ProgressCallback | None,
) -> list[IndexResult]:
    starts = np.searchsorted(source.listing.columns["archive"], np.arange(len(paths) + 1))
    tasks = [
        IndexTask(
            location=location,
            saved=str(work.absolute()),
            work=str(work.absolute()),
            archive=number,
            path=str(path.absolute()),
            start=int(starts[number]),
            stop=int(starts[number + 1]),
            places=fields.places,
            extensions=fields.extensions,
            check=check,
        )
        for number, path in enumerate(paths)
    ]
    tally = Tally("pack", len(source), progress)
    results: dict[int, IndexResult] = {}

    def keep(position: int, result: IndexResult) -> None:
        results[position] = result
        tally.finished(position, tasks[position].stop - tasks[position].start, result.rejected)

    cores = workers or max(1, int(usable_cores().value or 1))
    run_tasks(
        index_shard,
        [(task,) for task in tasks],
        workers=min(cores, len(tasks)),
        describe=lambda position, last: f"{paths[position].name}" + (f", at or soon after {last[2]!r}" if last else ""),
        on_result=keep,
        on_progress=lambda position, value: tally.running(position, value[0], value[1]),
    )
    return [results[number] for number in range(len(tasks))]
