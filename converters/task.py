"""One shard task: read, check and pack a range of rows into a tar. Runs in a worker process."""

from __future__ import annotations

import io
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from wellfed.pipeline.decode.check import check_image
from wellfed.pipeline.errors import SampleRejectedError
from wellfed.pipeline.formats.index import index_dtype, mode_code

from .files import disk_errors, write_file
from .inputs import Input, open_saved
from .outputs.tar import LARGEST_MEMBER, TarWriter
from .plan import CheckName
from .rejects import Reject, name_fields, reason_of

FIELDS = ("image", "class", "json")
EXTENSIONS_OF = {"jpeg": "jpg", "jpe": "jpg", "jfif": "jpg", "tiff": "tif", "apng": "png"}
"""Common other spellings of the extensions that we store."""

_REPORT_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """What a worker needs to know.

    Attributes:
        source, saved: the input's path and the folder with its saved listing.
        staging: folder for the results.
        destination: for messages.
        number: position in the plan.
        start, stop: rows.
    """

    source: str
    saved: str
    staging: str
    destination: str
    number: int
    start: int
    stop: int
    check: CheckName
    on_error: Literal["reject", "fail"]


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """What became of a task; `rows_name` and `tar_name` hold its samples where there are any.

    Attributes:
        size, sha256: of the tar.
        rejects: of the task's rows.
        notes: counted over the stored samples.
    """

    number: int
    samples: int
    size: int
    sha256: str
    rejects: tuple[Reject, ...]
    notes: dict[str, int]

    def dump(self) -> bytes:
        """JSON; names as latin-1 text, which holds any bytes."""
        data = asdict(self)
        data["rejects"] = [[key, name.decode("latin-1"), reason] for key, name, reason in self.rejects]
        return json.dumps(data).encode()

    @classmethod
    def load(cls, staging: Path, number: int) -> ShardResult | None:
        """A finished task's result; None where it is not finished."""
        try:
            data = json.loads((staging / result_name(number)).read_bytes())
        except FileNotFoundError:
            return None
        data["rejects"] = tuple(Reject(key, name.encode("latin-1"), reason) for key, name, reason in data["rejects"])
        return cls(**data)


def tar_name(number: int) -> str:
    """Staged tar of a task."""
    return f"{number:06d}.tar"


def rows_name(number: int) -> str:
    """Staged index rows of a task."""
    return f"{number:06d}.npy"


def result_name(number: int) -> str:
    """Staged result of a task, written last: where it is, the task is finished."""
    return f"{number:06d}.json"


def write_shard(task: ShardTask, *, report: Callable[[Any], None]) -> ShardResult:
    """Pack the rows; reports (samples done, rejected, original path being read).

    Raises:
        SampleRejectedError: with on_error "fail", naming the file.
        ResourceError: the disk is full.
    """
    staging = Path(task.staging)
    with disk_errors(Path(task.destination)):
        source = open_saved(Path(task.source), Path(task.saved))
        result, rows = _pack(task, staging, source, report)
        if result.samples:
            buffer = io.BytesIO()
            np.save(buffer, rows, allow_pickle=False)
            write_file(staging / rows_name(task.number), buffer.getvalue())
        else:
            (staging / tar_name(task.number)).unlink()
        write_file(staging / result_name(task.number), result.dump())
    return result


def _pack(
    task: ShardTask, staging: Path, source: Input, report: Callable[[Any], None]
) -> tuple[ShardResult, np.ndarray]:
    rows = np.zeros(task.stop - task.start, index_dtype(FIELDS))
    rejects: list[Reject] = []
    notes: Counter[str] = Counter()
    stored = 0
    reported = 0.0
    with TarWriter(staging / tar_name(task.number)) as tar:
        for key in range(task.start, task.stop):
            name = source.name(key)
            if (now := time.monotonic()) - reported > _REPORT_SECONDS:
                report((key - task.start, len(rejects), os.fsdecode(name)))
                reported = now
            try:
                _store(tar, source, key, name, task.check, rows[stored], notes)
                stored += 1
            except SampleRejectedError as error:
                if task.on_error == "fail":
                    raise SampleRejectedError(
                        f"every sample must be storable, and {os.fsdecode(name)!r} is not: {error.rule}",
                        got=error.got,
                        remedy="Mend or remove the file, or let such files be rejected (--on-error reject).",
                    ) from error
                rejects.append(Reject(key, name, reason_of(error)))
    result = ShardResult(
        number=task.number,
        samples=stored,
        size=tar.size,
        sha256=tar.sha256,
        rejects=tuple(rejects),
        notes=dict(sorted(notes.items())),
    )
    return result, rows[:stored]


def _store(
    tar: TarWriter, source: Input, key: int, name: bytes, check: CheckName, row: np.void, notes: Counter[str]
) -> None:
    if key in source.refused:
        raise SampleRejectedError(source.refused[key])
    data = source.read(key)
    if len(data) > LARGEST_MEMBER:
        raise SampleRejectedError("a sample must be smaller than 8 GiB", got=f"{len(data)} bytes")
    head = check_image(data, check)
    notes.update(head.notes)
    given = os.path.splitext(name)[1][1:].decode("latin-1").lower()
    if EXTENSIONS_OF.get(given, given) != head.ext:
        notes["extension_differs"] += 1
    label = int(source.labels[key])
    values = {
        "image": (head.ext, data),
        "class": ("cls", b"%d" % label),
        "json": ("json", sample_json(source.class_names[label], name)),
    }
    row["key"], row["label"] = key, label
    row["width"], row["height"], row["orientation"] = head.width, head.height, head.orientation
    row["mode"], row["ext"] = mode_code(head.mode), head.ext.encode("ascii")
    for field, (extension, value) in values.items():
        row[f"offset_{field}"] = tar.add(member_name(key, extension), value)
        row[f"size_{field}"] = len(value)
        row[f"xxh3_{field}"] = xxhash.xxh3_64_intdigest(value)


def member_name(key: int, extension: str) -> str:
    """Name of a sample's member, and its key in LMDB."""
    return f"{key:010d}.{extension}"


def sample_json(class_name: str, name: bytes) -> bytes:
    """The `json` field: class and original path (`name_base64` where that is not UTF-8)."""
    return json.dumps({"class": class_name, **name_fields(name)}).encode("ascii")
