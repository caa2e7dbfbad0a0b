"""Batches finished on their device: memory that is used again, and on CUDA the streams and the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from wellfed.pipeline import ColorJitter, RandAugment, RandomErasing, RandomGrayscale, TrivialAugmentWide
from wellfed.pipeline.augment.output import ImageOutput
from wellfed.pipeline.augmentations import Augmentation, as_normalization
from wellfed.pipeline.errors import ResourceError
from wellfed.pipeline.loader import memory as memory_module
from wellfed.pipeline.loader.finish import make_finish

EVERYTHING: list[Augmentation] = [
    ColorJitter(0.4, 0.4, 0.4, 0.1),
    RandomGrayscale(0.2),
    RandAugment(),
    TrivialAugmentWide(interpolation="bilinear", fill=(1, 2, 3)),
    RandomErasing(0.5, value=(0.1, 0.2, 0.3)),
]
KEYS = np.arange(32, dtype=np.uint64)


def test_nothing_to_do_is_nothing_done(make_config: Any) -> None:
    assert make_finish(make_config()) is None
    assert make_finish(make_config(dtype="float16")) is not None


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_the_memory_of_batches_that_are_dropped_is_used_again(open_loader: Any, dtype: str) -> None:
    loader = open_loader(dtype=dtype, device_augment=[ColorJitter(0.4)], image_size=64, drop_last=True)

    places = set()
    for _ in range(6):
        for images, _ in loader:
            places.add(images.data_ptr())

    # One in the consumer's hands while the next is made.
    assert len(places) <= 2


def test_memory_that_does_not_hold_the_finished_batch_too_is_said_before_it_is_made(
    open_loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given memory for two batches of 4 x 3 x 8 x 8 values as decoded, and for a byte more of each: 3072 bytes
    monkeypatch.setattr(memory_module, "available_memory", lambda: SimpleNamespace(value=3072))
    assert len(list(open_loader())) == 3

    assert len(list(open_loader(device_augment=[ColorJitter(0.4)]))) == 3
    with pytest.raises(ResourceError, match="2 batches of 4 samples, 3840 bytes each"):
        open_loader(dtype="float32")


@pytest.fixture
def noise() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (32, 9, 9, 3), dtype=torch.uint8, generator=generator)
    # Enlarged, so that neighbours are alike as in photographs.
    return pixels.repeat_interleave(7, dim=1).repeat_interleave(7, dim=2).permute(0, 3, 1, 2)


def output(**options: Any) -> ImageOutput:
    return ImageOutput(**{"image_size": 63, "seed": 3, **options})


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [ColorJitter(0.4, 0.4, 0.4, 0.1), RandomGrayscale(0.5)])
def test_colours_on_cuda_are_the_cpus_to_the_last_bit(noise: torch.Tensor, kind: Augmentation) -> None:
    made = output(augmentations=[kind])

    got = made(noise.cuda(), epoch=0, keys=KEYS)

    assert got.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(got.cpu(), made(noise, epoch=0, keys=KEYS))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_everything_on_cuda_is_near_the_cpus(noise: torch.Tensor, dtype: str) -> None:
    erasing = [] if dtype == "uint8" else [RandomErasing(0.5, value=(0.1, 0.2, 0.3))]
    normalize = None if dtype == "uint8" else as_normalization("imagenet", "float32")
    made = output(augmentations=[*EVERYTHING[:-1], *erasing], dtype=dtype, normalize=normalize)

    got = made(noise.cuda(), epoch=0, keys=KEYS).cpu().float()

    # A place halfway between two pixels may take the other, and what follows makes the most of it.
    unlike = (got - made(noise, epoch=0, keys=KEYS).float()).abs() > (1.5 if dtype == "uint8" else 0.05)
    assert unlike.float().mean() < 0.01


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_normalizing_on_cuda_is_one_kernel_and_takes_no_other_memory(noise: torch.Tensor, dtype: str) -> None:
    made = output(dtype=dtype, normalize=as_normalization("imagenet", "float32"))
    pictures = noise.contiguous(memory_format=torch.channels_last).cuda()
    expected = made(noise, epoch=0, keys=KEYS)
    made(pictures, epoch=0, keys=KEYS)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        got = made(pictures, epoch=0, keys=KEYS)
        torch.cuda.synchronize()

    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == 1, [event.name for event in kernels]
    assert torch.cuda.max_memory_allocated() - before <= got.numel() * got.itemsize + 512
    torch.testing.assert_close(got.cpu(), expected, atol=1e-6, rtol=1e-6 if dtype == "float32" else 8e-3)


@pytest.mark.gpu
def test_the_host_never_waits_for_the_device(noise: torch.Tensor) -> None:
    made = output(augmentations=EVERYTHING, dtype="bfloat16", normalize=as_normalization("imagenet", "float32"))
    pictures = noise.cuda()
    made(pictures, epoch=0, keys=KEYS)
    torch.cuda.synchronize()

    torch.cuda.set_sync_debug_mode("error")
    try:
        made(pictures, epoch=1, keys=KEYS)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["threads", "nvjpeg", "hybrid"])
def test_memory_of_a_finished_batch_is_not_taken_while_it_is_computed_with(open_loader: Any, backend: str) -> None:
    options: dict[str, Any] = {
        "image_size": 64,
        "batch_size": 2,
        "dtype": "float32",
        "device_augment": [ColorJitter(0.4)],
    }
    expected = [images.double().sum().item() for images, _ in open_loader(**options)]
    loader = open_loader(backend=backend, num_workers=3, device="cuda", **options)
    big = torch.randn(4096, 4096, device="cuda")
    sums = []
    for images, _ in loader:
        # The device is kept busy, so the sum runs long after the host has dropped the batch and asked for more.
        for _ in range(10):
            big = big @ big
            big = big / big.norm()
        sums.append(images.double().sum())
        del images

    # Plain gray pictures: decoders differ by two steps of 255 at most, brightness by 1.4 of that, batches by far more.
    off = 0.5 if backend == "threads" else 2 * 3 * 64 * 64 * 3 / 255
    assert all(abs(value.item() - wanted) <= off for value, wanted in zip(sums, expected, strict=True))
