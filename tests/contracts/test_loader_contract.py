"""What every backend must keep: the same samples, order, crops and pixels, whatever the workers and the storage.

A backend is written NAME, NAME/SCHEDULE or NAME@DEVICE. DALI's run where it is installed; those on CUDA are marked gpu.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from wellfed.pipeline.errors import CorruptSampleError, UsageError
from wellfed.pipeline.formats import open_source
from wellfed.pipeline.loader import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

FIELDS = ("image", "class", "index", "key", "box", "flip", "valid")
EXACT = [("threads", workers) for workers in range(5)] + [("processes", workers) for workers in range(1, 5)]
"""Those that decode by our CPU path alone: pixels are equal to the last bit."""

HAS_DALI = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None


def near(backend: str, *workers: int, more: tuple[Any, ...] = ()) -> list[Any]:
    """Cases of a backend whose pixels are near the CPU path's; `more` follows the workers in each."""
    marks = []
    if not backend.startswith("nvjpeg"):
        marks.append(pytest.mark.skipif(not HAS_DALI, reason="needs NVIDIA DALI (pip install 'wellfed[dali]')"))
    if backend.endswith("@cuda"):
        marks.append(pytest.mark.gpu)
    return [pytest.param(backend, count, *more, marks=marks) for count in workers]


NEAR = [
    *near("dali", 1, 3),
    *near("hybrid", 1, 3),
    *near("hybrid/greedy", 2),
    *near("dali@cuda", 1, 4),
    *near("nvjpeg@cuda", 1, 4),
    *near("hybrid@cuda", 1, 8),
    *near("hybrid/greedy@cuda", 4),
]
BACKENDS = EXACT + NEAR
REPEATABLE = [case for case in NEAR if "greedy" not in case.values[0] and "cuda" not in case.values[0]]
KINDS = ("folder", "webdataset", "lmdb")
SAMPLES = 23
SIZE = 32

Batches = list[dict[str, torch.Tensor]]


def open_loader(path: Path, backend: str = "threads", workers: int = 0, **options: Any) -> Any:
    options = {"batch_size": 5, "shuffle": True, "augment": "train", "image_size": SIZE, "seed": 11, **options}
    backend, _, device = backend.partition("@")
    backend, _, schedule = backend.partition("/")
    if device:
        options["device"] = device
    if schedule:
        options["hybrid_schedule"] = schedule
    return DataLoader(path, backend=backend, num_workers=workers, fields=FIELDS, **options)


def assert_same(got: Batches, expected: Batches, *, pixels: str = "equal") -> None:
    """Equal in every field; with pixels="near" images may differ by 1.5 of 255 on average and 6 in the worst image.

    Most of these pictures are noise, in colour too, where decoders interpolate differently. The tolerance that is
    stated, 1.0 on average, is that of photographs: test_loader_photographs.py.
    """
    assert len(got) == len(expected)
    differences = []
    for number, (a, b) in enumerate(zip(got, expected, strict=True)):
        for field in FIELDS:
            if field != "image" or pixels == "equal":
                assert torch.equal(a[field].cpu(), b[field]), f"batch {number} differs in {field}"
        differences += (a["image"].cpu().float() - b["image"].float()).abs().mean(dim=(1, 2, 3)).tolist()
    assert np.mean(differences) <= 1.5
    assert np.max(differences) <= 6.0


def pixels_of(backend: str) -> str:
    return "equal" if backend in ("threads", "processes") else "near"


def keys_of(batches: Batches) -> list[int]:
    return [key for batch in batches for key in batch["key"].tolist()]


def pillow(path: Path, box: list[int], flip: bool, size: int = SIZE) -> np.ndarray:
    """The reference, with Pillow alone: turn upright, crop, resize, mirror."""
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    x, y, width, height = box
    crop = upright.crop((x, y, x + width, y + height)).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(ImageOps.mirror(crop) if flip else crop)


@pytest.fixture(scope="module")
def expected(datasets: dict[str, Path]) -> Batches:
    """Two epochs, decoded in the calling thread from the folder."""
    with open_loader(datasets["folder"]) as loader:
        return [batch for _ in range(2) for batch in loader]


@pytest.fixture(scope="module")
def unreduced(datasets: dict[str, Path]) -> Batches:
    """The same two epochs, decoded exactly: what is near is near to these."""
    with open_loader(datasets["folder"], decode="exact") as loader:
        return [batch for _ in range(2) for batch in loader]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("backend", "workers"), BACKENDS)
def test_every_backend_and_storage_gives_the_same_two_epochs(
    datasets: dict[str, Path], expected: Batches, unreduced: Batches, backend: str, workers: int, kind: str
) -> None:
    with open_loader(datasets[kind], backend, workers) as loader:
        got = [batch for _ in range(2) for batch in loader]

    assert [len(batch["key"]) for batch in got] == [5, 5, 5, 5, 3] * 2
    pixels = pixels_of(backend)
    assert_same(got, expected if pixels == "equal" else unreduced, pixels=pixels)


@pytest.mark.parametrize(("backend", "workers"), REPEATABLE)
def test_a_backend_gives_the_same_pixels_whatever_its_workers_and_where_it_resumes(
    datasets: dict[str, Path], backend: str, workers: int
) -> None:
    with open_loader(datasets["lmdb"], backend, 2) as loader:
        whole = [batch for _ in range(2) for batch in loader]
    with open_loader(datasets["lmdb"], backend, workers) as loader:
        batches = iter(loader)
        got = [next(batches) for _ in range(3)]
        state = loader.state_dict()
    with open_loader(datasets["lmdb"], backend, workers) as loader:
        loader.load_state_dict(state)
        got += [batch for _ in range(2) for batch in loader]

    assert_same(got, whole)


@pytest.mark.parametrize(("backend", "workers"), NEAR)
def test_what_a_backend_cannot_decode_goes_to_the_cpu_path_alone_and_is_counted(
    datasets: dict[str, Path], backend: str, workers: int
) -> None:
    # given 23 images, of which the PNG and the CMYK one are no ordinary JPEGs, when two epochs of 5 batches are loaded
    options = {"gpu_share": 0.5} if backend.startswith("hybrid") and "greedy" not in backend else {}
    with open_loader(datasets["webdataset"], backend, workers, shuffle=False, **options) as loader:
        for _ in range(2):
            list(loader)
        cpu, gpu = loader.decoded["cpu"], loader.decoded["gpu"]

    # then every batch was decoded once, on the side that the schedule says
    assert cpu.batches + gpu.batches == 10
    assert cpu.samples + gpu.samples == 46
    if not backend.startswith("hybrid"):
        assert (gpu.batches, gpu.samples, gpu.reference) == (10, 46, 4)
    elif "greedy" not in backend:
        # Half of them, evenly: batches 1 and 3 of each epoch, samples 5-9 and 15-19. The odd two are samples 11 and 13.
        assert (gpu.batches, gpu.samples, gpu.reference) == (4, 20, 0)


@pytest.mark.parametrize("augment", ["train", "eval"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("backend", "workers", "decode"),
    [
        ("threads", 2, "fast"),
        ("threads", 2, "exact"),
        *near("dali", 2, more=("fast",)),
        *near("dali@cuda", 2, more=("fast",)),
        *near("nvjpeg@cuda", 2, more=("fast",)),
    ],
)
def test_every_image_is_pillows_crop_at_its_box(
    datasets: dict[str, Path], image_folder: Path, backend: str, workers: int, kind: str, augment: str, decode: str
) -> None:
    with open_loader(datasets[kind], backend, workers, augment=augment, decode=decode) as loader:
        names = [loader.dataset.name(row) for row in range(SAMPLES)]
        labels = [loader.dataset.class_names[label] for label in loader.dataset.index["label"]]
        differences, boxes, flips = [], [], []
        for batch in loader:
            assert batch["image"].is_contiguous(memory_format=torch.channels_last)
            for place, row in enumerate(batch["index"].tolist()):
                box, flip = batch["box"][place].tolist(), bool(batch["flip"][place])
                reference = pillow(image_folder / names[row], box, flip).astype(int)
                image = batch["image"][place].permute(1, 2, 0).cpu().numpy().astype(int)
                differences.append(np.abs(image - reference).mean())
                boxes.append(tuple(box))
                flips.append(flip)
                assert labels[row] == names[row].split("/")[0]
                assert loader.dataset.class_names[batch["class"][place]] == labels[row]

    # Of pictures this small nearly all are reduced while decoding: docs/loading.md has figures at several sizes.
    if decode == "exact":
        mean, worst = 0.1, 0.5
    elif backend == "dali":
        mean, worst = 0.2, 1.0  # a decoder on the CPU has only rounding to differ by
    elif backend == "threads":
        mean, worst = 1.0, 6.0
    else:
        mean, worst = 1.5, 6.0  # noise in colour; see assert_same
    assert np.mean(differences) <= mean
    assert np.max(differences) <= worst
    assert len(set(boxes)) > 15
    assert set(flips) == ({True, False} if augment == "train" else {False})


@pytest.mark.parametrize("taken", [0, 2, 5, 7])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("threads", 0), ("threads", 3)),
        (("threads", 3), ("processes", 2)),
        (("processes", 2), ("threads", 0)),
        (("processes", 1), ("processes", 2)),
        pytest.param(("dali", 2), ("threads", 2), marks=near("dali", 2)[0].marks),
        pytest.param(("threads", 2), ("hybrid", 3), marks=near("dali", 2)[0].marks),
        pytest.param(("hybrid/greedy", 2), ("dali", 1), marks=near("dali", 2)[0].marks),
        pytest.param(("dali@cuda", 2), ("nvjpeg@cuda", 2), marks=near("dali@cuda", 2)[0].marks),
        pytest.param(("hybrid@cuda", 4), ("hybrid/greedy@cuda", 4), marks=near("dali@cuda", 2)[0].marks),
    ],
)
def test_a_resumed_run_equals_the_uninterrupted_one(
    datasets: dict[str, Path],
    expected: Batches,
    unreduced: Batches,
    before: tuple[str, int],
    after: tuple[str, int],
    taken: int,
) -> None:
    got: Batches = []
    with open_loader(datasets["webdataset"], *before) as loader:
        while len(got) < taken:
            for batch in loader:
                got.append(batch)
                if len(got) == taken:
                    break
        state = json.loads(json.dumps(loader.state_dict()))
    with open_loader(datasets["lmdb"], *after) as loader:
        loader.load_state_dict({**state, "fingerprint": loader.dataset.fingerprint})
        while len(got) < len(expected):
            got.extend(loader)

    exact = {pixels_of(before[0]), pixels_of(after[0])} == {"equal"}
    assert_same(got, expected if exact else unreduced, pixels="equal" if exact else "near")


@pytest.mark.parametrize(("backend", "workers"), EXACT)
def test_decoding_exactly_changes_pixels_of_large_crops_and_nothing_else(
    datasets: dict[str, Path], expected: Batches, backend: str, workers: int
) -> None:
    # given a state of the default, when the rest is decoded exactly
    with open_loader(datasets["webdataset"]) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with open_loader(datasets["webdataset"], backend, workers, decode="exact") as loader:
        loader.load_state_dict(state)
        got = list(loader)

    # then it is the same samples and crops, and a picture differs only where its crop is twice its size or more
    large = 0
    for a, b in zip(got, expected[1:5], strict=True):
        assert all(torch.equal(a[field], b[field]) for field in FIELDS if field != "image")
        for place, box in enumerate(b["box"].tolist()):
            if min(box[2:]) < 2 * SIZE:
                assert torch.equal(a["image"][place], b["image"][place])
            else:
                large += not torch.equal(a["image"][place], b["image"][place])
    assert large >= 3


@pytest.mark.parametrize(("decode", "mean", "worst"), [("exact", 0.1, 0.5), ("fast", 0.2, 6.0)])
def test_real_photographs_stay_within_the_published_tolerances(
    shared_data: Path, decode: str, mean: float, worst: float
) -> None:
    root = shared_data / "imagenet-sample"
    options = {"batch_size": 50, "augment": "train", "image_size": 224, "shuffle": True, "decode": decode}
    differences = []
    loader: Any = DataLoader(root, fields=("image", "index", "box", "flip"), num_workers=2, **options)
    with loader:
        for batch in loader:
            for place, row in enumerate(batch["index"].tolist()):
                box, flip = batch["box"][place].tolist(), bool(batch["flip"][place])
                reference = pillow(root / loader.dataset.name(row), box, flip, 224).astype(int)
                image = batch["image"][place].permute(1, 2, 0).numpy().astype(int)
                differences.append(np.abs(image - reference).mean())

    assert len(differences) == 250
    assert np.mean(differences) <= mean
    assert np.max(differences) <= worst


def test_a_state_resumes_with_another_batch_size_and_other_ranks(datasets: dict[str, Path], expected: Batches) -> None:
    epoch_keys = keys_of(expected[:5])
    with open_loader(datasets["folder"], batch_size=2, rank=1, world_size=2, tail="partial") as loader:
        batches = iter(loader)
        first, second = next(batches), next(batches)
        state = loader.state_dict()
    assert keys_of([first, second]) == epoch_keys[2:4] + epoch_keys[6:8]
    assert state["position"] == 8

    got = []
    for rank in range(3):
        with open_loader(datasets["folder"], batch_size=4, rank=rank, world_size=3, tail="partial") as loader:
            loader.load_state_dict(state)
            got.append(keys_of(list(loader)))

    assert got[0][:4] + got[1][:4] + got[2][:4] == epoch_keys[8:20]
    assert got[0][4:] + got[1][4:] + got[2][4:] == epoch_keys[20:23]


@pytest.mark.parametrize(
    ("backend", "workers"), [("threads", 2), ("processes", 1), *near("hybrid", 2), *near("hybrid@cuda", 2)]
)
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("tail", ["partial", "pad", "drop"])
def test_ranks_share_an_epoch_as_the_tail_says(
    datasets: dict[str, Path], expected: Batches, backend: str, workers: int, world_size: int, tail: str
) -> None:
    epoch_keys = keys_of(expected[:5])
    steps, real, every = [], [], []
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "tail": tail}
        with open_loader(datasets["lmdb"], backend, workers, **options) as loader:
            batches = list(loader)
            assert len(batches) == len(loader)
        steps.append(len(batches))
        every.append(keys_of(batches))
        real += [key for batch in batches for key in batch["key"][batch["valid"]].tolist()]

    # 23 samples in batches of 5: 4 whole and 3 samples on one rank; 2 and 3; 1 and 8.
    if tail == "drop":
        kept = {1: 20, 2: 20, 3: 15}[world_size]
        assert steps == [{1: 4, 2: 2, 3: 1}[world_size]] * world_size
        assert sorted(real) == sorted(epoch_keys[:kept])
    elif tail == "pad":
        assert steps == [{1: 5, 2: 3, 3: 2}[world_size]] * world_size
        assert sorted(real) == sorted(epoch_keys)
        assert all(len(keys) == 5 * steps[0] for keys in every)
    else:
        assert sorted(real) == sorted(epoch_keys)
        assert [len(keys) for keys in every] == {1: [23], 2: [12, 11], 3: [8, 8, 7]}[world_size]


def test_dropping_from_a_dataset_smaller_than_a_batch_is_refused(datasets: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"at least one batch over all ranks, 16 x 2; got 23 samples"):
        open_loader(datasets["folder"], batch_size=16, rank=0, world_size=2, drop_last=True)


@pytest.fixture(scope="module")
def damaged_folder(tmp_path_factory: pytest.TempPathFactory, image_folder: Path) -> Path:
    """8 images in one class; the 3rd and 4th are cut short and the 8th is text."""
    root = tmp_path_factory.mktemp("damaged") / "set"
    (root / "bird").mkdir(parents=True)
    whole = (image_folder / "bird" / "photo 00.jpg").read_bytes()
    other = (image_folder / "bird" / "photo 03.jpg").read_bytes()
    for number, data in enumerate([whole, other, whole[:900], other[:900], whole, other, whole, b"no picture"]):
        (root / "bird" / f"{number}.jpg").write_bytes(data)
    return root


@pytest.mark.parametrize(("backend", "workers"), [("threads", 0), ("threads", 2), ("processes", 2), *NEAR])
def test_a_corrupt_sample_raises_at_its_turn_and_names_itself(damaged_folder: Path, backend: str, workers: int) -> None:
    with open_loader(damaged_folder, backend, workers, shuffle=False, batch_size=2) as loader:
        batches = iter(loader)
        assert next(batches)["index"].tolist() == [0, 1]
        with pytest.raises(CorruptSampleError) as caught:
            next(batches)

    assert caught.value.index == 2
    assert caught.value.path == "bird/2.jpg"
    assert caught.value.dataset == str(damaged_folder)
    assert "on_error='skip'" in str(caught.value)


@pytest.mark.parametrize(("backend", "workers"), [("threads", 0), ("threads", 3), ("processes", 1), *NEAR])
def test_skipping_fills_the_place_from_the_next_good_sample_of_the_batch(
    damaged_folder: Path, backend: str, workers: int
) -> None:
    with open_loader(damaged_folder, backend, workers, shuffle=False, batch_size=4, on_error="skip") as loader:
        first, second = list(loader)
        assert loader.skipped == 3

    assert first["index"].tolist() == [0, 1, 0, 0]
    assert second["index"].tolist() == [4, 5, 6, 4]
    assert first["valid"].tolist() == [True, True, False, False]
    assert second["valid"].tolist() == [True, True, True, False]
    for field in FIELDS[:-1]:
        assert torch.equal(first[field][2], first[field][0])
        assert torch.equal(second[field][3], second[field][0])


def test_a_batch_without_a_good_sample_raises_even_when_skipping(damaged_folder: Path) -> None:
    with open_loader(damaged_folder, "threads", 2, shuffle=False, batch_size=2, on_error="skip") as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(CorruptSampleError, match="No sample of its batch decodes"):
            next(batches)


def test_the_same_images_have_the_same_keys_in_every_storage(datasets: dict[str, Path]) -> None:
    named = []
    for kind in KINDS:
        source = open_source(datasets[kind])
        named.append({int(source.index["key"][row]): source.name(row) for row in range(len(source))})
        source.close()

    assert named[0] == named[1] == named[2]
    assert named[0][0] == "bird/photo 00.jpg"
    assert len(named[0]) == SAMPLES
