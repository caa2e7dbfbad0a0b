"""What makes a real pipeline slow on purpose: storage, a transform, the copy, and a few samples among many."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import shutil
import statistics
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from wellfed.pipeline import DataLoader
from wellfed.pipeline.formats.webdataset import WebDatasetSource

Burns = Literal["core", "interpreter"]
"""Whether other threads run Python meanwhile, or wait for the interpreter's lock."""

_BLOCK = bytes(1 << 20)
_TRIED = 8
_TRIED_SIDE = 800
_TRIAL_CLASSES = ("0 as they are", "1 enlarged")


class SlowStorage(WebDatasetSource):
    """Shards on a disk that gives so many samples/s to all its readers together, whatever they are.

    Worker processes share the disk where they are forked; it does not pickle.

    Args:
        rate: samples/s.
        clock: seconds that run alike in all processes; `sleep` waits by it.
    """

    def __init__(
        self,
        location: str,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(location)
        self._sample_seconds = 1 / rate
        self._clock, self._sleep = clock, sleep
        self._free_at = multiprocessing.get_context("fork").Value("d", 0.0)

    def _wait(self, samples: int) -> None:
        with self._free_at.get_lock():
            self._free_at.value = max(self._free_at.value, self._clock()) + samples * self._sample_seconds
            ready = self._free_at.value
        self._sleep(max(0.0, ready - self._clock()))

    def read_field(self, row: int, field: str) -> bytes:
        self._wait(1)
        return super().read_field(row, field)

    def read_members(self, rows: np.ndarray, field: str) -> list[memoryview]:
        self._wait(len(rows))
        return super().read_members(rows, field)

    def stretches(self, rows: np.ndarray) -> None:  # type: ignore[override]
        """None: what reads files by their descriptors would not see this disk."""


class SlowTransform:
    """A transform of samples that takes so many seconds of a core and changes nothing.

    It takes a generator, so that threads may run it at the same time.
    """

    def __init__(self, seconds: float, burns: Burns = "core") -> None:
        self.seconds, self.burns = seconds, burns

    def __call__(self, image: Any, generator: Any = None) -> Any:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            if self.burns == "core":
                hashlib.sha256(_BLOCK)  # lets go of the interpreter
        return image


class Transformed:
    """A loader without workers, which calls the transform for each sample where it is iterated."""

    def __init__(self, loader: Iterable[Any], transform: SlowTransform) -> None:
        self._loader, self._transform = loader, transform

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            for image in batch[0]:
                self._transform(image)
            yield batch


def slow_copy(accelerator: Any, rate: float, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Make an open device's copies take time: so many samples/s for whatever was not copied before.

    A batch that its loader has put there already takes it too, once.
    """
    inner = accelerator.copy
    there: set[int] = set()

    def copy(batch: Any) -> Any:
        if id(batch[0]) not in there:
            sleep(len(batch[0]) / rate)
        copied = inner(batch)
        images = copied[0]
        if id(images) not in there and (images is not batch[0] or images.device.type != "cpu"):
            there.add(id(images))
            weakref.finalize(images, there.discard, id(images)).atexit = False
        return copied

    accelerator.copy = copy


def loader_rate(data: str, *, workers: int, seconds: float) -> float:
    """Samples/s of the loader's threads with nothing behind them."""
    with DataLoader(data, batch_size=32, shuffle=True, drop_last=True, augment="train", num_workers=workers) as loader:
        samples, warm, started = 0, 4 * workers, 0.0
        while True:
            for images, _ in loader:
                warm -= 1
                if warm == 0:
                    started = time.perf_counter()
                elif warm < 0:
                    samples += len(images)
                    if (passed := time.perf_counter() - started) >= seconds:
                        return samples / passed


def add_stragglers(folder: Path, *, every: int, times: float) -> int:
    """Put large pictures in the place of one in so many photos: PNGs that take so many times as long as the median.

    Args:
        folder: class folders of photos, which the picture is made of.

    Returns:
        The pixels of a side of the pictures.
    """
    photos = sorted(folder.rglob("*.jpg"))
    trial = folder.parent / f"{folder.name}-trial"
    for name in _TRIAL_CLASSES:
        (trial / name).mkdir(parents=True)
    for photo in photos[:_TRIED]:
        shutil.copyfile(photo, trial / _TRIAL_CLASSES[0] / photo.name)
        _enlarge(photo, trial / _TRIAL_CLASSES[1] / f"{photo.stem}.png", _TRIED_SIDE)
    small, large = _seconds(trial)
    shutil.rmtree(trial)
    side = round(_TRIED_SIDE * math.sqrt(times * small / large))
    for photo in photos[every // 2 :: every]:
        _enlarge(photo, photo.with_suffix(".png"), side)
        photo.unlink()
    return side


def _enlarge(photo: Path, target: Path, side: int) -> None:
    with Image.open(photo) as image:
        image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR).save(target, compress_level=1)


def _seconds(folder: Path) -> tuple[float, float]:
    """Median time to load a sample of the first class, and one of the second."""
    taken: dict[int, list[float]] = {0: [], 1: []}
    with DataLoader(str(folder), batch_size=1, augment="train", num_workers=0) as loader:
        for epoch in range(3):
            before = time.perf_counter()
            for _, labels in loader:
                now = time.perf_counter()
                if epoch:  # the first one opens files and libraries
                    taken[int(labels[0])].append(now - before)
                before = now
    return statistics.median(taken[0]), statistics.median(taken[1])
