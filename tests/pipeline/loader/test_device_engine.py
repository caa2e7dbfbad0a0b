"""Which samples go to DALI or nvJPEG and which to the CPU path, with libraries that are ours or really there."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from wellfed.pipeline.config import LoaderConfig
from wellfed.pipeline.errors import CorruptSampleError, DamagedDatasetError, DeviceError, MissingDependencyError
from wellfed.pipeline.formats import open_source
from wellfed.pipeline.loader import device_engine as engine_module
from wellfed.pipeline.loader import nvjpeg as nvjpeg_module
from wellfed.pipeline.loader.batch import BatchDecoder, BatchTask, HostBatch
from wellfed.pipeline.loader.cpu_pool import CpuPool
from wellfed.pipeline.loader.dali import QUEUE, DaliDecoder
from wellfed.pipeline.loader.device_engine import Crops, DeviceEngine
from wellfed.pipeline.loader.engines import Dispatcher, EngineStream
from wellfed.pipeline.loader.nvjpeg import NvjpegBackend, NvjpegDecoder, _parts

SIZE = 16
HAS_DALI = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
needs_dali = pytest.mark.skipif(not HAS_DALI, reason="needs NVIDIA DALI (pip install 'wellfed[dali]')")


def smooth(number: int, width: int, height: int) -> Image.Image:
    colors = np.random.default_rng(number).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(colors).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def mixed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 images: 0-7 are JPEGs of EXIF orientation 1-8, 8 a PNG, 9 a GIF, 10 a gray JPEG, 11 a JPEG in CMYK."""
    folder = tmp_path_factory.mktemp("mixed") / "set" / "all"
    folder.mkdir(parents=True)
    for number in range(12):
        image, path = smooth(number, 60 + number, 44), folder / f"{number:02d}"
        if number < 8:
            exif = Image.Exif()
            exif[0x0112] = number + 1
            image.save(path.with_suffix(".jpg"), quality=95, subsampling=0, exif=exif)
        elif number == 8:
            image.save(path.with_suffix(".png"))
        elif number == 9:
            image.quantize(64).save(path.with_suffix(".gif"))
        else:
            image.convert("L" if number == 10 else "CMYK").save(path.with_suffix(".jpg"), quality=95)
    return folder.parent


def pillow(path: Path, box: list[int], flip: bool) -> np.ndarray:
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    x, y, width, height = box
    crop = upright.crop((x, y, x + width, y + height)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.asarray(ImageOps.mirror(crop) if flip else crop).astype(int)


def pillow_pictures(encoded: list[torch.Tensor]) -> list[torch.Tensor]:
    """What nvJPEG does, by Pillow: pictures as stored, and one error for all where one does not decode."""
    pictures = []
    for data in encoded:
        try:
            with Image.open(io.BytesIO(data.numpy().tobytes())) as image:
                pictures.append(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1))
        except Exception as error:
            raise RuntimeError("Error while decoding a JPEG") from error
    return pictures


def make_nvjpeg() -> NvjpegDecoder:
    return NvjpegDecoder(pillow_pictures, image_size=SIZE, device=torch.device("cpu"))


def make_dali() -> DaliDecoder:
    return DaliDecoder(batch_size=12, image_size=SIZE, device=torch.device("cpu"), threads=1, hw_decoder_load=0.75)


LIBRARIES = [pytest.param(make_nvjpeg, id="nvjpeg"), pytest.param(make_dali, id="dali", marks=needs_dali)]


def tasks(*rows: list[int], epoch: int = 0) -> Iterator[BatchTask]:
    for number, these in enumerate(rows):
        yield BatchTask(epoch=epoch, rows=np.array(these), valid=np.ones(len(these), bool), position_after=number)


class Running:
    """An engine over a folder, and its batches for given tasks."""

    def __init__(self, folder: Path, library: Any, **options: Any) -> None:
        self.source = open_source(folder)
        decoder = BatchDecoder(
            decode_mode="exact",
            source=self.source,
            **{"seed": 4, "augment": "train", "image_size": SIZE, "on_error": "raise", **options},
        )
        self.pool = CpuPool(decoder, 2)
        self.engine = DeviceEngine(decoder, library, self.pool, device=torch.device("cpu"), spare=2)

    def batches(self, given: Iterator[BatchTask]) -> list[HostBatch]:
        self.pool.open()
        self.engine.open()
        stream = EngineStream((self.engine,), Dispatcher(given, ("gpu",), ahead=6, route=None), timeout=60)
        try:
            return list(stream)
        finally:
            stream.close()

    def close(self) -> None:
        self.engine.close()
        self.pool.close()


@pytest.fixture
def run() -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def make(*args: Any, **options: Any) -> Running:
        made.append(Running(*args, **options))
        return made[-1]

    yield make
    for running in made:
        running.close()


@pytest.mark.parametrize("make", LIBRARIES)
def test_every_orientation_and_odd_file_gives_pillows_crop(
    mixed_folder: Path, run: Callable[..., Running], make: Callable[[], Any]
) -> None:
    running = run(mixed_folder, make())
    batches = running.batches(task for epoch in range(4) for task in tasks(list(range(12)), epoch=epoch))

    assert len(batches) == 4
    for batch in batches:
        # The PNG, the GIF and the one in CMYK; gray and all orientations are the library's.
        assert (batch.side, batch.reference) == ("gpu", 3)
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        for place, row in enumerate(batch.rows.tolist()):
            box, flip = batch.boxes[place].tolist(), bool(batch.flips[place])
            reference = pillow(mixed_folder / running.source.name(row), box, flip)
            image = batch.images[place].permute(1, 2, 0).numpy().astype(int)
            assert np.abs(image - reference).mean() <= 1.0, f"sample {row} in epoch {batch.task.epoch}"


class Counted:
    """A library that notes what it is given, and fails on pictures of these widths."""

    depth = 1

    def __init__(self, inner: Any, fails_on: tuple[int, ...] = ()) -> None:
        self.given: list[list[int]] = []
        self._inner = inner
        self._fails_on = fails_on
        self._begun: deque[Crops] = deque()

    def begin(self, crops: Crops) -> None:
        self.given.append(crops.sizes[:, 0].tolist())
        self._begun.append(crops)
        self._inner.begin(crops)

    def end(self, out: torch.Tensor) -> list[int]:
        failed = self._inner.end(out)
        widths = self._begun.popleft().sizes[:, 0].tolist()
        return sorted({*failed, *(place for place, width in enumerate(widths) if width in self._fails_on)})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_what_a_library_failed_on_goes_to_the_cpu_path_and_is_remembered(
    mixed_folder: Path, run: Callable[..., Running]
) -> None:
    library = Counted(make_nvjpeg(), fails_on=(62, 66))
    running = run(mixed_folder, library)

    first, second = running.batches(tasks([1, 2, 3], [6, 2, 0]))
    assert (first.reference, second.reference) == (1, 2)
    # Row k is k + 60 pixels wide. Both were read before anything was known.
    assert library.given == [[61, 62, 63], [66, 60]] or library.given == [[61, 62, 63], [66, 62, 60]]
    library.given.clear()
    (third,) = running.batches(tasks([5, 6, 2, 1]))

    assert library.given == [[65, 61]]
    assert third.reference == 2
    for place, row in enumerate([5, 6, 2, 1]):
        box, flip = third.boxes[place].tolist(), bool(third.flips[place])
        reference = pillow(mixed_folder / running.source.name(row), box, flip)
        assert np.abs(third.images[place].permute(1, 2, 0).numpy().astype(int) - reference).mean() <= 1.0


@pytest.mark.parametrize("make", LIBRARIES)
def test_one_bad_sample_costs_no_other_one_and_the_batches_behind_it_come_out_right(
    mixed_folder: Path, run: Callable[..., Running], make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a header check that lets everything through, so that the libraries meet what they cannot decode
    monkeypatch.setattr(engine_module, "ordinary_jpegs", lambda encoded, *sizes: np.ones(len(encoded), bool))
    running = run(mixed_folder, make(), augment="eval")
    plain = Running(mixed_folder, Counted(make_nvjpeg(), fails_on=tuple(range(60, 72))), augment="eval")
    rows = [[0, 1, 9, 2], [3, 4], [5, 6, 7, 10], [9, 9, 1]]

    got = running.batches(tasks(*rows))
    expected = plain.batches(tasks(*rows))
    plain.close()

    assert [batch.rows.tolist() for batch in got] == rows
    for a, b in zip(got, expected, strict=True):
        assert (a.images.float() - b.images.float()).abs().mean() <= 1.0
        assert torch.equal(a.boxes, b.boxes)


@needs_dali
def test_dali_makes_its_pipeline_anew_after_a_bad_sample_and_only_then(
    mixed_folder: Path, run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "ordinary_jpegs", lambda encoded, *sizes: np.ones(len(encoded), bool))
    library = make_dali()
    starts: list[int] = []
    start = library._start

    def counted() -> Any:
        starts.append(1)
        return start()

    monkeypatch.setattr(library, "_start", counted)
    running = run(mixed_folder, library)

    (batch,) = running.batches(tasks([0, 1, 2, 3, 9, 4, 5, 6]))
    # Once to begin with; then the batch fails, again with no other in the pipeline, its second half, that one's first
    # half, and the sample by itself.
    assert len(starts) == 1 + 5
    assert batch.reference == 1
    running.batches(tasks([0, 1, 9, 2], [9, 3, 4]))
    assert len(starts) == 6


@needs_dali
def test_dalis_first_batch_is_a_full_one(
    mixed_folder: Path, run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It shares later batches between the GPU's JPEG engines and its cores as the first one's size says.
    fed: list[int] = []
    feed = DaliDecoder._feed

    def counted(self: DaliDecoder, pipeline: Any, crops: Crops) -> None:
        fed.append(len(crops))
        feed(self, pipeline, crops)

    monkeypatch.setattr(DaliDecoder, "_feed", counted)
    library = make_dali()
    run(mixed_folder, library).batches(tasks([0, 1]))
    assert library._batch_size > 2
    assert fed == [library._batch_size] * QUEUE + [2]


@pytest.mark.parametrize("make", LIBRARIES)
def test_missing_bytes_raise_at_their_turn(
    mixed_folder: Path, run: Callable[..., Running], make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = run(mixed_folder, make())
    read = type(running.source).read

    def damaged(source: Any, row: int) -> bytes:
        if row == 5:
            raise DamagedDatasetError("bytes must be there", got="none")
        return read(source, row)

    monkeypatch.setattr(type(running.source), "read", damaged)
    running.pool.open()
    running.engine.open()
    stream = EngineStream(
        (running.engine,), Dispatcher(tasks([0, 1], [2, 5], [3]), ("gpu",), ahead=6, route=None), timeout=60
    )
    assert next(stream).rows.tolist() == [0, 1]
    with pytest.raises(DamagedDatasetError):
        next(stream)
    stream.close()
    # And the engine goes on with the next stream.
    assert [batch.rows.tolist() for batch in running.batches(tasks([3, 4]))] == [[3, 4]]


@pytest.mark.parametrize("make", LIBRARIES)
def test_leaving_a_stream_early_leaves_nothing_for_the_next(
    mixed_folder: Path, run: Callable[..., Running], make: Callable[[], Any]
) -> None:
    running = run(mixed_folder, make())
    for taken in range(4):
        running.pool.open()
        running.engine.open()
        stream = EngineStream(
            (running.engine,), Dispatcher(tasks(*[[0, 1, 8]] * 9), ("gpu",), ahead=6, route=None), timeout=60
        )
        for _ in range(taken):
            next(stream)
        stream.close()
    expected = running.batches(tasks([2, 3, 10]))[0].images.clone()

    fresh = run(mixed_folder, make())
    assert torch.equal(fresh.batches(tasks([2, 3, 10]))[0].images, expected)


def test_a_sample_that_no_decoder_reads_is_named(tmp_path: Path, run: Callable[..., Running]) -> None:
    (tmp_path / "set" / "a").mkdir(parents=True)
    smooth(0, 60, 44).save(tmp_path / "set" / "a" / "0.jpg")
    (tmp_path / "set" / "a" / "1.jpg").write_bytes(b"no picture")
    running = run(tmp_path / "set", make_nvjpeg())
    with pytest.raises(CorruptSampleError, match=r"originally 'a/1\.jpg'"):
        running.batches(tasks([0, 1]))


def test_pictures_are_decoded_in_runs_of_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvjpeg_module, "DECODED_BYTES", 1000)
    # 3 x 10 x 10 = 300 bytes, thrice; then one of 2,700 bytes, which goes alone; then 300.
    sizes = np.array([[10, 10], [10, 10], [10, 10], [10, 10], [30, 30], [10, 10]])

    assert list(_parts(sizes)) == [(0, 3), (3, 4), (4, 5), (5, 6)]


def test_nvjpeg_needs_a_cuda_device(mixed_folder: Path, make_config: Callable[..., LoaderConfig]) -> None:
    decoder = BatchDecoder(source=open_source(mixed_folder), seed=0, augment="eval", image_size=SIZE, on_error="raise")
    with pytest.raises(DeviceError, match=r"a CUDA device; got 'cpu'.*device='cuda', or backend='threads'"):
        NvjpegBackend(decoder, make_config(backend="nvjpeg"))


def test_a_torchvision_without_nvjpeg_is_said_with_the_pip_line(
    mixed_folder: Path, make_config: Callable[..., LoaderConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvjpeg_module, "has_nvjpeg", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    decoder = BatchDecoder(source=open_source(mixed_folder), seed=0, augment="eval", image_size=SIZE, on_error="raise")
    with pytest.raises(MissingDependencyError, match=r"pip install .*torchvision --index-url .*/cu130"):
        NvjpegBackend(decoder, make_config(backend="nvjpeg", device="cuda:0"))
