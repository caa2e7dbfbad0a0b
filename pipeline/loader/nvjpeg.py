"""Decoding by nvJPEG through torchvision, on a CUDA device; crop, resize and mirror there too."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torchvision.io
from torch.nn import functional as F

from ..config import LoaderConfig
from ..errors import DeviceError, MissingDependencyError
from .batch import BatchDecoder
from .cpu_pool import CpuPool
from .device_engine import Crops, DeviceEngine, decoding_device
from .engine_backend import EngineBackend
from .resample import Stored, resample, why_not

__all__ = ["NvjpegBackend", "NvjpegDecoder", "has_nvjpeg", "nvjpeg_engine"]

DECODED_BYTES = 256 << 20
"""Whole pictures decoded on the device at once take at most this much, or one picture."""

HELD = 2
"""Decoded runs of pictures that are kept while they are resized; the engines decode the next one meanwhile."""

Decode = Callable[[list[torch.Tensor]], list[torch.Tensor]]
"""Encoded JPEGs, uint8 of shape (n,) on the CPU, to pictures as stored: uint8 of shape (3, height, width)."""


class NvjpegBackend(EngineBackend):
    """nvJPEG decodes; `num_workers` threads decode the samples that it cannot. See `Backend` for the life cycle.

    Raises:
        DeviceError: the device is not a CUDA device.
        MissingDependencyError: torchvision was built without nvJPEG.
    """

    def __init__(self, decoder: BatchDecoder, config: LoaderConfig) -> None:
        pool = CpuPool(decoder, config.settings.num_workers)
        super().__init__(pool, config, (nvjpeg_engine(decoder, config, pool),))


def nvjpeg_engine(decoder: BatchDecoder, config: LoaderConfig, pool: CpuPool) -> DeviceEngine:
    """An engine on nvJPEG; refused at once where it cannot be used."""
    device = decoding_device(config.device)
    if device.type != "cuda":
        raise DeviceError(
            "backend='nvjpeg' decodes on the device that batches are delivered to, a CUDA device",
            got=config.device,
            remedy="Use device='cuda', or backend='threads'.",
        )
    if not has_nvjpeg():
        raise MissingDependencyError(
            "backend='nvjpeg' needs a torchvision built with CUDA",
            got=f"torchvision {torchvision.__version__}",
            remedy="pip install --force-reinstall torchvision --index-url https://download.pytorch.org/whl/cu"
            + (torch.version.cuda or "").replace(".", ""),
        )
    library = NvjpegDecoder(_decoder_of(device), image_size=decoder.image_size, device=device)
    return DeviceEngine(decoder, library, pool, device=device, spare=0)


def has_nvjpeg() -> bool:
    """Whether torchvision brings its nvJPEG operator."""
    return getattr(torch.ops.image, "decode_jpegs_cuda", None) is not None


def _decoder_of(device: torch.device) -> Decode:
    # The operator itself: from 0.29 on `torchvision.io.decode_jpeg` around every call warns that it will go.
    operator = torch.ops.image.decode_jpegs_cuda

    def decode(encoded: list[torch.Tensor]) -> list[torch.Tensor]:
        return operator(encoded, torchvision.io.ImageReadMode.RGB.value, device)

    return decode


class _Holder:
    """Keeps decoded pictures until the GPU is done with them, and gives them memory that nothing else uses.

    nvJPEG's hardware engines write without waiting for what is queued on the stream that owned the memory before
    (pytorch/vision #9606, meta-pytorch/torchcodec #1634). So pictures are made on a stream of their own, whose memory
    torch gives to nothing else, and are let go of only when their last use is over.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._held: deque[tuple[list[torch.Tensor], Any]] = deque()

    def decode(self, decode: Decode, encoded: list[torch.Tensor]) -> list[torch.Tensor]:
        """Pictures that the current stream may read."""
        while len(self._held) >= HELD:
            self._held[0][1].synchronize()
            self._held.popleft()
        current = torch.cuda.current_stream(self._stream.device)
        with torch.cuda.stream(self._stream):
            pictures = decode(encoded)
        current.wait_stream(self._stream)
        return pictures

    def hold(self, pictures: list[torch.Tensor]) -> None:
        """Until what the current stream does with them is done."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._stream.device))
        self._held.append((pictures, event))

    def let_go(self) -> None:
        for _, event in self._held:
            event.synchronize()
        self._held.clear()


class NvjpegDecoder:
    """Whole pictures by `decode`, then crop, resize and mirror where they lie; see `DeviceDecoder`."""

    depth = 1

    def __init__(self, decode: Decode, *, image_size: int, device: torch.device) -> None:
        self._decode = decode
        self._image_size = image_size
        on_gpu = device.type == "cuda"
        self._holder = _Holder(device) if on_gpu else None
        self._resamples = on_gpu and why_not(device) is None
        self._begun: deque[Crops] = deque()

    def open(self) -> None:
        """Nothing to start: torchvision makes its decoder at the first call."""

    def close(self) -> None:
        self.discard()
        if self._holder is not None:
            self._holder.let_go()

    def begin(self, crops: Crops) -> None:
        self._begun.append(crops)

    def end(self, out: torch.Tensor) -> list[int]:
        crops = self._begun.popleft()
        failed: list[int] = []
        for start, stop in _parts(crops.sizes):
            failed += self._fill(crops.part(start, stop), out[start:stop], start)
        return failed

    def discard(self) -> None:
        self._begun.clear()

    def _fill(self, crops: Crops, out: torch.Tensor, first: int) -> list[int]:
        # torch wants memory that may be written, which bytes and views into LMDB's map are not.
        writable = (
            data if isinstance(data, memoryview) and not data.readonly else bytearray(data) for data in crops.encoded
        )
        encoded = [torch.frombuffer(data, dtype=torch.uint8) for data in writable]
        try:
            pictures = self._holder.decode(self._decode, encoded) if self._holder else self._decode(encoded)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            # One sample fails the whole call, and does not say which: each half by itself.
            if len(crops) == 1:
                return [first]
            half = len(crops) // 2
            return [
                *self._fill(crops.part(0, half), out[:half], first),
                *self._fill(crops.part(half, len(crops)), out[half:], first + half),
            ]
        resize = self._resample if self._resamples else self._interpolate
        failed = resize(pictures, crops, out)
        if self._holder is not None:
            self._holder.hold(pictures)
        return [first + place for place in failed]

    def _resample(self, pictures: list[torch.Tensor], crops: Crops, out: torch.Tensor) -> list[int]:
        sizes = crops.sizes.tolist()
        failed = [
            place for place, picture in enumerate(pictures) if picture.shape != (3, sizes[place][1], sizes[place][0])
        ]
        kept = np.delete(np.arange(len(crops)), failed)
        if len(kept) == 0:
            return failed
        strides = np.array([pictures[place].stride() for place in kept], dtype=np.int64)[:, [1, 2, 0]]
        boxes = crops.boxes[kept].astype(np.int64)
        first = np.array([pictures[place].data_ptr() for place in kept], dtype=np.int64)
        stored = Stored(
            addresses=first + boxes[:, 1] * strides[:, 0] + boxes[:, 0] * strides[:, 1],
            sizes=boxes[:, 2:],
            strides=strides,
            mirrored=crops.mirrored[kept],
            upended=crops.upended[kept],
        )
        target = out if not failed else torch.empty_like(out[: len(kept)])
        resample(stored, target)
        if failed:
            out[torch.from_numpy(kept).to(out.device)] = target
        return failed

    def _interpolate(self, pictures: list[torch.Tensor], crops: Crops, out: torch.Tensor) -> list[int]:
        size = (self._image_size, self._image_size)
        small = torch.empty((len(crops), 3, *size), dtype=torch.float32, device=out.device)
        failed = []
        for place, picture in enumerate(pictures):
            width, height = crops.sizes[place].tolist()
            if picture.shape != (3, height, width):
                failed.append(place)
                continue
            x, y, width, height = crops.boxes[place].tolist()
            crop = picture[:, y : y + height, x : x + width].unsqueeze(0).float()
            small[place] = F.interpolate(crop, size, mode="bilinear", antialias=True)[0]
        for turned, axis in ((crops.mirrored, -1), (crops.upended, -2)):
            if turned.any():
                where = torch.from_numpy(np.flatnonzero(turned)).to(out.device)
                small[where] = small[where].flip(axis)
        out.copy_(small.round_().clamp_(0, 255).permute(0, 2, 3, 1))
        return failed


def _parts(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Start and stop of runs whose pictures fit into DECODED_BYTES, of at least one."""
    start, held = 0, 0
    for place, needed in enumerate((3 * sizes.prod(axis=1)).tolist()):
        if held and held + needed > DECODED_BYTES:
            yield start, place
            start, held = place, 0
        held += needed
    yield start, len(sizes)
