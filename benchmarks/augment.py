"""Augmentation and normalization of a batch on its device, beside torchvision's; raw values of interleaved rounds.

    python benchmarks/augment.py [--device cuda] [--batch-size 256] [--dtype bfloat16] [--rounds 5] > result.json

The pictures are smooth noise of 224 pixels. torchvision's transforms are called for each sample, as drawing for each
sample needs, or where the row says so once for the batch, with the same parameters for all of it.

Values are milliseconds a sample: `cpu` of processor time in all threads; on a CUDA device also `device`, from the first
kernel's start to the last one's end, and `host`, until the calls returned.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata

import numpy as np
import torch
from torchvision.transforms import v2

from wellfed.pipeline import ColorJitter, RandAugment, RandomErasing, TrivialAugmentWide
from wellfed.pipeline.augment.output import ImageOutput
from wellfed.pipeline.augmentations import Augmentation, as_normalization
from wellfed.pipeline.hardware import fingerprint

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Job = Callable[[], object]


def smooth_noise(count: int, size: int, device: torch.device) -> torch.Tensor:
    """uint8, shape (count, 3, size, size), channels-last."""
    coarse = torch.rand((count, 3, 9, 9), generator=torch.Generator().manual_seed(0))
    pictures = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic").mul(255).clamp_(0, 255)
    return pictures.byte().contiguous(memory_format=torch.channels_last).to(device)


def jobs(pictures: torch.Tensor, dtype: str) -> dict[str, Job]:
    """What is measured, by row: "TASK: WHO"."""
    keys = np.arange(len(pictures), dtype=np.uint64)
    epochs = itertools.count()

    def own(*augmentations: Augmentation, floating: bool = False) -> Job:
        output = ImageOutput(
            dtype=dtype if floating else "uint8",  # type: ignore[arg-type]
            normalize=as_normalization("imagenet", "float32") if floating else None,
            augmentations=augmentations,
            image_size=pictures.shape[-1],
        )
        return lambda: output(pictures, epoch=next(epochs), keys=keys)

    def each(transform: Callable[[torch.Tensor], torch.Tensor]) -> Job:
        return lambda: torch.stack([transform(picture) for picture in pictures])

    wanted = getattr(torch, dtype)
    normalize = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    return {
        "normalize: wellfed": own(floating=True),
        "normalize: torchvision, the batch at once": lambda: normalize(pictures).to(wanted),
        "jitter without hue: wellfed": own(ColorJitter(0.4, 0.4, 0.4)),
        "jitter without hue: torchvision": each(v2.ColorJitter(0.4, 0.4, 0.4)),
        "jitter: wellfed": own(ColorJitter(0.4, 0.4, 0.4, 0.1)),
        "jitter: torchvision": each(v2.ColorJitter(0.4, 0.4, 0.4, 0.1)),
        "RandAugment: wellfed": own(RandAugment()),
        "RandAugment: torchvision": each(v2.RandAugment()),
        "TrivialAugmentWide: wellfed": own(TrivialAugmentWide()),
        "TrivialAugmentWide: torchvision": each(v2.TrivialAugmentWide()),
        "RandAugment, normalize, erasing: wellfed": own(RandAugment(), RandomErasing(0.25), floating=True),
        "RandAugment, normalize, erasing: torchvision": each(
            v2.Compose([v2.RandAugment(), normalize, v2.RandomErasing(0.25), v2.ToDtype(wanted)])
        ),
    }


def measure(job: Job, device: torch.device, samples: int, repeats: int) -> dict[str, float]:
    values = {}
    job()
    if device.type == "cuda":
        torch.cuda.synchronize()
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        job()
    host = time.perf_counter() - wall
    if device.type == "cuda":
        ended.record()
        torch.cuda.synchronize()
        values["device"] = begun.elapsed_time(ended) / 1000
        values["host"] = host
    values["cpu"] = time.process_time() - cpu
    return {name: round(seconds / repeats / samples * 1000, 5) for name, seconds in values.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2, help="batches behind each value")
    options = parser.parse_args(arguments)

    device = torch.device(options.device)
    pictures = smooth_noise(options.batch_size, options.image_size, device)
    rows = jobs(pictures, options.dtype)
    values: dict[str, list[dict[str, float]]] = {name: [] for name in rows}
    shuffled = random.Random(0)
    for _ in range(options.rounds):
        for name in shuffled.sample(list(rows), len(rows)):
            values[name].append(measure(rows[name], device, options.batch_size, options.repeats))
    kind = "device" if device.type == "cuda" else "cpu"
    medians = {name: statistics.median(value[kind] for value in each) for name, each in values.items()}
    for name, median in medians.items():
        print(f"{name:50s} {median:9.4f} ms a sample ({kind})", file=sys.stderr)
    document = {
        "benchmark": "augment",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "batch_size": options.batch_size,
        "image_size": options.image_size,
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "machine": fingerprint(),
        "versions": {"torch": torch.__version__, "torchvision": metadata.version("torchvision")},
        "median_milliseconds_a_sample": medians,
        "values": values,
    }
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
