"""From row numbers to pixels: the one decoder that every backend calls, so that all give the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
import torch

from ..config import Augment, DecodeMode, OnError
from ..decode.augment import crop_parameters, oriented_size
from ..decode.chunk import decode_chunk, decode_files, read_encoded
from ..decode.cpu import image_frame
from ..errors import CorruptSampleError, SampleRejectedError, words_of
from ..formats import Source
from ..formats.index import index_rows
from ..formats.reading import Encoded, stretches_of
from ..sampling import with_repeats
from .blocks import Blocks
from .crops import DrawnCrops
from .memory import does_not_fit
from .samples import Samples, SampleValues
from .transform import locate
from .values import pinned

__all__ = ["BatchDecoder", "BatchTask", "Decoded", "Fetched", "HostBatch", "SampleFailure", "with_broken"]

Side = Literal["cpu", "gpu"]

_KNOWN = ("labels", "rows", "keys", "boxes", "flips", "valid")
"""What a batch holds of each sample beside pixels and stored fields: some 50 bytes in all."""


@dataclass(frozen=True, kw_only=True)
class BatchTask:
    """One batch to decode.

    Attributes:
        epoch: enters the crops and flips.
        rows: row numbers of the source; int64, shape (b,).
        valid: bool, shape (b,); False marks repeats that pad the batch.
        position_after: samples of the epoch consumed, over all ranks, once the batch is handed over.
        repeats: as in `EpochRows`, int64, shape (b,); None where no row is drawn twice in the epoch.
        crops: of these rows, where they are drawn already.
    """

    epoch: int
    rows: np.ndarray
    valid: np.ndarray
    position_after: int
    repeats: np.ndarray | None = None
    crops: DrawnCrops | None = None

    def crop_keys(self, keys: np.ndarray, start: int = 0) -> np.ndarray:
        """What crops and flips are drawn from, for the keys of the rows from `start` on.

        A sample that an epoch holds more than once gets another crop each time.
        """
        return with_repeats(keys, None if self.repeats is None else self.repeats[start : start + len(keys)])


@dataclass(kw_only=True)
class HostBatch:
    """A batch in host memory.

    Attributes:
        task: what was asked for.
        images: uint8, shape (b, 3, S, S), channels-last memory.
        labels: class indices; int64, shape (b,).
        rows: row numbers; int64, shape (b,).
        keys: sample keys; int64, shape (b,).
        boxes: crops as x, y, width, height in the EXIF-oriented picture; int32, shape (b, 4).
        flips: whether the crop was mirrored; bool, shape (b,).
        valid: False for repeats: padding, and places filled instead of a corrupt sample; bool, shape (b,).
        skipped: corrupt samples whose places were filled.
        side: who decoded it, "cpu" or "gpu"; DALI on the CPU counts as the latter, whose place it takes.
        reference: samples that the "gpu" side could not decode and the CPU path did.
        made: recorded once images that lie on a CUDA device are written; None for images in host memory.
        values: of stored fields, and results of a transform, place by place, until the batch is finished.
        given: made of them; what `Samples.select` adds to, or takes instead of, the above.
    """

    task: BatchTask
    images: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor
    keys: torch.Tensor
    boxes: torch.Tensor
    flips: torch.Tensor
    valid: torch.Tensor
    skipped: int = 0
    side: Side = "cpu"
    reference: int = 0
    made: Any = None
    values: SampleValues = field(default_factory=SampleValues)
    given: dict[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        # By value, where torch would hand over a segment of shared memory, through a connection of its own, for each.
        return {**self.__dict__, **{name: getattr(self, name).numpy() for name in _KNOWN}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, **{name: torch.from_numpy(state[name]) for name in _KNOWN})

    def pin_memory(self, device: str | None = None) -> HostBatch:
        """A copy in page-locked memory; torch's pinning thread calls this by name."""
        return HostBatch(**{each.name: pinned(getattr(self, each.name)) for each in fields(self)})


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """Encoded samples of consecutive places of a batch, whose boxes and flips are drawn.

    Attributes:
        start: the first place.
        encoded: n encoded images.
        widths, heights: as encoded, pixels; int64, shape (n,).
        orientations: EXIF 1..8; uint8, shape (n,).
        unread: places, counted from `start`, whose header cannot be read, with the reason.
    """

    start: int
    encoded: Sequence[Encoded]
    widths: np.ndarray
    heights: np.ndarray
    orientations: np.ndarray
    unread: dict[int, str]


@dataclass(kw_only=True)
class Decoded:
    """What one side has decoded, in the batches handed over so far.

    Attributes:
        batches, samples: how many.
        reference: samples among them that the side's own decoder could not decode, and the CPU path did.
    """

    batches: int = 0
    samples: int = 0
    reference: int = 0

    def add(self, batch: HostBatch) -> None:
        self.batches += 1
        self.samples += len(batch.rows)
        self.reference += batch.reference


@dataclass(frozen=True)
class SampleFailure:
    """A place of a batch whose sample does not decode, and why."""

    place: int
    reason: str


def with_broken(failures: list[SampleFailure], broken: dict[int, str]) -> list[SampleFailure]:
    """The failures, and those of places whose stored values are broken, in the order of the places."""
    reasons = broken | {failure.place: failure.reason for failure in failures}
    return [SampleFailure(place, reason) for place, reason in sorted(reasons.items())]


@dataclass(frozen=True, kw_only=True)
class BatchDecoder:
    """Rows to arrays: read, find the size, draw the crop, decode.

    Threads: `decode_part` may run in several threads on different parts of one batch, and on several batches.
    Pickling: as its source does, so it travels to worker processes.
    Determinism: a batch is a function of this object's fields and the task alone.

    Attributes:
        source: where encoded images come from.
        seed, augment, image_size, on_error: as in `LoaderConfig`.
        decode_mode: `LoaderConfig.decode`.
        pin_memory: allocate page-locked images; needs CUDA, so never in a worker process.
        samples: what else a batch holds; without images none are read.
        cores: those that decoding threads and processes keep to; None leaves it to the system.
    """

    source: Source
    seed: int
    augment: Augment
    image_size: int
    on_error: OnError
    pin_memory: bool = False
    decode_mode: DecodeMode = "fast"
    samples: Samples = field(default_factory=Samples)
    cores: frozenset[int] | None = None

    def decode(self, task: BatchTask, *, pixels: torch.Tensor | None = None) -> HostBatch:
        """The whole batch, in this thread; into the caller's pixels where given, see `allocate`.

        Raises:
            CorruptSampleError: a sample does not decode, and `on_error` is "raise" or no sample of the batch decodes.
            DamagedDatasetError: a sample's bytes are missing.
            TransformError: the transform raised.
        """
        batch = self.allocate(task, pixels=pixels)
        return self.finish(batch, self.decode_part(batch, 0, len(task.rows)))

    def batch_bytes(self, batch_size: int) -> int:
        """Bytes of one batch, at least 1: of its images, and of stored fields on average."""
        pixels = 3 * self.image_size * self.image_size if self.samples.with_image else 0
        return max(1, int(batch_size * (pixels + self.samples.stored_bytes)))

    def allocate(
        self, task: BatchTask, blocks: Blocks | None = None, *, pixels: torch.Tensor | None = None
    ) -> HostBatch:
        """A batch with everything the index knows, and pixels still to be decoded, in one of `blocks` where given.

        `pixels` are the caller's own, uint8 of shape (b, S, S, 3), on any device. Page-locked pixels come from torch's
        caching allocator instead, which uses them again by itself.

        Raises:
            ResourceError: memory does not hold the batch.
        """
        count = len(task.rows)
        index = index_rows(self.source.index, task.rows)
        if pixels is None:
            pixels = self._pixels(count, blocks)
        batch = HostBatch(
            task=task,
            images=pixels.permute(0, 3, 1, 2),
            labels=torch.from_numpy(index["label"].astype(np.int64)),
            rows=torch.from_numpy(task.rows.astype(np.int64)),
            keys=torch.from_numpy(index["key"].astype(np.int64)),
            boxes=torch.zeros((count, 4), dtype=torch.int32),
            flips=torch.zeros(count, dtype=torch.bool),
            valid=torch.from_numpy(task.valid.copy()),
            values=self.samples.begin(count),
        )
        if task.crops is not None:
            batch.boxes[:] = torch.from_numpy(task.crops.boxes)
            batch.flips[:] = torch.from_numpy(task.crops.flips)
        if self.pin_memory:
            batch.labels = batch.labels.pin_memory()
        return batch

    def _pixels(self, count: int, blocks: Blocks | None) -> torch.Tensor:
        side = self.image_size if self.samples.with_image else 0
        shape = (count, side, side, 3)
        if not side:
            return torch.empty(shape, dtype=torch.uint8)
        try:
            if blocks is None or self.pin_memory:
                return torch.empty(shape, dtype=torch.uint8, pin_memory=self.pin_memory)
            return blocks.uint8(shape)
        except (MemoryError, RuntimeError) as error:
            # torch has no class for want of host memory; an empty tensor fails for nothing else.
            raise does_not_fit(count, self.batch_bytes(count), words_of(error)) from error

    def decode_part(self, batch: HostBatch, start: int, stop: int) -> list[SampleFailure]:
        """Decode places start..stop-1 of the batch into it.

        Returns:
            The places that hold no picture because their sample does not decode.

        Raises:
            DamagedDatasetError: a sample's bytes are missing.
            TransformError: the transform raised.
        """
        failures = self._decode_images(batch, start, stop) if self.samples.with_image else []
        failures = with_broken(failures, self.samples.read(batch, self.source, start, stop))
        self.transform_part(batch, start, stop, failures)
        return failures

    def _decode_images(self, batch: HostBatch, start: int, stop: int) -> list[SampleFailure]:
        first, last = start, stop
        stretches = stretches_of(self.source, batch.task.rows[start:stop]) if batch.task.crops is not None else None
        if batch.task.crops is not None and stretches is not None:
            crops = batch.task.crops.part(start, stop)
            left = decode_files(
                stretches, crops.boxes, crops.orientations, crops.flips, batch.images[start:stop], self.decode_mode
            )
            if not len(left):
                return []
            # Those between are decoded twice; they are few, or none.
            first, last = start + int(left[0]), start + int(left[-1]) + 1
        fetched = self.fetch(batch, first, last)
        return self.decode_fetched(batch, fetched, np.arange(last - first), batch.images[first:last])

    def transform_part(self, batch: HostBatch, start: int, stop: int, failures: list[SampleFailure]) -> None:
        """Run the transform on places start..stop-1, whose images lie in host memory and whose fields are read.

        Args:
            failures: of these places, or of all.

        Raises:
            TransformError: the transform raised.
        """
        batch.values.failed.update(failure.place for failure in failures)
        if not self.samples.deferred:
            self.samples.apply(batch, self.source, start, stop)

    def fetch(self, batch: HostBatch, start: int, stop: int) -> Fetched:
        """Read places start..stop-1, and draw their boxes and flips into the batch where its task brings none.

        Raises:
            DamagedDatasetError: a sample's bytes are missing.
        """
        rows = batch.task.rows[start:stop]
        encoded = read_encoded(self.source, rows)
        if batch.task.crops is not None:
            crops = batch.task.crops.part(start, stop)
            return Fetched(
                start=start,
                encoded=encoded,
                widths=crops.widths,
                heights=crops.heights,
                orientations=crops.orientations,
                unread={},
            )
        index = index_rows(self.source.index, rows)
        unread: dict[int, str] = {}
        orientations = index["orientation"].copy()
        widths, heights = index["width"].astype(np.int64), index["height"].astype(np.int64)
        for place in np.flatnonzero((widths == 0) | (heights == 0)).tolist():
            # A folder read directly has no sizes in its index; the header is read here instead.
            try:
                widths[place], heights[place], orientations[place] = image_frame(bytes(encoded[place]))
            except SampleRejectedError as error:
                unread[place] = str(error)
                widths[place] = heights[place] = 1
        keys = batch.task.crop_keys(index["key"], start)
        boxes, flips = self.draw_crops(batch.task.epoch, keys, widths, heights, orientations)
        batch.boxes[start:stop] = torch.from_numpy(boxes)
        batch.flips[start:stop] = torch.from_numpy(flips)
        return Fetched(
            start=start, encoded=encoded, widths=widths, heights=heights, orientations=orientations, unread=unread
        )

    def decode_fetched(
        self, batch: HostBatch, fetched: Fetched, places: np.ndarray, out: torch.Tensor
    ) -> list[SampleFailure]:
        """Decode these of the fetched places, counted from `fetched.start`, into `out`: uint8, shape (k, 3, S, S)."""
        boxes, flips = batch.boxes.numpy()[fetched.start + places], batch.flips.numpy()[fetched.start + places]
        encoded = [fetched.encoded[place] for place in places]
        # A place whose header could not be read fails again here, with the decoder's own reason.
        failures = decode_chunk(encoded, boxes, fetched.orientations[places], flips, out, self.decode_mode)
        reasons = {int(place): fetched.unread[place] for place in places if place in fetched.unread}
        reasons |= {int(places[number]): reason for number, reason in failures.items()}
        return [SampleFailure(fetched.start + place, reason) for place, reason in sorted(reasons.items())]

    def draw_crops(
        self, epoch: int, keys: np.ndarray, widths: np.ndarray, heights: np.ndarray, orientations: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Boxes and flips of these samples; see `DrawCrops`."""
        shown_widths, shown_heights = oriented_size(widths, heights, orientations)
        return crop_parameters(
            self.augment, seed=self.seed, epoch=epoch, keys=keys, widths=shown_widths, heights=shown_heights
        )

    def finish(self, batch: HostBatch, failures: list[SampleFailure]) -> HostBatch:
        """Settle the places that did not decode, once all parts are done.

        With `on_error="skip"` each takes the next good sample of the batch, cyclically, with its label, row, key, box
        and flip, and is marked as not valid.

        Raises:
            CorruptSampleError: as in `decode`.
        """
        if failures:
            self._fill(batch, failures)
        if not self.samples.deferred:
            self.samples.finish(batch, pin=self.pin_memory)
        return batch

    def _fill(self, batch: HostBatch, failures: list[SampleFailure]) -> None:
        failed = {failure.place for failure in failures}
        count = len(batch.task.rows)
        if self.on_error == "raise" or len(failed) == count:
            raise self._corrupt(batch, failures[0])
        for place in sorted(failed):
            donor = next(p for step in range(1, count) if (p := (place + step) % count) not in failed)
            for values in (batch.images, batch.labels, batch.rows, batch.keys, batch.boxes, batch.flips):
                values[place] = values[donor]
            batch.valid[place] = False
            batch.values.filled[place] = donor
        batch.skipped = len(failed)

    def _corrupt(self, batch: HostBatch, failure: SampleFailure) -> CorruptSampleError:
        remedy = "Replace it and convert again, or load with on_error='skip'."
        if self.on_error == "skip":
            remedy = "No sample of its batch decodes, so none can take its place: check the dataset."
        source, own = locate(self.source, int(batch.task.rows[failure.place]))
        return CorruptSampleError(
            "every sample that is loaded must decode",
            got=failure.reason,
            remedy=remedy,
            dataset=source.location,
            index=own,
            path=source.name(own),
        )
