"""What a converted dataset is read by: manifest, index, names, and everything that `verify` reads."""

from __future__ import annotations

import io
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from wellfed.converters import checks, convert, verify
from wellfed.converters.inputs import InputOptions
from wellfed.converters.reindex import index_shards
from wellfed.pipeline.errors import DamagedDatasetError
from wellfed.pipeline.formats import INDEX_NAME, Manifest, open_source
from wellfed.pipeline.formats.manifest import MANIFEST_NAME
from wellfed.pipeline.formats.names import NAMES_BLOB, NAMES_OFFSETS

from .mutate import mutate_json, sum_tar
from .target import Case, Target

DATA_NAME = "data.mdb"


@cache
def dataset(output: str) -> dict[str, bytes]:
    """The files of a small dataset: two shards, two classes, a further field, one reject; or of an indexed shard."""
    if output == "indexed":
        return indexed()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rows = [{"path": "broken.jpg", "label": "b", "n": 1}]
        (root / "broken.jpg").write_bytes(b"no image")
        for number in range(4):
            buffer = io.BytesIO()
            Image.new("L", (9 + number, 8), number).save(buffer, "JPEG")
            (root / f"{number}.jpg").write_bytes(buffer.getvalue())
            rows.append({"path": f"{number}.jpg", "label": "ab"[number % 2], "n": number})
        (root / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        convert(
            root / "t.jsonl",
            root / "out",
            output=output,  # type: ignore[arg-type]
            shard_samples=3,
            workers=1,
            input=InputOptions(columns=(("n", "number"),)),
        )
        return {path.name: path.read_bytes() for path in (root / "out").iterdir()}


def laid_out(folder: Path, output: str) -> Path:
    """The dataset as it should be, in a folder of the process, where earlier damage was mended."""
    place = folder / output
    if not place.exists():
        place.mkdir()
        for name, data in dataset(output).items():
            (place / name).write_bytes(data)
    return place


def damaged(folder: Path, slot: str, data: bytes) -> Path:
    """The dataset of the slot "OUTPUT/FILE" with that file's bytes; `mend` undoes it."""
    output, name = slot.split("/")
    place = laid_out(folder, output)
    # Another file, not the same one written over: it may still be mapped.
    (place / name).unlink(missing_ok=True)
    # None at all stands for a lost file, of those that are not empty.
    if data or not dataset(output)[name]:
        (place / name).write_bytes(data)
    return place


def mend(place: Path, slot: str) -> None:
    """Put the right bytes back."""
    output, name = slot.split("/")
    (place / name).unlink(missing_ok=True)
    (place / name).write_bytes(dataset(output)[name])


def some(output: str, names: Sequence[str]) -> list[Case]:
    """Files of a dataset as cases."""
    return [(f"{output}/{name}", data) for name, data in dataset(output).items() if name in names]


def indexed() -> dict[str, bytes]:
    """A foreign shard that was indexed in place."""
    with tempfile.TemporaryDirectory() as folder:
        shard = next(name for name in dataset("webdataset") if name.endswith(".tar"))
        (Path(folder) / shard).write_bytes(dataset("webdataset")[shard])
        index_shards(folder, workers=1)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def all_files() -> list[Case]:
    """Every file but the environment, whose damage may end a reader: product code reads it in processes for that."""
    return [
        (f"{output}/{name}", data)
        for output in ("webdataset", "lmdb", "indexed")
        for name, data in dataset(output).items()
        if name != DATA_NAME
    ] + [("webdataset/wellfed.json", b""), *((f"webdataset/{name}", b"") for name in dataset("webdataset"))]


def read_manifest(slot: str, data: bytes, folder: Path) -> None:
    """Read it; what was read is written and read again to the same."""
    (folder / MANIFEST_NAME).write_bytes(data)
    manifest = Manifest.load(folder)
    again = Manifest.from_dict(json.loads(manifest.dump()))
    assert again == manifest
    assert again.dump() == manifest.dump()
    assert sum(shard.samples for shard in manifest.shards) == manifest.samples
    assert all("/" not in name and name not in ("", ".", "..") for name in manifest.files)
    assert len(manifest.fingerprint) == 64
    assert set(manifest.members) <= set(manifest.fields)


def read_source(slot: str, data: bytes, folder: Path) -> None:
    """Open the dataset and read every row; a stored image is never other bytes than those of its shard."""
    place = damaged(folder, slot, data)
    try:
        source: Any = open_source(str(place))
        try:
            shards = [(place / shard.name).read_bytes() for shard in source.manifest.shards]
            for row in range(len(source)):
                entry = source.index[row]
                assert 0 <= int(entry["label"]) < len(source.class_names)
                for get in (source.read, source.name):
                    with suppress(DamagedDatasetError):
                        value = get(row)
                        if isinstance(value, bytes):
                            assert value in shards[int(entry["shard"])]
        finally:
            source.close()
    finally:
        mend(place, slot)


def here(function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], **options: Any) -> None:
    """`run_tasks` in this process."""
    for number, task in enumerate(tasks):
        options["on_result"](number, function(*task, report=lambda value: None))


def check(slot: str, data: bytes, folder: Path) -> None:
    """Verify: any changed byte is found, and what is as it was is not reported."""
    checks.run_tasks = here  # type: ignore[assignment]
    place = damaged(folder, slot, data)
    output, name = slot.split("/")
    try:
        report = verify(place, deep=len(data) % 2 == 0, workers=1)
    finally:
        mend(place, slot)
    same = dataset(output)[name] == data
    # The manifest holds what is right; two texts may say the same.
    assert name == MANIFEST_NAME or report.ok == same, (same, report.problems)


def repair(rng: random.Random, slot: str, data: bytes) -> bytes:
    """JSON keeps its form in every second input, and tar headers their sums in most."""
    if slot.endswith((".json", ".jsonl")) and rng.random() < 0.5:
        lines = data.splitlines() if slot.endswith(".jsonl") else [data]
        return b"\n".join(mutate_json(rng, line) for line in lines)
    return sum_tar(data) if slot.endswith(".tar") and rng.random() < 0.8 else data


def manifests() -> list[Case]:
    """Manifests of both kinds, and one without the fields' types."""
    cases = [*some("webdataset", (MANIFEST_NAME,)), *some("lmdb", (MANIFEST_NAME,))]
    older = json.loads(cases[0][1])
    older["fields"], older["field_types"] = ["image", "class", "json"], {}
    del older["field_types"]
    return [*cases, ("webdataset/" + MANIFEST_NAME, json.dumps(older).encode())]


WORDS = (
    b"\x93NUMPY\1\0",
    b"'descr'",
    b"'shape': (4,)",
    b"'<u8'",
    b"'|O'",
    b"v1.2 ",
    b'"nsamples": ',
    b"{",
    b"[",
    b"PK\3\4",
)

TARGETS = (
    Target(
        name="manifest",
        run=read_manifest,
        seeds=manifests,
        modules=("wellfed.pipeline.formats.manifest",),
        words=(b"null", b"true", b"-1", b"1e400", b"{}", b"[]", b'"', b",", b":", b"\\ud800", b'"schema_version": 2'),
        repair=repair,
    ),
    Target(
        name="index",
        run=read_source,
        seeds=lambda: (
            some("webdataset", (INDEX_NAME, NAMES_BLOB, NAMES_OFFSETS))
            + some("lmdb", (INDEX_NAME, NAMES_BLOB, NAMES_OFFSETS))
        ),
        modules=("wellfed.pipeline.formats.index", "wellfed.pipeline.formats.names", "wellfed.pipeline.formats.stored"),
        functions=(
            "open_index",
            "open_names",
            "Names.bytes_at",
            "Names.text_at",
            "_checked_index",
            "StoredSource.name",
        ),
        words=WORDS,
    ),
    Target(
        name="verify",
        run=check,
        seeds=all_files,
        modules=("wellfed.converters.checks", "wellfed.converters.rejects"),
        uncounted={
            '"there must be at least 1 worker"': "an argument, no file",
            "except OSError as error:": "a file that cannot be read",
            "it cannot be read": "a file that cannot be read",
            "_check_shards.<locals>.crashed": "a worker that died: this target has none",
        },
        functions=("check_dataset", "_check", "iterate_rejects", "load_rejects", "_parsed", "name_of", "_tasks"),
        words=WORDS,
        repair=repair,
    ),
)
