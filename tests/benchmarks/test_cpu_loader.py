"""The CPU benchmark finds wrong batches, judges only whole comparisons, and runs; its figures mean nothing here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wellfed.converters.run import convert

Load = Callable[[str], Any]
Batches = list[tuple[np.ndarray, np.ndarray]]


@pytest.fixture
def right(load: Load) -> Batches:
    """An epoch as a good peer gives it: 12 batches of 64, shuffled, channels first."""
    colour = load("cpu_loader.data").check_colour
    order = np.random.default_rng(1).permutation(768)
    batches = []
    for start in range(0, 768, 64):
        rows = order[start : start + 64]
        images = np.empty((64, 3, 224, 224), np.uint8)
        for place, row in enumerate(rows):
            images[place] = np.array(colour(int(row)), np.uint8)[:, None, None]
        batches.append((images, (rows % 12).astype(np.int64)))
    return batches


def checked(load: Load, monkeypatch: pytest.MonkeyPatch, batches: Batches) -> dict[str, Any]:
    one = load("cpu_loader.one")
    monkeypatch.setattr(one, "opener", lambda peer: lambda job: iter(batches))
    answer: dict[str, Any] = one.check(one.BY_NAME["Grain"], load("cpu_loader.job").Job(root=Path(), workers=2))
    return answer


def test_right_batches_pass_also_with_channels_last(
    load: Load, monkeypatch: pytest.MonkeyPatch, right: Batches
) -> None:
    assert checked(load, monkeypatch, right)["samples"] == 768
    last = [(images.transpose(0, 2, 3, 1), labels) for images, labels in right]
    assert checked(load, monkeypatch, last)["every_sample_once"] is True


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda b: [*b[:-1], b[0]], "64 samples never came, 64 more than once"),
        (lambda b: b[:-1], "64 samples never came"),
        (lambda b: [(images, np.roll(labels, 1)) for images, labels in b], "labels of 768 are another sample's"),
        (lambda b: [(images.astype(np.float32), labels) for images, labels in b], "images are float32"),
        (lambda b: [(images[:, :, :200], labels) for images, labels in b], r"images are uint8 \(64, 3, 200, 224\)"),
        (lambda b: [(images, labels.astype(np.float32)) for images, labels in b], "labels are float32"),
    ],
    ids=["repeated", "missing", "labels", "float", "size", "label type"],
)
def test_wrong_batches_are_found(
    load: Load, monkeypatch: pytest.MonkeyPatch, right: Batches, spoil: Callable[[Batches], Batches], says: str
) -> None:
    with pytest.raises(load("cpu_loader.one").WrongBatchesError, match=says):
        checked(load, monkeypatch, spoil(right))


def test_an_unshuffled_epoch_is_found(load: Load, monkeypatch: pytest.MonkeyPatch, right: Batches) -> None:
    images = np.concatenate([images for images, _ in right])
    labels = np.concatenate([labels for _, labels in right])
    order = np.argsort(load("cpu_loader.data").sample_of(images.mean(axis=(2, 3))))
    straight = [(images[order[a : a + 64]], labels[order[a : a + 64]]) for a in range(0, 768, 64)]

    with pytest.raises(load("cpu_loader.one").WrongBatchesError, match="nothing was shuffled"):
        checked(load, monkeypatch, straight)


def test_colours_survive_jpeg_and_tell_samples_apart(load: Load, tmp_path: Path) -> None:
    data = load("cpu_loader.data")
    data.make_check_folder(tmp_path / "files")
    rows = data.listing(tmp_path / "files")
    assert len(rows) == 768
    for path, label in rows[::50]:
        sample = int(Path(path).stem.removeprefix("photo"))
        with Image.open(path) as image:
            assert data.sample_of(np.asarray(image).mean(axis=(0, 1))) == sample
        assert label == sample % 12


def entry(peer: str, set_name: str, filters: str, *found: float) -> dict[str, Any]:
    values = [{"images_per_second": rate, "first_batch_seconds": 0.3, "cpu_seconds": 1, "images": 1} for rate in found]
    row: dict[str, Any] = {"peer": peer, "set": set_name, "decoder": "", "workers": 2, "filters": filters}
    return {**row, "values": values, "peak_bytes": {"Pss": 700_000_000}, "pixels": {"mean": None}}


@pytest.fixture
def document() -> dict[str, Any]:
    """Two rounds: wellfed 300 and 330 a second, the best antialiased peer 200 and 220, tf.data 310 and 310."""
    return {
        "absent": {"FFCV": "not installed"},
        "growth": {"samples": 1_300_000, "wellfed": {"megabytes_per_epoch": 0.2, "low": -0.1, "high": 0.5}},
        "entries": [
            entry("wellfed threads", "original", "triangle", 300, 330),
            entry("wellfed processes", "original", "triangle", 250, 250),
            entry("ImageFolder + Pillow", "original", "triangle", 100, 110),
            entry("threads + simplejpeg + OpenCV", "original", "area", 200, 220),
            entry("tf.data", "original", "none", 310, 310),
            entry("wellfed threads", "resized", "triangle", 600, 660),
            entry("tf.data", "resized", "none", 400, 400),
        ],
    }


def test_claims_are_paired_ratios_to_the_best_peer_of_their_kind(load: Load, document: dict[str, Any]) -> None:
    claims = load("cpu_loader.summary").summarize(document)["claims"]
    by_name = {row["name"].partition(",")[2] or row["name"]: row for row in claims}
    # 300/200 and 330/220; tf.data is faster and does not filter
    antialiased = by_name[" best antialiased peer"]
    assert antialiased["ratio"]["rounds"] == [1.5, 1.5]
    assert antialiased["other"] == "threads + simplejpeg + OpenCV (2 workers)"
    assert antialiased["verdict"] == "reached"
    # 300/310 and 330/310
    assert by_name[" tf.data without antialias"]["ratio"]["rounds"] == [0.9677, 1.0645]
    # 600/400 and 660/400, against all peers on resized files
    assert by_name[" best peer"]["ratio"]["rounds"] == [1.5, 1.65]
    # 600/100 and 660/110
    whole = by_name["the whole: resized to 256 against original files with torch and Pillow"]
    assert whole["ratio"]["rounds"] == [6.0, 6.0]


def test_without_a_required_peer_a_claim_is_no_result(load: Load, document: dict[str, Any]) -> None:
    document["absent"] |= {"LitData": "litdata is not installed"}
    for row in load("cpu_loader.summary").summarize(document)["claims"]:
        assert row["verdict"] == "not a result"
        assert row["why"] == "absent: LitData"


def test_limits_hold_wellfed_alone(load: Load, document: dict[str, Any]) -> None:
    summary = load("cpu_loader.summary")
    first, peak, growth = summary.summarize(document)["limits"]
    assert (first["value"], peak["value"], growth["value"]) == (0.3, 700_000_000, 0.2)
    assert {first["verdict"], peak["verdict"], growth["verdict"]} == {"reached"}
    document["growth"]["wellfed"] |= {"low": 0.1}
    for row in document["entries"]:
        row["peak_bytes"]["Pss"] = 770_000_000
    _, peak, growth = summary.summarize(document)["limits"]
    assert (peak["verdict"], growth["verdict"]) == ("missed", "missed")


def test_growth_is_the_slope_after_a_hundred_batches(load: Load) -> None:
    # given memory that jumps at the start and then grows by 2 MB each 50 batches, in epochs of 100
    samples = [[50, 0.0], [100, 10e6], [150, 12e6], [200, 14e6], [250, 16e6]]
    found = load("cpu_loader.growth").summarize(samples, 100)
    # then an epoch adds 4 MB
    assert (found["megabytes_per_epoch"], found["low"], found["high"]) == (4.0, 4.0, 4.0)


def test_growth_is_flat_where_every_rounds_slope_may_be_zero(load: Load) -> None:
    growth = load("cpu_loader.growth")
    own = {"megabytes_per_epoch": 0.2, "low": -0.1, "high": 0.5}
    peers = {"megabytes_per_epoch": 170.0, "low": 160.0, "high": 180.0}
    more = {"megabytes_per_epoch": 0.4, "low": 0.1, "high": 0.7}

    assert growth.summary([{"wellfed": own, "torch": peers}])["verdict"] == "reached"
    found = growth.summary([{"wellfed": own, "torch": peers}, {"wellfed": more, "torch": peers}])
    assert found["verdict"] == "missed"
    # the median of 0.2 and 0.4, and the widest interval
    assert found["wellfed"]["megabytes_per_epoch"] == pytest.approx(0.3)
    assert (found["wellfed"]["low"], found["wellfed"]["high"]) == (-0.1, 0.7)
    # it may be zero, and is too much
    steep = {"megabytes_per_epoch": 5.0, "low": -1.0, "high": 11.0}
    assert growth.summary([{"wellfed": steep, "torch": peers}])["verdict"] == "missed"


@pytest.mark.parametrize("peer", ["Streaming", "LitData", "webdataset", "tf.data", "DALI cpu", "FFCV"])
def test_a_peer_that_is_not_installed_is_absent_with_the_reason(
    load: Load, monkeypatch: pytest.MonkeyPatch, peer: str
) -> None:
    rows = load("cpu_loader.rows")
    monkeypatch.setattr(rows.importlib.util, "find_spec", lambda name: None)
    assert rows.BY_NAME[peer].absent.endswith(" is not installed")


def test_random_boxes_lie_within_the_picture(load: Load) -> None:
    draw = load("cpu_loader.decoders").random_draw

    def boxes() -> Iterator[tuple[int, int, int, int]]:
        for height, width in [(1, 1), (300, 400), (2000, 10), (10, 2000)] * 50:
            top, left, h, w, _ = draw(height, width)
            yield top, left, height - top - h, width - left - w

    assert min(min(box) for box in boxes()) >= 0


def test_wellfed_and_the_plain_recipe_pass_and_are_timed(load: Load, tmp_path: Path) -> None:
    # given the checking set as files and converted
    load("cpu_loader.data").make_check_folder(tmp_path / "files")
    convert(tmp_path / "files", tmp_path / "wellfed", output="webdataset", workers=1)
    one, rows, job = load("cpu_loader.one"), load("cpu_loader.rows"), load("cpu_loader.job")
    peer, plain = rows.BY_NAME["wellfed threads"], rows.BY_NAME["ImageFolder + Pillow"]
    asked = job.Job(root=tmp_path, workers=2)
    # when they are checked and timed in this process
    for each in (peer, plain):
        assert one.check(each, asked)["samples"] == 768
    value = one.rate(peer, asked, 2, 3)
    # then every figure is there
    assert value["images"] == 192
    assert value["images_per_second"] == pytest.approx(192 / value["seconds"], rel=1e-2)
    assert value["first_batch_seconds"] > 0
    with pytest.raises(one.WrongBatchesError, match="the epoch ended before"):
        one.rate(peer, asked, 2, 11)


def test_pixels_are_held_to_pillow(load: Load, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "files")
    convert(tmp_path / "files", tmp_path / "wellfed", output="webdataset", workers=1)
    pixels, rows, job = load("cpu_loader.pixels"), load("cpu_loader.rows"), load("cpu_loader.job")
    own = pixels.difference(rows.BY_NAME["wellfed threads"], job.Job(root=tmp_path, workers=1, batch_size=2))
    assert own["images"] == 4
    assert own["mean"] < 1
    # Pillow decodes and resizes as the reference does, torchvision almost
    plain = pixels.difference(rows.BY_NAME["ImageFolder + Pillow"], job.Job(root=tmp_path, workers=1))
    other = pixels.difference(rows.BY_NAME["Grain"], job.Job(root=tmp_path, workers=1, decoder="torchvision"))
    assert (plain["mean"], plain["worst"]) == (0, 0)
    assert 0 < other["mean"] < 1


@pytest.mark.long
def test_a_tiny_round_gives_every_value(photos: Path, tmp_path: Path, run_options: dict[str, Any]) -> None:
    out = tmp_path / "out.json"
    arguments = ["--photos", str(photos), "--peers", "wellfed threads", "--sets", "original", "--rounds", "1"]
    arguments += ["--batches", "2", "--warm-batches", "1", "--growth-batches", "0", "--work", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "benchmarks.cpu_loader", "--output", str(out), *arguments], **run_options)

    document = json.loads(out.read_text())
    (row,) = document["entries"]
    (value,) = row["values"]
    assert value["images"] == 128
    assert value["images_per_second"] == pytest.approx(128 / value["seconds"], rel=1e-3)
    assert document["checks"]["wellfed threads"]["labels_right"] is True
    assert document["absent"]["tf.data"] == "left out by --peers"
    assert row["peak_bytes"]["Pss"] > 50_000_000
    assert row["pixels"]["mean"] < 1
    assert {claim["verdict"] for claim in document["summary"]["claims"]} == {"not a result"}
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_the_growth_command_measures_both_sides(
    tmp_path: Path, run_options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "growth.json"
    arguments = ["--output", str(output), "--samples", "2000", "--batches", "15", "--rounds", "1"]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.cpu_loader.growth", *arguments, "--work", str(tmp_path)], **run_options
    )

    document = json.loads(output.read_text())
    (only,) = document["rounds"]
    assert (only["samples"], only["batches_per_epoch"], only["epochs"]) == (2000, 15, 3)
    for side in ("wellfed", "torch"):
        # 45 batches, and memory after every tenth
        assert [batch for batch, _ in only[side]["samples"]] == [10, 20, 30, 40]
        assert document["summary"][side]["megabytes_per_epoch"] == only[side]["megabytes_per_epoch"]
    assert list(tmp_path.iterdir()) == [output]
    capfd.readouterr()
