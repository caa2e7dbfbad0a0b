"""A user's transforms on every backend: the same results wherever they run, and errors that name the sample."""

from __future__ import annotations

import gc
import multiprocessing
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from wellfed.pipeline.errors import TransformError, UsageError, WorkerError
from wellfed.pipeline.loader import DataLoader, processes
from wellfed.pipeline.loader import transform as transforms

Case = tuple[str, int]
Open = Callable[..., Any]

NEAR = 6.0
"""Of 255: what decoders differ by at most on average over these smooth pictures, before a transform."""


def random_shade(image: torch.Tensor) -> torch.Tensor:
    """From all three generators that a process has."""
    assert image.dtype == torch.uint8
    assert image.shape == (3, 16, 16)
    assert not image.is_cuda
    return image.float() + 1000 * torch.rand(()) + 1000 * float(np.random.rand()) + 1000 * random.random()


def own_shade(image: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    assert generator is not None
    return image.float() + 1000 * torch.rand((), generator=generator)


class Views(NamedTuple):
    one: torch.Tensor
    other: torch.Tensor


def two_views(image: torch.Tensor) -> Views:
    return Views(image[:, :8, :8], image.float().mean(dim=(1, 2)))


def of_fields(sample: dict[str, Any]) -> dict[str, Any]:
    assert set(sample) == {"image", "class", "caption", "tokens", "boxes", "count", "index"}
    sample["image"].zero_()
    return {
        "image": sample["image"],
        "words": len(sample["caption"]),
        "tokens": sample["tokens"] + 1,
        "boxes": sample["boxes"],
        "even": sample["count"] % 2 == 0,
        "index": sample["index"],
        "draw": random.random(),
    }


def without_image(sample: dict[str, Any], *, generator: torch.Generator) -> dict[str, Any]:
    return {"index": sample["index"], "tokens": torch.rand(len(sample["tokens"]), generator=generator)}


def fails_on_nine(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["index"] == 9:
        raise ZeroDivisionError("nine is not good")
    return sample


def own_fails_on_nine(sample: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    return fails_on_nine(sample)


def stop(image: torch.Tensor) -> torch.Tensor:
    raise StopIteration


GATE = threading.Event()


def hangs(image: torch.Tensor) -> torch.Tensor:
    GATE.wait(60)
    return image


def own_hangs(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return hangs(image)


def odd_keys(sample: dict[str, Any]) -> dict[str, Any]:
    return {"index": 1} if sample["index"] % 2 else {"index": 0, "more": 2}


def mean_differences(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (got.cpu() - expected.cpu()).abs().mean(dim=(1, 2, 3))


@pytest.mark.parametrize("transform", [random_shade, own_shade])
def test_random_numbers_are_the_samples_own_wherever_they_are_drawn(
    open_rich: Open, case: Case, transform: Callable[..., Any]
) -> None:
    # given the calling thread's two epochs, and the means that their images have without a transform
    with open_rich(transform=transform) as loader:
        expected = [batch for _ in range(2) for batch in loader]
    with open_rich() as loader:
        plain = [batch for _ in range(2) for batch in loader]

    # when another backend resumes after a batch, in a program that has drawn numbers of its own
    random.seed(1)
    torch.manual_seed(2)
    np.random.seed(3)
    before = random.getstate(), torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"].tolist()
    with open_rich(case, transform=transform) as loader:
        got = [next(iter(loader))]
        state = loader.state_dict()
    with open_rich(case, "webdataset", transform=transform) as loader:
        loader.load_state_dict({**state, "fingerprint": loader.dataset.fingerprint})
        got += [batch for _ in range(2) for batch in loader]

    # then it is the same numbers, and the program's go on as if nothing had been drawn
    shades = []
    for (images, labels), (wanted, its_labels), (pixels, _) in zip(got, expected, plain, strict=True):
        assert images.device.type == ("cuda" if "@" in case[0] else "cpu")
        assert images.dtype == torch.float32
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(labels.cpu(), its_labels)
        assert mean_differences(images, wanted).max() <= NEAR
        shades += (wanted - pixels).mean(dim=(1, 2, 3)).tolist()
    assert len({round(shade, 2) for shade in shades}) == 34
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == before[2]


def test_a_sample_drawn_twice_gets_other_numbers(open_rich: Open) -> None:
    weights = [1.0] + [0.0] * 16
    options = {"weights": weights, "augment": "eval", "transform": own_shade, "batch_size": 17}
    with open_rich(("threads", 2), **options) as loader:
        images, _ = next(iter(loader))

    assert len({round(float(image.mean()), 3) for image in images}) == 17


def test_results_of_several_parts_are_collated_each_for_itself(open_rich: Open, case: Case) -> None:
    with open_rich(case, transform=two_views) as loader:
        views, labels = next(iter(loader))

    assert isinstance(views, Views)
    assert views.one.shape == (5, 3, 8, 8)
    assert views.one.dtype == torch.uint8
    assert views.other.shape == (5, 3)
    assert views.other.device == labels.device


def test_a_transform_of_fields_gets_and_gives_dictionaries(
    open_rich: Open, facts: list[dict[str, Any]], case: Case
) -> None:
    fields = ("image", "class", "caption", "tokens", "boxes", "count", "index", "valid")
    with open_rich(fields=fields, transform=of_fields) as loader:
        expected = list(loader)
    with open_rich(case, fields=fields, transform=of_fields) as loader:
        got = list(loader)

    for batch, wanted in zip(got, expected, strict=True):
        assert set(batch) == {"image", "words", "tokens", "boxes", "even", "index", "draw", "valid"}
        rows = [facts[row] for row in batch["index"].tolist()]
        assert not batch["image"].any()
        assert batch["words"].tolist() == [len(fact["caption"]) for fact in rows]
        assert [tokens.tolist() for tokens in batch["tokens"]] == [[t + 1 for t in fact["tokens"]] for fact in rows]
        assert batch["boxes"] == [fact["boxes"] for fact in rows]
        assert batch["even"].dtype == torch.bool
        assert batch["valid"].all()
        for name in ("index", "draw"):
            assert torch.equal(batch[name].cpu(), wanted[name])


def test_samples_without_images_are_transformed_too(open_rich: Open, case: Case) -> None:
    options = {"fields": ("index", "tokens"), "transform": without_image}
    with open_rich(**options) as loader:
        expected = list(loader)
    with open_rich(case, **options) as loader:
        got = list(loader)

    for batch, wanted in zip(got, expected, strict=True):
        assert torch.equal(batch["index"].cpu(), wanted["index"])
        for tokens, own in zip(batch["tokens"], wanted["tokens"], strict=True):
            assert torch.equal(tokens.cpu(), own)


@pytest.mark.parametrize("transform", [fails_on_nine, own_fails_on_nine])
def test_an_exception_names_the_sample_and_brings_its_traceback(
    open_rich: Open, rich: dict[str, Path], case: Case, transform: Callable[..., Any]
) -> None:
    with open_rich(case, shuffle=False, fields=("image", "index"), transform=transform) as loader:
        batches = iter(loader)
        assert next(batches)["index"].tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(TransformError) as caught:
            next(batches)

    error = caught.value
    assert (error.dataset, error.index, error.path) == (str(rich["lmdb"]), 9, "row-000000009")
    assert "ZeroDivisionError: nine is not good" in str(error)
    if case[0].startswith("processes"):
        assert "in fails_on_nine" in error.__notes__[-1]
    else:
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert error.__cause__.__traceback__ is not None


def test_an_exception_is_not_skipped(open_rich: Open, case: Case) -> None:
    options = {"fields": ("index",), "transform": fails_on_nine, "on_error": "skip"}
    with open_rich(case, **options) as loader, pytest.raises(TransformError):
        list(loader)


def test_stop_iteration_does_not_end_the_epoch_silently(open_rich: Open, case: Case) -> None:
    with open_rich(case, transform=stop) as loader, pytest.raises(TransformError, match="StopIteration"):
        list(loader)


@pytest.mark.parametrize("transform", [hangs, own_hangs])
def test_a_hang_is_an_error_after_the_timeout(open_rich: Open, case: Case, transform: Callable[..., Any]) -> None:
    if case[0].startswith("processes"):
        case = (case[0], 1)  # torch waits 5 seconds for each worker that hangs
    GATE.clear()
    with (
        open_rich(case, augment="eval", transform=transform, timeout=1) as loader,
        pytest.raises(WorkerError, match="timeout"),
    ):
        next(iter(loader))

    gc.collect()
    assert not multiprocessing.active_children()
    # What hangs cannot be ended, and must not keep the program alive; nothing else is left.
    left = [thread for thread in threading.enumerate() if thread.name.startswith("wellfed")]
    assert all(thread.daemon for thread in left)
    GATE.set()
    for thread in left:
        thread.join(60)
        assert not thread.is_alive()


def test_dictionaries_with_other_keys_are_refused(open_rich: Open, case: Case) -> None:
    with (
        open_rich(case, shuffle=False, fields=("index",), transform=odd_keys) as loader,
        pytest.raises(UsageError, match="the same keys"),
    ):
        list(loader)


def test_workers_that_are_not_forked_need_a_transform_that_pickles(open_rich: Open, rich: dict[str, Path]) -> None:
    options = {"transform": lambda image: image, "multiprocessing_context": "spawn"}
    with pytest.raises(UsageError, match="must be picklable"):
        open_rich(("processes", 1), **options)
    with open_rich(("processes", 1), transform=options["transform"], multiprocessing_context="fork") as loader:
        assert len(list(loader)) == 4
    # Left to choose, the loader takes a backend that can run it.
    with DataLoader(rich["lmdb"], num_workers=1, **options) as loader:
        assert loader.config.settings.backend == "threads"


def test_functions_of_a_notebook_cannot_go_to_its_spawned_workers(
    open_rich: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cell(image: torch.Tensor) -> torch.Tensor:
        return image

    cell.__module__ = "__main__"
    for module in (processes, transforms):
        monkeypatch.setattr(module, "in_notebook", lambda: True)
    with pytest.raises(UsageError, match="of a notebook"):
        open_rich(("processes", 1), transform=cell)


@pytest.mark.parametrize(
    ("transform", "backend"), [(random_shade, "processes"), (own_shade, "threads"), (None, "threads")]
)
def test_auto_runs_transforms_where_they_draw_their_own_numbers_at_the_same_time(
    rich: dict[str, Path], transform: Any, backend: str
) -> None:
    with DataLoader(rich["lmdb"], num_workers=2, transform=transform) as loader:
        assert loader.config.settings.backend == backend


def mixed(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    images, labels = batch
    numbers = (
        torch.rand(2, device=images.device).cpu(),
        torch.rand(2),
        torch.tensor([np.random.rand(), random.random()]),
    )
    return images, labels, torch.cat([part.double() for part in numbers])


def own_mixed(batch: tuple[torch.Tensor, torch.Tensor], generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    images, labels = batch
    return images, labels, torch.rand(6, device=images.device, generator=generator).cpu()


@pytest.mark.parametrize("transform", [mixed, own_mixed])
def test_a_transform_of_batches_gets_them_on_the_device_with_numbers_of_their_own(
    open_rich: Open, case: Case, transform: Callable[..., Any]
) -> None:
    before = torch.get_rng_state()
    with open_rich(case, batch_transform=transform) as loader:
        first = next(iter(loader))
        state = loader.state_dict()
        loader.load_state_dict({**state, "position": 0})
        whole = [batch for _ in range(2) for batch in loader]
    with open_rich(case, batch_transform=transform) as loader:
        loader.load_state_dict(state)
        rest = [batch for _ in range(2) for batch in loader]

    assert first[0].device.type == ("cuda" if "@" in case[0] else "cpu")
    numbers = [batch[2].tolist() for batch in whole]
    assert [batch[2].tolist() for batch in [first, *rest]] == numbers
    assert len({value for row in numbers for value in row}) >= 8 * 4
    assert torch.equal(torch.get_rng_state(), before)


def test_both_transforms_and_the_batchs_own_error(open_rich: Open, case: Case) -> None:
    def broken(batch: Any) -> Any:
        if batch["n"].shape[0] == 2:
            raise KeyError("two")
        return batch["n"] + 1

    def count(sample: dict[str, Any]) -> dict[str, Any]:
        return {"n": len(sample["tokens"])}

    with open_rich(case, fields=("tokens",), transform=count, batch_transform=broken) as loader:
        batches = iter(loader)
        assert all(1 <= int(n) <= 4 for n in next(batches))
        next(batches), next(batches)
        with pytest.raises(KeyError, match="two"):
            next(batches)


def test_torchvisions_transforms_run_as_they_are(open_rich: Open, case: Case) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    chain = v2.Compose([v2.ColorJitter(0.4, 0.4), v2.RandomErasing(p=1.0), v2.ToDtype(torch.float32, scale=True)])
    options = {"transform": chain, "batch_transform": v2.MixUp(num_classes=2), "augment": "eval"}
    with open_rich(**options) as loader:
        expected = list(loader)
    with open_rich(case, **options) as loader:
        got = list(loader)

    for (images, labels), (wanted, its_labels) in zip(got, expected, strict=True):
        assert images.dtype == torch.float32
        assert labels.shape == (len(images), 2)
        if "cuda" not in case[0]:
            # MixUp draws on the labels' device.
            assert torch.equal(labels, its_labels)
            assert mean_differences(images, wanted).max() <= NEAR / 255
