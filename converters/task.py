"""One shard task: read, check and pack a range of rows into a tar. Runs in a worker process."""

from __future__ import annotations

import io
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from wellfed.pipeline.errors import SampleRejectedError
from wellfed.pipeline.formats.index import index_dtype, mode_code, row_struct

from .files import disk_errors, write_file
from .image_option import ImageOption, Rewritten, done_to
from .inputs import Input, open_saved
from .inputs.base import Record
from .layout import Layout
from .outputs.tar import LARGEST_MEMBER, TarWriter
from .plan import CheckName
from .rejects import Reject, reason_of, reject_line
from .selection import load_order

EXTENSIONS_OF = {"jpeg": "jpg", "jpe": "jpg", "jfif": "jpg", "tiff": "tif", "apng": "png"}
"""Common other spellings of the extensions that we store."""

_REPORT_SECONDS = 0.1
_MOST_AT_ONCE = 8
_BYTES_AT_ONCE = 1 << 20
"""Samples of a group, and the bytes of images from which a smaller group will do."""


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """What a worker needs to know.

    Attributes:
        kind, source, saved: the input's kind and location, and the folder with its saved listing and the order.
        staging: folder for the results.
        destination: for messages.
        number: position in the plan.
        start, stop: planned numbers.
        use: of the tar; see `TarWriter`. One "without_images" is staged and holds all else; its rows have 0 as the
            images' offset.
        threads: that check and change images, where that decodes them.
    """

    kind: str
    source: str
    saved: str
    staging: str
    destination: str
    number: int
    start: int
    stop: int
    check: CheckName
    image: ImageOption
    on_error: Literal["reject", "fail"]
    use: Literal["published", "staged", "without_images"]
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """What became of a task; `rows_name`, `tar_name` and `rejects_name` hold its samples, where there are any.

    Attributes:
        size, sha256: of the tar; no digest of one that is only staged.
        rejected: samples that were not stored.
        notes: counted over the stored samples.
    """

    number: int
    samples: int
    size: int
    sha256: str
    rejected: int
    notes: dict[str, int]

    def dump(self) -> bytes:
        """JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, staging: Path, number: int) -> ShardResult | None:
        """A finished task's result; None where it is not finished."""
        try:
            return cls(**json.loads((staging / result_name(number)).read_bytes()))
        except FileNotFoundError:
            return None


def tar_name(number: int) -> str:
    """Staged tar of a task."""
    return f"{number:06d}.tar"


def rows_name(number: int) -> str:
    """Staged index rows of a task."""
    return f"{number:06d}.npy"


def rejects_name(number: int) -> str:
    """Staged lines of `rejects.jsonl` of a task; there is none where nothing was rejected."""
    return f"{number:06d}.rejects"


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
        source = open_saved(task.kind, task.source, Path(task.saved))
        order = load_order(Path(task.saved))
        packing = _Packing(task, source, Layout.of(source.fields), order, report)
        with TarWriter(
            staging / tar_name(task.number), use="published" if task.use == "published" else "staged"
        ) as tar:
            packing.run(tar)
        if packing.stored:
            buffer = io.BytesIO()
            np.save(buffer, packing.rows, allow_pickle=False)
            write_file(staging / rows_name(task.number), buffer.getvalue())
        else:
            (staging / tar_name(task.number)).unlink()
        if packing.rejects:
            write_file(staging / rejects_name(task.number), b"".join(map(reject_line, packing.rejects)))
        result = ShardResult(
            number=task.number,
            samples=packing.stored,
            size=tar.size,
            sha256=tar.sha256,
            rejected=len(packing.rejects),
            notes=dict(sorted(packing.notes.items())),
        )
        write_file(staging / result_name(task.number), result.dump())
    return result


MOST_THREADS = 4
"""Of a worker: enough for the last shards to be finished soon, few enough for many workers beside each other."""


def decodes(image: ImageOption, check: CheckName) -> bool:
    """Whether storing costs decoding."""
    return check == "decode" or image.kind != "keep"


@dataclass(slots=True)
class _Sample:
    """A sample between being read and being stored."""

    key: int
    row: int
    name: bytes
    record: Record | None = None
    made: Rewritten | Future[Rewritten] | None = None
    values: Mapping[str, bytes] | None = None
    error: SampleRejectedError | None = None


class _Packing:
    """One task's samples on their way into its tar."""

    def __init__(
        self,
        task: ShardTask,
        source: Input,
        layout: Layout,
        order: np.ndarray | None,
        report: Callable[[Any], None],
    ) -> None:
        self._task, self._source, self._layout, self._order, self._report = task, source, layout, order, report
        # Asked once; a plain dictionary where nothing is refused, since the search costs more than a header.
        self._refused, self._labels = source.refused or {}, source.labels
        self._members = tuple(layout.members.items())
        self._stores_images = task.use != "without_images"
        self._has_images = "image" in layout.types
        self._row = row_struct(tuple(layout.members))
        self._rows = bytearray(self._row.size * (task.stop - task.start))
        self.rejects: list[Reject] = []
        self.notes: Counter[str] = Counter()
        self.stored = 0

    @property
    def rows(self) -> np.ndarray:
        """Index rows of the stored samples, in order."""
        return np.frombuffer(self._rows, index_dtype(tuple(self._layout.members)))[: self.stored]

    def run(self, tar: TarWriter) -> None:
        """Store or reject each sample, in order; images are decoded ahead by several threads.

        So the last shards, and a dataset of few, keep all cores busy, though a shard is one worker's.
        """
        task = self._task
        several = task.threads > 1 and decodes(task.image, task.check)
        pool = ThreadPoolExecutor(task.threads, "wellfed-check") if several else None
        earlier: list[_Sample] = []
        try:
            for group in self._groups():
                self._make(group, pool)
                self._store(tar, group if pool is None else earlier)
                earlier = group
            if pool is not None:
                self._store(tar, earlier)
        finally:
            if pool is not None:
                pool.shutdown(cancel_futures=True)

    def _groups(self) -> Iterator[list[_Sample]]:
        """Samples read, a few at a time: what is done to each of a group in turn finds its code in the caches."""
        task, reported = self._task, 0.0
        group: list[_Sample] = []
        size = 0
        for key in range(task.start, task.stop):
            row = key if self._order is None else int(self._order[key])
            sample = _Sample(key, row, self._source.name(row))
            if (now := time.monotonic()) - reported > _REPORT_SECONDS:
                self._report((key - task.start, len(self.rejects), os.fsdecode(sample.name)))
                reported = now
            self._read(sample)
            group.append(sample)
            size += len(sample.record.image or b"") if sample.record is not None else 0
            if len(group) >= _MOST_AT_ONCE or (size >= _BYTES_AT_ONCE and len(group) >= 2 * task.threads):
                yield group
                group, size = [], 0
        yield group

    def _read(self, sample: _Sample) -> None:
        # Not by the pool: what a source holds open need not bear several threads.
        try:
            if (reason := self._refused.get(sample.row)) is not None:
                raise SampleRejectedError(reason)
            sample.record = self._source.read(sample.row)
            if self._has_images and not sample.record.image:
                raise SampleRejectedError("the sample must have an image")
        except SampleRejectedError as error:
            sample.error = error

    def _make(self, group: list[_Sample], pool: ThreadPoolExecutor | None) -> None:
        """Check the images, and change them where that is asked for; by a pool: begin to."""
        if not self._has_images:
            return
        option, check = self._task.image, self._task.check
        for sample in group:
            if sample.error is not None:
                continue
            assert sample.record is not None
            assert sample.record.image is not None
            if pool is not None:
                sample.made = pool.submit(option.apply, sample.record.image, check)
                continue
            try:
                sample.made = option.apply(sample.record.image, check)
            except SampleRejectedError as error:
                sample.error = error

    def _store(self, tar: TarWriter, group: list[_Sample]) -> None:
        for sample in group:
            if sample.error is None:
                try:
                    self._encode(sample)
                except SampleRejectedError as error:
                    sample.error = error
        for sample in group:
            if sample.error is None:
                self._write(tar, sample)
            elif self._task.on_error == "fail":
                raise SampleRejectedError(
                    f"every sample must be storable, and {os.fsdecode(sample.name)!r} is not: {sample.error.rule}",
                    got=sample.error.got,
                    remedy="Mend or remove the file, or let such files be rejected (--on-error reject).",
                ) from sample.error
            else:
                self.rejects.append(Reject(sample.key, sample.name, reason_of(sample.error)))

    def _encode(self, sample: _Sample) -> None:
        source, record = self._source, sample.record
        assert record is not None
        made = sample.made.result() if isinstance(sample.made, Future) else sample.made
        sample.made = made
        label = int(self._labels[sample.row])
        if not 0 <= label < len(source.class_names):
            raise SampleRejectedError("the sample must have a label")
        values = self._layout.encode(
            label=label,
            class_name=source.class_names[label],
            name=sample.name,
            image=made.data if made is not None else None,
            values=record.values,
            made=done_to(record.image or b"", made, self._task.image, record.done) if made is not None else None,
        )
        if max(map(len, values.values())) > LARGEST_MEMBER:
            raise SampleRejectedError("each value of a sample must be smaller than 8 GiB")
        sample.values = values

    def _write(self, tar: TarWriter, sample: _Sample) -> None:
        made, values = sample.made, sample.values
        assert values is not None
        # Of an image that is not there: no size, upright, of unknown mode, without an extension.
        shape, ext = (0, 0, 1, 0), ""
        if self._has_images:
            assert isinstance(made, Rewritten)
            head = made.header
            shape, ext = (head.width, head.height, head.orientation, mode_code(head.mode)), head.ext
            self._note(sample, made)
        # In the order of the index's columns.
        row: list[Any] = [sample.key, 0, int(self._labels[sample.row]), *shape, ext.encode("ascii")]
        for field, extension in self._members:
            value = values[field]
            offset = 0
            if self._stores_images or field != "image":
                offset = tar.add(member_name(sample.key, extension or ext), value)
            row += (offset, len(value), xxhash.xxh3_64_intdigest(value))
        self._row.pack_into(self._rows, self._row.size * self.stored, *row)
        self.stored += 1

    def _note(self, sample: _Sample, made: Rewritten) -> None:
        if made.header.notes:
            self.notes.update(made.header.notes)
        given = os.path.splitext(sample.name)[1][1:].decode("latin-1").lower()
        if given and EXTENSIONS_OF.get(given, given) != made.source.ext:
            self.notes["extension_differs"] += 1


def member_name(key: int, extension: str) -> str:
    """Name of a sample's member, and its key in LMDB."""
    return f"{key:010d}.{extension}"
