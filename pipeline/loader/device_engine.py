"""The engine whose decoder is not ours: it feeds DALI or nvJPEG, and gives what they cannot decode to the CPU path."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from ..decode.ordinary import ordinary_jpegs
from ..decode.orientation import stored_boxes, turns_after
from ..formats.reading import Encoded
from .batch import BatchDecoder, Fetched, HostBatch, SampleFailure, Side, with_broken
from .blocks import Blocks
from .cpu_pool import Chunk, CpuPool, failures_of, give_up
from .engines import Take

__all__ = ["Crops", "DeviceDecoder", "DeviceEngine", "decoding_device"]

READ_AHEAD = 2
"""Batches that are read, and whose headers are looked at, while others decode, each in a thread of its own. More
threads would wait for each other: what they do besides reading is Python."""


@dataclass(frozen=True, kw_only=True)
class Crops:
    """What to decode: m encoded JPEGs, as `ordinary_jpegs` has them, and what to do with their pixels as stored.

    Attributes:
        encoded: encoded JPEGs.
        sizes: width and height as encoded, pixels; int64, shape (m, 2).
        boxes: x, y, width, height of the crop before EXIF orientation, pixels; int32, shape (m, 4).
        mirrored, upended: mirror the resized crop left and right, top and bottom; bool, shape (m,).
    """

    encoded: list[Encoded]
    sizes: np.ndarray
    boxes: np.ndarray
    mirrored: np.ndarray
    upended: np.ndarray

    def __len__(self) -> int:
        return len(self.encoded)

    def part(self, start: int, stop: int) -> Crops:
        """Those from `start` to `stop`."""
        return Crops(
            encoded=self.encoded[start:stop],
            sizes=self.sizes[start:stop],
            boxes=self.boxes[start:stop],
            mirrored=self.mirrored[start:stop],
            upended=self.upended[start:stop],
        )


class DeviceDecoder(Protocol):
    """A library that decodes, crops, resizes (bilinear, antialiased) and mirrors whole batches.

    Life cycle: made -> `open` -> any number of `begin` and as many `end`, in that order -> `close`.
    Threads: `open` and `close` by the thread that drives the backend, the rest by one other.

    Attributes:
        depth: batches begun and not ended at most.
    """

    depth: int

    def open(self) -> None: ...

    def begin(self, crops: Crops) -> None:
        """Start decoding; what fails is said by `end`."""
        ...

    def end(self, out: torch.Tensor) -> list[int]:
        """Wait for the oldest batch begun, and write it into `out`: uint8, shape (m, S, S, 3), on the device.

        On a CUDA device it may still be being written, in the order of the thread's current stream.

        Returns:
            The places that the library failed on, whose rows of `out` are undefined.
        """
        ...

    def discard(self) -> None:
        """Throw away what is begun and not ended."""
        ...

    def close(self) -> None: ...


def decoding_device(name: str) -> torch.device:
    """The device of this name with its number: threads to come have another current device than this one."""
    device = torch.device(name)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


@dataclass(kw_only=True)
class _Work:
    """A batch under way."""

    batch: HostBatch
    pixels: torch.Tensor
    reading: Future[tuple[Fetched, np.ndarray, dict[int, str]]]
    device: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    begun: bool = False
    odd: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    odd_pixels: torch.Tensor | None = None
    odd_chunks: list[Chunk] = field(default_factory=list)


class DeviceEngine:
    """Reads, routes, decodes and completes batches; see `Engine`.

    A sample goes to the CPU path where its header is not that of an ordinary JPEG, or after the library failed on it,
    which is remembered. The CPU path has the last word on what is corrupt.

    Args:
        library: the decoder.
        pool: the CPU path; opened and closed by the backend.
        device: a CUDA device with its number, or the CPU.
        spare: batches of host memory kept to be used again, where the device is the CPU.
    """

    side: Side = "gpu"

    def __init__(
        self, decoder: BatchDecoder, library: DeviceDecoder, pool: CpuPool, *, device: torch.device, spare: int
    ) -> None:
        self._decoder = decoder
        self._library = library
        self._pool = pool
        self._device = device
        self._blocks = Blocks(spare)
        self._refused = np.zeros(len(decoder.source), dtype=bool)
        self._readers: ThreadPoolExecutor | None = None
        self._stream: Any = None

    def open(self) -> None:
        self._library.open()
        if self._device.type == "cuda" and self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        if self._readers is None:
            self._readers = ThreadPoolExecutor(READ_AHEAD, "wellfed-read")

    def close(self, *, wait: bool = True) -> None:
        if self._readers is not None:
            self._readers.shutdown(wait=wait, cancel_futures=True)
            self._readers = None
        if wait:
            self._library.close()

    def batches(self, take: Take) -> Generator[HostBatch]:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.cuda.set_stream(self._stream)
        waiting: deque[_Work] = deque()
        running: deque[_Work] = deque()
        most = self._library.depth + READ_AHEAD
        try:
            while True:
                while len(waiting) + len(running) < most and (task := take(not waiting and not running)) is not None:
                    waiting.append(self._read(task))
                if not waiting and not running:
                    return
                while waiting and len(running) < self._library.depth and (not running or waiting[0].reading.done()):
                    running.append(waiting.popleft())
                    self._begin(running[-1])
                yield self._finish(running[0], running)
        finally:
            self._give_up(running, waiting)

    def _read(self, task: Any) -> _Work:
        if self._readers is None:
            raise RuntimeError("an engine must be opened before it runs")
        size = self._decoder.image_size
        shape = (len(task.rows), size, size, 3)
        if self._device.type == "cuda":
            pixels = torch.empty(shape, dtype=torch.uint8, device=self._device)
        else:
            pixels = self._blocks.uint8(shape)
        batch = self._decoder.allocate(task, pixels=pixels)
        batch.side = self.side
        return _Work(batch=batch, pixels=pixels, reading=self._readers.submit(self._fetch, batch))

    def _fetch(self, batch: HostBatch) -> tuple[Fetched, np.ndarray, dict[int, str]]:
        """The samples, which of them the library may decode, and the places whose other fields are broken."""
        rows = batch.task.rows
        fetched = self._decoder.fetch(batch, 0, len(rows))
        usable = ~self._refused[rows]
        usable &= ordinary_jpegs(fetched.encoded, fetched.widths, fetched.heights)
        return fetched, usable, self._decoder.samples.read(batch, self._decoder.source, 0, len(rows))

    def _begin(self, work: _Work) -> None:
        if work.reading.exception() is not None:
            return  # its turn to be raised comes in `_finish`
        fetched, usable, _ = work.reading.result()
        work.device = np.flatnonzero(usable)
        if len(work.device):
            self._library.begin(self._crops(work, fetched))
            work.begun = True
        self._decode_odd(work, np.flatnonzero(~usable))

    def _crops(self, work: _Work, fetched: Fetched) -> Crops:
        places = work.device
        widths, heights = fetched.widths[places], fetched.heights[places]
        orientations = fetched.orientations[places]
        mirrored, upended, _ = turns_after(orientations, work.batch.flips.numpy()[places])
        return Crops(
            encoded=[fetched.encoded[place] for place in places],
            sizes=np.stack([widths, heights], axis=1),
            boxes=stored_boxes(work.batch.boxes.numpy()[places], widths, heights, orientations),
            mirrored=mirrored,
            upended=upended,
        )

    def _decode_odd(self, work: _Work, places: np.ndarray) -> None:
        if not len(places):
            return
        size = self._decoder.image_size
        pixels = torch.empty((len(places), size, size, 3), dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        work.odd, work.odd_pixels = places, pixels
        fetched, _, _ = work.reading.result()
        work.odd_chunks = self._pool.decode_places(work.batch, fetched, places, pixels.permute(0, 3, 1, 2))

    def _finish(self, work: _Work, running: deque[_Work]) -> HostBatch:
        fetched, _, broken = work.reading.result()
        work.batch.reference = len(work.odd)
        failures: list[SampleFailure] = []
        if work.begun:
            refused = self._collect(work)
            failures += self._complete_odd(work)
            if len(refused):
                self._refused[work.batch.task.rows[refused]] = True
                work.batch.reference += len(refused)
                self._decode_odd(work, refused)
                failures += self._complete_odd(work)
            self._turn(work, fetched.orientations)
        else:
            failures += self._complete_odd(work)
        failures = with_broken(failures, broken)
        self._transform(work, failures)
        running.popleft()
        batch = self._decoder.finish(work.batch, failures)
        if batch.images.is_cuda:
            batch.made = torch.cuda.Event()
            batch.made.record(self._stream)
        return batch

    def _transform(self, work: _Work, failures: list[SampleFailure]) -> None:
        """In the CPU path's threads, on pixels copied there."""
        samples = self._decoder.samples
        if samples.transform is not None and not samples.deferred:
            work.batch.images = work.batch.images.cpu()
        work.odd_chunks = self._pool.transform(work.batch, failures)
        failures_of(work.odd_chunks)
        work.odd_chunks = []

    def _collect(self, work: _Work) -> np.ndarray:
        """The library's pixels in their places; gives the places it failed on."""
        whole = len(work.device) == len(work.pixels)
        out = work.pixels if whole else torch.empty_like(work.pixels[: len(work.device)])
        work.begun = False
        failed = self._library.end(out)
        if not whole:
            work.pixels[self._positions(work.device)] = out
        refused = work.device[failed]
        work.device = np.delete(work.device, failed)
        return refused

    def _complete_odd(self, work: _Work) -> list[SampleFailure]:
        failures = failures_of(work.odd_chunks)
        if work.odd_pixels is not None:
            work.pixels[self._positions(work.odd)] = work.odd_pixels.to(self._device, non_blocking=True)
        work.odd_chunks, work.odd_pixels = [], None
        return failures

    def _turn(self, work: _Work, orientations: np.ndarray) -> None:
        """Transpose the library's crops where that belongs to their orientation."""
        places = work.device[orientations[work.device] >= 5]
        if len(places):
            where = self._positions(places)
            work.pixels[where] = work.pixels[where].transpose(1, 2)

    def _positions(self, places: np.ndarray) -> torch.Tensor:
        positions = torch.from_numpy(places)
        return positions.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else positions

    def _give_up(self, running: deque[_Work], waiting: deque[_Work]) -> None:
        for work in itertools.chain(running, waiting):
            give_up([work.reading, *work.odd_chunks])
        self._library.discard()
