"""Decoding by NVIDIA DALI: our order and crops, its decoders; on the GPU (with its JPEG engines) or on the CPU."""

from __future__ import annotations

import ctypes
import io
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..config import LoaderConfig
from ..errors import DeviceError, ResourceError, words_of
from .batch import BatchDecoder
from .cpu_pool import CpuPool
from .dali_library import require_dali
from .device_engine import Crops, DeviceEngine, decoding_device
from .engine_backend import EngineBackend, batches_ahead
from .resample import Stored, resample, why_not

__all__ = ["DaliBackend", "DaliDecoder", "dali_engine"]

QUEUE = 2
"""Batches in DALI's pipeline: one decodes while the other is resized and taken. DALI's own default."""


class DaliBackend(EngineBackend):
    """DALI decodes with `num_workers` host threads and, on a CUDA device, `hw_decoder_load` of each batch in the GPU's
    JPEG engines; see `Backend` for the life cycle.

    Raises:
        MissingDependencyError: DALI is not installed, or for another CUDA; with the pip line.
    """

    def __init__(self, decoder: BatchDecoder, config: LoaderConfig) -> None:
        workers = config.settings.num_workers
        pool = CpuPool(decoder, workers)
        super().__init__(pool, config, (dali_engine(decoder, config, pool, threads=workers),))


def dali_engine(decoder: BatchDecoder, config: LoaderConfig, pool: CpuPool, *, threads: int) -> DeviceEngine:
    """An engine on DALI; refused at once where DALI cannot be used."""
    device = decoding_device(config.device)
    require_dali(device.type)
    settings = config.settings
    library = DaliDecoder(
        batch_size=settings.batch_size,
        image_size=decoder.image_size,
        device=device,
        threads=threads,
        hw_decoder_load=settings.hw_decoder_load,
    )
    ahead = batches_ahead(decoder.batch_bytes(settings.batch_size), settings.prefetch_factor)
    return DeviceEngine(decoder, library, pool, device=device, spare=ahead + 2)


@dataclass
class _Begun:
    """A batch given to the pipeline; it also keeps the encoded bytes alive, which DALI reads where they lie."""

    crops: Crops
    fed: bool = False


class DaliDecoder:
    """A pipeline of crop, resize and mirror; see `DeviceDecoder`.

    One sample that DALI fails on ends a pipeline and all that is in it. It is then made anew, the batches begun are
    fed again, and the failing one is halved until the samples that fail are known.
    """

    depth = QUEUE

    def __init__(
        self, *, batch_size: int, image_size: int, device: torch.device, threads: int, hw_decoder_load: float
    ) -> None:
        self._batch_size = batch_size
        self._image_size = image_size
        self._device = device
        self._threads = threads
        self._hw_decoder_load = hw_decoder_load
        self._pipeline: Any = None
        self._begun: deque[_Begun] = deque()
        # DALI's own resize takes more of the GPU from the training step, see benchmarks/README.md.
        self._resizes = device.type != "cuda" or why_not(device) is not None

    def open(self) -> None:
        if self._pipeline is None:
            self._pipeline = self._start()

    def close(self) -> None:
        self._pipeline = None
        self._begun.clear()

    def _start(self) -> Any:
        """A new pipeline that has decoded a picture known to be sound.

        The first run of a pipeline takes as many batches as its queue holds, so these are of that one picture; and
        where DALI cannot decode at all, it shows here and not as the fault of a sample.
        """
        pipeline, sound = self._build(), _sound_crops(self._batch_size)
        try:
            for _ in range(QUEUE):
                self._feed(pipeline, sound)
            pipeline.schedule_run()
            for _ in range(QUEUE):
                pipeline.outputs()
        except Exception as error:
            raise DeviceError(
                f"DALI must be able to decode on {str(self._device)!r}",
                got=words_of(error),
                remedy="See wellfed doctor for its version and CUDA, or use backend='threads'.",
            ) from error
        return pipeline

    def _build(self) -> Any:
        from nvidia.dali import fn, types
        from nvidia.dali.pipeline import Pipeline

        on_gpu = self._device.type == "cuda"
        pipeline = Pipeline(
            batch_size=self._batch_size,
            num_threads=self._threads,
            device_id=self._device.index if on_gpu else None,
            prefetch_queue_depth=QUEUE,
            exec_dynamic=True,
        )
        size = [self._image_size, self._image_size]
        with pipeline:
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1, no_copy=True)
            start = fn.external_source(name="start", dtype=types.INT32, ndim=1)
            shape = fn.external_source(name="shape", dtype=types.INT32, ndim=1)
            images = fn.decoders.image_slice(
                encoded,
                device="mixed" if on_gpu else "cpu",
                start=start,
                shape=shape,
                axis_names="WH",
                # Boxes are those of the stored pixels; what is transposed is transposed after the resize.
                adjust_orientation=False,
                hw_decoder_load=self._hw_decoder_load,
            )
            if self._resizes:
                mirrored = fn.external_source(name="mirrored", dtype=types.INT32, ndim=0)
                upended = fn.external_source(name="upended", dtype=types.INT32, ndim=0)
                images = fn.resize(images, size=size, interp_type=types.INTERP_LINEAR, antialias=True)
                images = fn.flip(images, horizontal=mirrored, vertical=upended)
            pipeline.set_outputs(images)
        pipeline.build()
        return pipeline

    def begin(self, crops: Crops) -> None:
        begun = _Begun(crops)
        self._begun.append(begun)
        self._feed_again(begun)

    def _feed(self, pipeline: Any, crops: Crops) -> None:
        # The small ones as one array each: an object a sample costs some 10 us of the interpreter.
        pipeline.feed_input("encoded", [np.frombuffer(data, dtype=np.uint8) for data in crops.encoded])
        pipeline.feed_input("start", np.ascontiguousarray(crops.boxes[:, :2]))
        pipeline.feed_input("shape", np.ascontiguousarray(crops.boxes[:, 2:]))
        if self._resizes:
            pipeline.feed_input("mirrored", crops.mirrored.astype(np.int32))
            pipeline.feed_input("upended", crops.upended.astype(np.int32))

    def _feed_again(self, begun: _Begun) -> None:
        try:
            self._feed(self._pipeline, begun.crops)
            self._pipeline.schedule_run()
        except Exception as error:
            # An earlier batch broke the pipeline; `end` makes another and feeds this one then.
            _refuse_if_of_the_machine(error)
            begun.fed = False
        else:
            begun.fed = True

    def end(self, out: torch.Tensor) -> list[int]:
        begun = self._begun[0]
        try:
            if begun.fed and self._take(begun.crops, out):
                return []
            self._pipeline = self._start()
            failed = self._retry(begun.crops, out, 0)
            for later in list(self._begun)[1:]:
                self._feed_again(later)
            return failed
        finally:
            self._begun.popleft()

    def _take(self, crops: Crops, out: torch.Tensor) -> bool:
        """Whether the oldest batch fed came out, and lies in `out`."""
        on_gpu = self._device.type == "cuda"
        stream = torch.cuda.current_stream(self._device) if on_gpu else None
        try:
            # Bound to our stream, the outputs' memory returns to DALI only after what the stream does with it.
            (images,) = self._pipeline.outputs(cuda_stream=stream) if on_gpu else self._pipeline.outputs()
        except Exception as error:
            _refuse_if_of_the_machine(error)
            return False
        pointer = ctypes.c_void_p(out.data_ptr())
        if not self._resizes:
            resample(_stored(images, crops), out)
        elif stream is not None:
            images.copy_to_external(pointer, ctypes.c_void_p(stream.cuda_stream), non_blocking=True)
        else:
            images.copy_to_external(pointer)
        return True

    def _retry(self, crops: Crops, out: torch.Tensor, first: int) -> list[int]:
        """Decode alone; of what fails, each half by itself. Gives the samples that fail, counted from `first`."""
        begun = _Begun(crops)
        self._feed_again(begun)
        if begun.fed and self._take(crops, out):
            return []
        self._pipeline = self._start()
        if len(crops) == 1:
            return [first]
        half = len(crops) // 2
        return [
            *self._retry(crops.part(0, half), out[:half], first),
            *self._retry(crops.part(half, len(crops)), out[half:], first + half),
        ]

    def discard(self) -> None:
        try:
            for _ in [begun for begun in self._begun if begun.fed]:
                self._pipeline.outputs()
        except Exception:
            # One of them broke the pipeline: the next `open` makes another.
            self._pipeline = None
        self._begun.clear()


def _stored(images: Any, crops: Crops) -> Stored:
    """Where DALI's decoded crops lie."""
    sizes = crops.boxes[:, 2:].astype(np.int64)
    shapes = np.array(images.shape())
    if not np.array_equal(shapes[:, :2], sizes[:, ::-1]):
        raise RuntimeError(
            f"DALI gave crops of {shapes.tolist()} where {sizes.tolist()} (width, height) were asked for"
        )
    return Stored(
        addresses=np.array([images[place].data_ptr() for place in range(len(crops))], dtype=np.int64),
        sizes=sizes,
        strides=np.stack([3 * sizes[:, 0], np.full(len(crops), 3), np.ones(len(crops), dtype=np.int64)], axis=1),
        mirrored=crops.mirrored,
        upended=crops.upended,
    )


def _sound_crops(count: int) -> Crops:
    """`count` times one picture: DALI shares batches between its decoders as the first one's size says."""
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (128, 128, 128)).save(file, "JPEG")
    return Crops(
        encoded=[file.getvalue()] * count,
        sizes=np.full((count, 2), 16),
        boxes=np.tile(np.array([[0, 0, 16, 16]], dtype=np.int32), (count, 1)),
        mirrored=np.zeros(count, dtype=bool),
        upended=np.zeros(count, dtype=bool),
    )


def _refuse_if_of_the_machine(error: Exception) -> None:
    """Raise what is no fault of a sample: trying each sample alone would only say that none decodes."""
    text = str(error)
    if any(word in text.lower() for word in ("out of memory", "bad_alloc", "cudaerror", "cuda driver")):
        raise ResourceError(
            "DALI must have the memory and the device that it decodes with",
            got=words_of(error),
            remedy="Use a smaller batch_size or prefetch_factor, or backend='threads'.",
        ) from error
