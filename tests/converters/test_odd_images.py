"""Every odd image ends stored or rejected as formats.md says, and every reader gets its bytes, its label, its picture.

Two sets: the public files beside the checkout, whose outcomes are in odd_images.txt, and files of the same kinds that
the tests make themselves.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from wellfed.converters import convert, verify
from wellfed.pipeline.decode import chunk
from wellfed.pipeline.decode.augment import oriented_size
from wellfed.pipeline.decode.reference import decode_rgb
from wellfed.pipeline.formats import open_source

SIZE = 64
EXTENSIONS = ("bmp", "gif", "ico", "jp2", "jpg", "png", "ppm", "tif", "webp")
Samples = Mapping[str, tuple[bytes, int]]
"""Original path to image bytes and label."""


@dataclass(frozen=True)
class Odd:
    """A set of files, what must become of each, and what it was converted to.

    Attributes:
        outcomes: relative path to "stored EXT, NOTES" or "rejected: WORDS".
    """

    root: Path
    outcomes: Mapping[str, str]
    wds: Path
    lmdb: Path
    results: Mapping[str, Any]

    @property
    def stored(self) -> dict[str, list[str]]:
        """Path to extension and notes."""
        return {
            path: outcome.removeprefix("stored ").replace(",", "").split()
            for path, outcome in self.outcomes.items()
            if outcome.startswith("stored ")
        }

    @property
    def samples(self) -> Samples:
        classes = sorted(path.name for path in self.root.iterdir())
        return {path: ((self.root / path).read_bytes(), classes.index(path.split("/")[0])) for path in self.stored}


def listed_outcomes() -> dict[str, str]:
    lines = (Path(__file__).with_name("odd_images.txt")).read_text().splitlines()
    return dict(line.split(" | ", 1) for line in lines if not line.startswith("#"))


@pytest.fixture(scope="module", params=["made", "public"])
def odd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Odd:
    if request.param == "made":
        root, outcomes = request.getfixturevalue("made_odd_images")
    else:
        root, outcomes = request.getfixturevalue("shared_data") / "odd-images", listed_outcomes()
    work = tmp_path_factory.mktemp(request.param)
    results = {
        output: convert(root, work / output, output=output, shard_bytes=1_500_000, workers=1)
        for output in ("webdataset", "lmdb")
    }
    return Odd(root, outcomes, work / "webdataset", work / "lmdb", results)


def path_in(document: bytes) -> str:
    return json.loads(document)["path"]


def test_the_table_has_every_file(odd: Odd) -> None:
    found = {str(path.relative_to(odd.root)) for path in odd.root.rglob("*") if path.is_file()}
    assert found == set(odd.outcomes)


@pytest.mark.parametrize("output", ["webdataset", "lmdb"])
def test_outcomes(odd: Odd, output: str) -> None:
    folder, result = {"webdataset": odd.wds, "lmdb": odd.lmdb}[output], odd.results[output]
    rejects = [json.loads(line) for line in (folder / "rejects.jsonl").read_text().splitlines()]
    reasons = {each["path"]: each["reason"] for each in rejects}
    assert set(reasons) == set(odd.outcomes) - set(odd.stored)
    wrong = {
        path: reason for path, reason in reasons.items() if odd.outcomes[path].removeprefix("rejected: ") not in reason
    }
    assert wrong == {}
    assert (result.found, result.stored, result.rejected) == (len(odd.outcomes), len(odd.stored), len(reasons))
    notes = Counter(note for _, *notes in odd.stored.values() for note in notes)
    if chunk._native is None:
        del notes["decoder_warnings"]  # only the C extension hears them
    assert dict(result.notes) == notes
    assert verify(folder, deep=True, workers=1).problems == ()


def test_webdataset(odd: Odd) -> None:
    webdataset = pytest.importorskip("webdataset")
    urls = sorted(str(path) for path in odd.wds.glob("*.tar"))
    seen = {}
    for sample in webdataset.WebDataset(urls, shardshuffle=False):
        (extension,) = set(sample) & set(EXTENSIONS)
        path = path_in(sample["json"])
        assert extension == odd.stored[path][0]
        seen[path] = (sample[extension], int(sample["cls"]))
    assert seen == odd.samples


def test_wids(odd: Odd, tmp_path: Path) -> None:
    wids = pytest.importorskip("wids")
    dataset = wids.ShardListDataset(str(odd.wds / "data.json"), cache_dir=str(tmp_path / "cache"), keep=True)
    dataset.transformations = []
    seen = {}
    for row in range(len(dataset)):
        sample = {name: value.read() for name, value in dataset[row].items() if name.startswith(".")}
        path = path_in(sample[".json"])
        seen[path] = (sample[f".{odd.stored[path][0]}"], int(sample[".cls"]))
    assert seen == odd.samples


def test_dali(odd: Odd, read_by_dali: Callable[[Path, Sequence[str]], list[tuple[bytes, ...]]]) -> None:
    seen = {}
    for path in sorted(odd.wds.glob("*.tar")):
        for image, label, document in read_by_dali(path, [";".join(EXTENSIONS), "cls", "json"]):
            seen[path_in(document)] = (image, int(label))
    assert seen == odd.samples


def test_plain_lmdb(odd: Odd) -> None:
    found: dict[str, dict[str, bytes]] = {}
    with lmdb.open(str(odd.lmdb), readonly=True, lock=False) as environment, environment.begin() as transaction:
        for key, value in transaction.cursor():
            stem, _, extension = bytes(key).decode().partition(".")
            found.setdefault(stem, {})[extension] = bytes(value)
    seen = {}
    for sample in found.values():
        path = path_in(sample["json"])
        assert set(sample) == {"cls", "json", odd.stored[path][0]}
        seen[path] = (sample[odd.stored[path][0]], int(sample["cls"]))
    assert seen == odd.samples


def test_our_sources(odd: Odd) -> None:
    for folder in (odd.wds, odd.lmdb):
        source = open_source(folder)
        rows = range(len(source))
        assert {source.name(row): (source.read(row), int(source.index["label"][row])) for row in rows} == odd.samples
        source.close()


def picture(data: bytes) -> np.ndarray:
    """What Pillow gives under formats.md: upright, first frame, 16-bit gray scaled by 257, alpha on white."""
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        upright = ImageOps.exif_transpose(image)
        see_through = upright.info.get("transparency")
        if upright.mode.startswith("I"):
            values = np.asarray(upright).astype(float)
            gray = np.round(values / 257)
            gray[values == (see_through if isinstance(see_through, int) else -1)] = 255
            return np.repeat(gray[:, :, None], 3, axis=2).astype(np.uint8)
        if "A" in upright.mode or see_through is not None:
            coloured = upright.convert("RGBA")
            white = Image.new("RGB", coloured.size, "white")
            white.paste(coloured.convert("RGB"), mask=coloured.getchannel("A"))
            return np.asarray(white)
        return np.asarray(upright.convert("RGB"))


def differences(odd: Odd, decode: Callable[[bytes, np.void], tuple[np.ndarray, np.ndarray]]) -> Iterator[float]:
    """Mean absolute difference of 255 of each stored image, as decode gives (ours, Pillow's)."""
    source = open_source(odd.wds)
    for row in range(len(source)):
        ours, pillows = decode(source.read(row), source.index[row])
        assert ours.shape == pillows.shape, source.name(row)
        difference = float(np.abs(ours.astype(int) - pillows).mean())
        assert difference <= 0.5, source.name(row)
        yield difference
    source.close()


def test_reference_picture_is_pillows(odd: Odd) -> None:
    assert np.mean(list(differences(odd, lambda data, entry: (decode_rgb(data), picture(data))))) <= 0.1


@pytest.mark.parametrize("extension", ["with", "without"])
def test_decoded_picture_is_pillows(odd: Odd, extension: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole picture, resized as training resizes its crop; upright size and orientation are the index's."""
    if extension == "without":
        monkeypatch.setattr(chunk, "_native", None)
    elif chunk._native is None:
        pytest.skip(f"the C extension is {chunk.native_state()}")

    def decode(data: bytes, entry: np.void) -> tuple[np.ndarray, np.ndarray]:
        width, height = oriented_size(entry["width"], entry["height"], entry["orientation"])
        out = torch.zeros((1, 3, SIZE, SIZE), dtype=torch.uint8).to(memory_format=torch.channels_last)
        box = np.array([[0, 0, int(width), int(height)]], dtype=np.int32)
        # Exactly: a damaged file whose coefficients lie out of range without a warning is another picture when reduced.
        orientation = np.array([entry["orientation"]], np.uint8)
        failures = chunk.decode_chunk([data], box, orientation, np.zeros(1, bool), out, "exact")
        assert failures == {}
        resized = Image.fromarray(picture(data)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        return out[0].permute(1, 2, 0).numpy(), np.asarray(resized)

    assert np.mean(list(differences(odd, decode))) <= 0.1
