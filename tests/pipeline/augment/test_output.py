"""From a batch as it was decoded to the batch that is handed over."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from wellfed.pipeline.augment import output as output_module
from wellfed.pipeline.augment import ways
from wellfed.pipeline.augment.draw import draw_rectangles
from wellfed.pipeline.augment.output import ImageOutput
from wellfed.pipeline.augment.spread import LEAST_VALUES
from wellfed.pipeline.augmentations import ColorJitter, RandAugment, RandomErasing, RandomGrayscale, as_normalization
from wellfed.pipeline.errors import UsageError

KEYS = np.arange(12, dtype=np.uint64)
AUGMENTATIONS = [ColorJitter(0.4, 0.4, 0.4, 0.1), RandomGrayscale(0.3), RandAugment()]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def output(**options: Any) -> ImageOutput:
    if "normalize" in options:
        options["normalize"] = as_normalization(options["normalize"], options["dtype"])
    return ImageOutput(**{"image_size": 61, "seed": 5, **options})


def test_without_anything_asked_for_the_batch_is_the_same_tensor(pictures: torch.Tensor) -> None:
    assert output()(pictures, epoch=0, keys=KEYS) is pictures


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 2e-3), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("augmented", [False, True])
def test_normalized_batches_are_torchvisions(
    pictures: torch.Tensor, dtype: str, tolerance: float, augmented: bool
) -> None:
    # given an augmentation that leaves pixels alone, the other way through the code; then the same comes out
    more = {"augmentations": [ColorJitter(brightness=(1, 1.0001), p=0.0)]} if augmented else {}
    before = pictures.clone()

    got = output(dtype=dtype, normalize="imagenet", **more)(pictures, epoch=0, keys=KEYS)

    expected = v2.Normalize(MEAN, STD)(v2.ToDtype(torch.float32, scale=True)(pictures))
    assert got.dtype == getattr(torch, dtype)
    assert got.is_contiguous(memory_format=torch.channels_last)
    # The largest value is 2.6, whose last bit in bfloat16 is a 64th.
    torch.testing.assert_close(got.float(), expected, atol=tolerance, rtol=4e-3 if dtype != "float32" else 1e-6)
    assert torch.equal(pictures, before)


def test_the_documented_formula_holds_to_the_last_bit(pictures: torch.Tensor) -> None:
    # numpy, one rounding after the other: scale and shift, product, sum, dtype.
    values = pictures.numpy().astype(np.float32)
    scale = (1 / (255 * np.array(STD))).astype(np.float32).reshape(3, 1, 1)
    shift = (-np.array(MEAN) / np.array(STD)).astype(np.float32).reshape(3, 1, 1)
    expected = values * scale + shift

    got = output(dtype="float32", normalize=(MEAN, STD))(pictures, epoch=0, keys=KEYS)
    half = output(dtype="float16", normalize=(MEAN, STD))(pictures, epoch=0, keys=KEYS)

    assert np.array_equal(got.numpy(), expected)
    assert np.array_equal(half.numpy(), expected.astype(np.float16))


def test_a_floating_point_dtype_alone_divides_by_255(pictures: torch.Tensor) -> None:
    got = output(dtype="float32")(pictures, epoch=0, keys=KEYS)

    torch.testing.assert_close(got, pictures.float() / 255, atol=1e-7, rtol=0)
    assert (float(got.min()), float(got.max())) == (0.0, 1.0)


def test_augmented_uint8_and_augmented_floats_are_the_same_pictures(pictures: torch.Tensor) -> None:
    augmentations = [ColorJitter(0.4, 0.4, 0.4, 0.1), RandAugment()]
    as_bytes = output(augmentations=augmentations)(pictures, epoch=2, keys=KEYS)
    as_floats = output(augmentations=augmentations, dtype="float32")(pictures, epoch=2, keys=KEYS)

    assert as_bytes.dtype == torch.uint8
    assert as_bytes.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(as_floats, output(dtype="float32")(as_bytes, epoch=0, keys=KEYS))
    assert (as_bytes != pictures).float().mean() > 0.5


def test_a_sample_comes_out_the_same_from_every_batch(pictures: torch.Tensor) -> None:
    made = output(augmentations=[ColorJitter(0.4, 0.4, 0.4, 0.1), RandAugment(), RandomErasing(1.0)])
    whole = made(pictures, epoch=1, keys=KEYS)

    rows = [7, 3, 11]
    some = made(pictures[rows].contiguous(memory_format=torch.channels_last), epoch=1, keys=KEYS[rows])

    assert torch.equal(some, whole[rows])
    assert not torch.equal(made(pictures, epoch=2, keys=KEYS), whole)


@pytest.mark.parametrize("value", [0.0, 3.5, (1.0, -2.0, 0.25)])
def test_erasing_is_torchvisions_at_the_drawn_rectangles_after_normalization(
    pictures: torch.Tensor, value: Any
) -> None:
    erasing = RandomErasing(0.7, value=value)
    ((_, boxes),) = draw_rectangles([erasing], seed=5, epoch=0, keys=KEYS, image_size=61)

    got = output(augmentations=[erasing], dtype="float32", normalize="imagenet")(pictures, epoch=0, keys=KEYS)

    plain = output(dtype="float32", normalize="imagenet")(pictures, epoch=0, keys=KEYS)
    fill = torch.tensor(value).expand(3).view(3, 1, 1)
    for place, (x, y, width, height) in enumerate(boxes.tolist()):
        expected = v2.functional.erase(plain[place], y, x, height, width, fill) if width else plain[place]
        assert torch.equal(got[place], expected)
    assert 4 <= (boxes[:, 2] > 0).sum() < 12


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
@pytest.mark.parametrize("augmentations", [[], AUGMENTATIONS, [RandomErasing(0.7, value=(1.0, 2.0, 3.0))]])
def test_the_way_of_cuda_gives_what_that_of_the_cpu_does(
    pictures: torch.Tensor, monkeypatch: pytest.MonkeyPatch, dtype: str, augmentations: list[Any]
) -> None:
    options: dict[str, Any] = {"dtype": dtype, "augmentations": augmentations}
    if dtype != "uint8":
        options["normalize"] = "imagenet"
    by_picture = output(**options)(pictures, epoch=0, keys=KEYS)

    # The batch in three parts, as one that is too large for the device at once.
    monkeypatch.setattr(ways, "AT_ONCE", 5 * 3 * 61 * 61)
    monkeypatch.setattr(output_module, "PictureByPicture", ways.AtOnce)
    at_once = output(**options)(pictures, epoch=0, keys=KEYS)

    assert at_once.is_contiguous(memory_format=torch.channels_last)
    if dtype == "uint8":
        assert torch.equal(at_once, by_picture)
    else:
        # A multiply-add rounds once or twice.
        tolerance = {"float32": 1e-6, "bfloat16": 2**-7}[dtype]
        torch.testing.assert_close(at_once, by_picture, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("wrong", [torch.zeros(2, 3, 61, 61), torch.zeros(2, 3, 60, 61, dtype=torch.uint8)])
def test_pictures_that_were_not_decoded_so_are_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(UsageError, match=r"uint8, 3 x 61 x 61; got torch\.\w+ of shape \(2, 3, 6"):
        output(dtype="float32")(wrong, epoch=0, keys=KEYS[:2])
    with pytest.raises(UsageError, match=r"as they are decoded.*got 'list'"):
        output(dtype="float32")([wrong], epoch=0, keys=KEYS[:2])


@pytest.mark.parametrize("way", [ways.PictureByPicture, ways.AtOnce])
def test_erasing_bytes_writes_bytes(way: Any) -> None:
    out = torch.full((2, 4, 4, 3), 9, dtype=torch.uint8)

    way(torch.ones(3), torch.zeros(3), 4).erase(out, np.array([[0, 1, 2, 1], [0, 0, 0, 0]]), (1.0, 2.0, 255.0))

    assert out[0, 1, :, 0].tolist() == [1, 1, 9, 9]
    assert out[0, 1, 0].tolist() == [1, 2, 255]
    assert int((out != 9).any(dim=3).sum()) == 2


def test_threads_change_neither_pixels_nor_what_torch_uses_elsewhere(pictures: torch.Tensor) -> None:
    # given a batch that is large enough for threads
    large = pictures.repeat(1, 1, 3, 3).contiguous(memory_format=torch.channels_last)
    assert large.numel() >= LEAST_VALUES
    augmentations = [ColorJitter(0.4, 0.4, 0.4, 0.1), RandAugment(), RandomErasing(0.5)]
    options: dict[str, Any] = {"augmentations": augmentations, "dtype": "bfloat16", "image_size": 183}
    before = torch.get_num_threads()
    got = []
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            got.append(output(**options)(large, epoch=0, keys=KEYS))
            assert torch.get_num_threads() == threads
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(torch.get_num_threads).result() == threads
    finally:
        torch.set_num_threads(before)

    assert torch.equal(*got)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wellfed-augment")]
