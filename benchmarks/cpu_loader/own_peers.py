"""Peers with threads or processes of their own, wellfed among them; functions as in `torch_peers`."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from .data import listing
from .decoders import AREA, ATTEMPTS, DECODERS, RATIO, SIZE, Decoder, random_draw
from .job import Job

_SHUFFLE_BUFFER = 500


def _wellfed(job: Job, backend: str) -> Iterator[Any]:
    from wellfed.pipeline import DataLoader

    with DataLoader(
        str(job.format("wellfed")),
        batch_size=job.batch_size,
        shuffle=True,
        drop_last=True,
        augment="train",
        image_size=SIZE,
        backend=backend,
        num_workers=job.workers,
        seed=random.randrange(1 << 30),
    ) as loader:
        yield from loader


def wellfed_threads(job: Job) -> Iterator[Any]:
    """wellfed's default on the CPU."""
    return _wellfed(job, "threads")


def wellfed_processes(job: Job) -> Iterator[Any]:
    """wellfed with worker processes."""
    return _wellfed(job, "processes")


def _shuffled(job: Job) -> list[tuple[str, int]]:
    rows = listing(job.files)
    random.shuffle(rows)
    return rows


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _batch(decode: Decoder, rows: Iterable[tuple[str, int]]) -> tuple[Any, Any]:
    import torch

    decoded = [(decode(_read(path), random_draw), label) for path, label in rows]
    return torch.stack([image for image, _ in decoded]), torch.tensor([label for _, label in decoded])


def threads(job: Job) -> Iterator[Any]:
    """A plain thread pool, a batch for each task."""
    decode, rows = DECODERS[job.decoder](), _shuffled(job)
    with ThreadPoolExecutor(job.workers) as pool:
        queue: deque[Future[Any]] = deque()
        for start in range(0, len(rows) - job.batch_size + 1, job.batch_size):
            queue.append(pool.submit(_batch, decode, rows[start : start + job.batch_size]))
            if len(queue) > 2 * job.workers:
                yield queue.popleft().result()
        while queue:
            yield queue.popleft().result()


def nodes(job: Job) -> Iterable[Any]:
    """torchdata's nodes: batches of paths, decoded in threads."""
    from torchdata import nodes as tn

    decode = DECODERS[job.decoder]()
    batches = tn.Batcher(tn.IterableWrapper(_shuffled(job)), job.batch_size, drop_last=True)
    decoded = tn.ParallelMapper(
        batches, lambda rows: _batch(decode, rows), num_workers=job.workers, in_order=False, method="thread"
    )
    return tn.Loader(tn.Prefetcher(decoded, 2))


def grain(job: Job) -> Iterator[Any]:
    """Grain's MapDataset, read by its threads."""
    import grain as library

    decode = DECODERS[job.decoder]()
    source = (
        library.MapDataset.source(listing(job.files))
        .shuffle(seed=random.randrange(1 << 30))
        .map(lambda row: (np.asarray(decode(_read(row[0]), random_draw)), np.int64(row[1])))
        .batch(job.batch_size, drop_remainder=True)
    )
    return iter(source.to_iter_dataset(library.ReadOptions(num_threads=job.workers, prefetch_buffer_size=4)))


def spdl(job: Job) -> Iterator[Any]:
    """SPDL's pipeline, a batch for each task."""
    import spdl.pipeline

    decode = DECODERS[job.decoder]()
    pipeline = (
        spdl.pipeline.PipelineBuilder()
        .add_source(_shuffled(job))
        .aggregate(job.batch_size, drop_last=True)
        .pipe(lambda rows: _batch(decode, rows), concurrency=job.workers)
        .add_sink(3)
        .build(num_threads=job.workers)
    )
    with pipeline.auto_stop():
        yield from pipeline


def ffcv(job: Job) -> Iterable[Any]:
    """FFCV over its own file; it stores JPEGs that it encoded anew."""
    from ffcv.fields.decoders import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

    return Loader(
        str(job.format("ffcv") / "data.beton"),
        batch_size=job.batch_size,
        num_workers=job.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={
            "image": [
                RandomResizedCropRGBImageDecoder((SIZE, SIZE)),
                RandomHorizontalFlip(),
                ToTensor(),
                ToTorchImage(),
            ],
            "label": [IntDecoder(), ToTensor(), Squeeze()],
        },
    )


def dali(job: Job) -> Iterator[Any]:
    """DALI on the CPU: its reader, its cropping decoder, its antialiased resize."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    @pipeline_def(batch_size=job.batch_size, num_threads=job.workers, device_id=None, prefetch_queue_depth=2)
    def define() -> Any:
        data, labels = fn.readers.file(
            file_root=str(job.files), random_shuffle=True, initial_fill=_SHUFFLE_BUFFER, name="reader"
        )
        images = fn.decoders.image_random_crop(
            data,
            device="cpu",
            output_type=types.RGB,
            random_area=list(AREA),
            random_aspect_ratio=list(RATIO),
            num_attempts=ATTEMPTS,
        )
        return fn.flip(dali_resize(images), horizontal=fn.random.coin_flip()), labels

    pipeline = define(seed=random.randrange(1 << 30))
    pipeline.build()
    batches = DALIGenericIterator(
        [pipeline], ["images", "labels"], reader_name="reader", last_batch_policy=LastBatchPolicy.DROP
    )
    for (batch,) in batches:
        yield batch["images"], batch["labels"].flatten().long()


def dali_resize(images: Any) -> Any:
    """The resize that is timed; the pixel comparison runs it on whole images."""
    from nvidia.dali import fn, types

    return fn.resize(images, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR, antialias=True)


def tf_pixels(data: Any, window: Any, antialias: bool) -> Any:
    """tf.data's fastest way: decode only the window, resize it; uint8."""
    import tensorflow as tf

    image = tf.image.decode_and_crop_jpeg(data, window, channels=3, dct_method="INTEGER_ACCURATE")
    image = tf.image.resize(image, (SIZE, SIZE), method="bilinear", antialias=antialias)
    return tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8)


def _tfdata(job: Job, antialias: bool) -> Iterator[Any]:
    import tensorflow as tf

    rows = _shuffled(job)
    tf.config.threading.set_intra_op_parallelism_threads(job.workers)
    tf.config.threading.set_inter_op_parallelism_threads(job.workers)

    def load(path: Any, label: Any) -> Any:
        data = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(data),
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            min_object_covered=0.0,
            aspect_ratio_range=RATIO,
            area_range=AREA,
            max_attempts=ATTEMPTS,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        return tf.image.random_flip_left_right(tf_pixels(data, window, antialias)), label

    labels = np.array([label for _, label in rows], np.int64)
    options = tf.data.Options()
    options.threading.private_threadpool_size = job.workers
    dataset = (
        tf.data.Dataset.from_tensor_slices(([path for path, _ in rows], labels))
        .map(load, num_parallel_calls=job.workers, deterministic=False)
        .batch(job.batch_size, drop_remainder=True)
        .prefetch(2)
        .with_options(options)
    )
    for images, batch_labels in dataset:
        yield images.numpy(), batch_labels.numpy()


def tfdata(job: Job) -> Iterator[Any]:
    """tf.data without antialias."""
    return _tfdata(job, antialias=False)


def tfdata_antialiased(job: Job) -> Iterator[Any]:
    """tf.data with antialias."""
    return _tfdata(job, antialias=True)
