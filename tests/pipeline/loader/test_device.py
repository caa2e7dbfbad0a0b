"""Delivery to the device; the tests of the copy itself need a GPU."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
import torch

from wellfed.pipeline.errors import DeviceError
from wellfed.pipeline.loader.device import check_device

HAS_DALI = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
DALI = pytest.mark.skipif(not HAS_DALI, reason="needs NVIDIA DALI (pip install 'wellfed[dali]')")


def test_the_cpu_is_a_device() -> None:
    assert check_device("cpu") == torch.device("cpu")


def test_without_cuda_a_cuda_device_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(DeviceError, match=r"got 'cuda'.*device='cpu'"):
        check_device("cuda")


def test_a_cuda_device_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    assert check_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(DeviceError, match="has 2 CUDA device"):
        check_device("cuda:2")


@pytest.mark.gpu
@pytest.mark.parametrize("pin", [True, False])
@pytest.mark.parametrize(("backend", "workers"), [("threads", 0), ("threads", 3), ("processes", 2)])
def test_cuda_batches_equal_the_cpus(open_loader: Any, backend: str, workers: int, pin: bool) -> None:
    fields = ("image", "class", "index", "key", "box", "flip", "valid")
    options = {"shuffle": True, "augment": "train", "image_size": 64, "fields": fields}
    plain = open_loader(**options)
    expected = [batch for _ in range(2) for batch in plain]
    loader = open_loader(backend=backend, num_workers=workers, device="cuda", pin_memory=pin, **options)

    got = [batch for _ in range(2) for batch in loader]

    for a, b in zip(got, expected, strict=True):
        assert all(tensor.device == torch.device("cuda", torch.cuda.current_device()) for tensor in a.values())
        assert a["image"].is_contiguous(memory_format=torch.channels_last)
        assert all(torch.equal(a[field].cpu(), b[field]) for field in fields)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["threads", "nvjpeg", "hybrid", pytest.param("dali", marks=DALI)])
def test_memory_of_a_cuda_batch_is_not_taken_while_it_is_computed_with(open_loader: Any, backend: str) -> None:
    loader = open_loader(backend=backend, num_workers=3, device="cuda", image_size=64, batch_size=2)
    expected = [images.sum().item() for images, _ in open_loader(image_size=64, batch_size=2)]
    big = torch.randn(4096, 4096, device="cuda")
    sums = []
    for images, _ in loader:
        # The device is kept busy, so the sum runs long after the host has dropped the batch and asked for more.
        for _ in range(10):
            big = big @ big
            big = big / big.norm()
        sums.append(images.sum())
        del images

    # Plain gray pictures: decoders differ by two steps of 255 at most, and the pixels of other batches by forty.
    off = 0 if backend == "threads" else 2 * 2 * 3 * 64 * 64
    assert all(abs(value.item() - wanted) <= off for value, wanted in zip(sums, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["nvjpeg", "hybrid", pytest.param("dali", marks=DALI)])
def test_a_backend_on_the_gpu_holds_no_more_device_memory_after_more_epochs(open_loader: Any, backend: str) -> None:
    loader = open_loader(backend=backend, num_workers=2, device="cuda", image_size=224, batch_size=4)

    def held(epochs: int) -> int:
        for _ in range(epochs):
            for _ in loader:
                pass
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return total - free

    levels = [held(epochs) for epochs in (5, 40, 40, 40)]
    # 120 batches of 588 KiB are 69 MiB, if each were kept. The device tells all that is held on it, and another program
    # that begins meanwhile adds to one of the rounds; what is kept adds to each.
    assert min(after - before for before, after in pairwise(levels)) < 32 << 20


@pytest.mark.gpu
def test_the_state_does_not_run_ahead_with_the_copy(open_loader: Any) -> None:
    loader = open_loader(num_workers=2, device="cuda")
    batches = iter(loader)
    next(batches)
    torch.cuda.synchronize()

    assert loader.state_dict()["position"] == 4
