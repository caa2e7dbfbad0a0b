"""`--image`: what becomes of the images, and that index, manifest and json member say it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import xxhash
from PIL import Image

from wellfed.converters import convert
from wellfed.converters.image_option import ImageOption
from wellfed.converters.inputs import list_input
from wellfed.converters.plan import planned_sizes
from wellfed.converters.preview import preview
from wellfed.converters.repair import repair
from wellfed.converters.request import Request
from wellfed.converters.selection import SelectionOptions, select
from wellfed.converters.verify import verify
from wellfed.pipeline.cli.main import main
from wellfed.pipeline.decode import check, rewrite
from wellfed.pipeline.decode.rewrite import to_resized
from wellfed.pipeline.errors import DamagedDatasetError, UsageError
from wellfed.pipeline.formats import INDEX_NAME, Manifest, open_index

Digests = Callable[[Path], dict[str, str]]
needs_extension = pytest.mark.skipif(rewrite._native is None, reason="the C extension is not built")


def encoded(form: str, size: tuple[int, int], mode: str = "RGB", orientation: int = 1, **options: Any) -> bytes:
    width, height = size
    ramp = np.linspace(0, 255, width * height * 3).astype(np.uint8).reshape(height, width, 3)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(ramp).convert(mode).save(buffer, form, **({"exif": exif} if orientation != 1 else {}), **options)
    return buffer.getvalue()


SOURCES = {
    "a/0.jpg": encoded("JPEG", (90, 60), progressive=True),
    "a/1.jpg": encoded("JPEG", (90, 60), orientation=6),
    "a/2.jpg": encoded("JPEG", (100, 80), mode="L"),
    "b/0.png": encoded("PNG", (80, 120), mode="RGBA"),
    "b/1.jpg": encoded("JPEG", (30, 20), progressive=True),  # smaller than what is asked for
    "b/2.jpg": encoded("JPEG", (90, 60))[:-20],  # cut short
    "b/3.png": encoded("JPEG", (64, 64)),  # a JPEG by another name
}
"""In the order of their keys."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("image") / "source"
    for name, data in SOURCES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def samples(folder: Path) -> Iterator[tuple[str, bytes, Any]]:
    """Extension, image and parsed json of each stored sample, by tarfile or lmdb."""
    members: dict[str, bytes] = {}
    if (folder / "data.mdb").exists():
        with lmdb.open(str(folder), readonly=True, lock=False) as environment, environment.begin() as transaction:
            members = {bytes(key).decode(): bytes(value) for key, value in transaction.cursor()}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            members |= {each.name: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]
    for name, data in sorted(members.items()):
        key, _, ext = name.partition(".")
        if ext not in ("cls", "json"):
            yield ext, data, json.loads(members[f"{key}.json"])


@pytest.mark.parametrize(
    ("output", "way"), [("webdataset", "extension"), ("lmdb", "extension"), ("webdataset", "pillow")]
)
def test_resized(source: Path, tmp_path: Path, output: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "pillow":
        monkeypatch.setattr(rewrite, "_native", None)
        monkeypatch.setattr(check, "_native", None)
        monkeypatch.setenv("PYTHONPATH", str(without_extension(tmp_path)))
    elif rewrite._native is None:
        pytest.skip("the C extension is not built")
    result = convert(source, tmp_path / "out", output=output, image="resize:40", workers=1)
    # then all but the cut one are stored
    assert (result.stored, result.rejected) == (6, 1)
    assert (result.notes["resized"], result.notes["not_resized"]) == (5, 1)
    assert (result.notes["extension_differs"], result.notes["grayscale"]) == (1, 1)
    manifest = Manifest.load(tmp_path / "out")
    assert manifest.options["image"] == "resize:40@90"
    assert ("libjpeg" in manifest.options["image_encoder"]) == (way == "extension")
    # and each has the size worked out by hand, upright, as the index says too
    index = open_index(tmp_path / "out" / INDEX_NAME, fields=tuple(manifest.members), samples=6)
    expected = [(60, 40), (40, 60), (50, 40), (40, 60), (30, 20), (40, 40)]
    assert [(int(row["width"]), int(row["height"])) for row in index] == expected
    assert index["key"].tolist() == [0, 1, 2, 3, 4, 6]
    assert set(index["orientation"].tolist()) == {1}
    stored = list(samples(tmp_path / "out"))
    for (ext, data, _), size, row in zip(stored, expected, index, strict=True):
        with Image.open(io.BytesIO(data)) as image:
            assert (ext, image.format, image.size) == ("jpg", "JPEG", size)
            assert image.mode == ("L" if row["key"] == 2 else "RGB")
        assert (int(row["size_image"]), bytes(row["ext"])) == (len(data), b"jpg")
    assert stored[4][1] == SOURCES["b/1.jpg"]
    # by the decoder that this test is about
    assert stored[0][1] == to_resized(SOURCES["a/0.jpg"], side=40, quality=90, level="decode").data
    # and what was done stands in the json member
    assert stored[3][2] == {
        "class": "b",
        "path": "b/0.png",
        "image": {
            "option": "resize:40@90",
            "source": {
                "ext": "png",
                "bytes": len(SOURCES["b/0.png"]),
                "width": 80,
                "height": 120,
                "orientation": 1,
                "mode": "RGBA",
            },
        },
    }
    assert stored[1][2]["image"]["source"]["orientation"] == 6
    assert "image" not in stored[4][2]
    assert verify(tmp_path / "out", deep=True, workers=1).ok


def without_extension(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH in which a child process finds the extension broken."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['wellfed.pipeline.decode._jpeg'] = None\n")
    return folder


@needs_extension
def test_baseline(source: Path, tmp_path: Path) -> None:
    result = convert(source, tmp_path / "out", output="lmdb", image="baseline", workers=1)
    assert (result.stored, result.rejected, result.notes["made_baseline"]) == (6, 1, 2)
    stored = list(samples(tmp_path / "out"))
    originals = [data for name, data in SOURCES.items() if name != "b/2.jpg"]
    changed = [place for place, (_, data, _) in enumerate(stored) if data != originals[place]]
    assert changed == [0, 4]
    for place in changed:
        before, after = (Image.open(io.BytesIO(data)) for data in (originals[place], stored[place][1]))
        assert "progressive" in before.info
        assert "progressive" not in after.info
        assert np.array_equal(np.asarray(before), np.asarray(after))
        assert stored[place][2]["image"]["option"] == "baseline"
        assert stored[place][2]["image"]["source"]["bytes"] == len(originals[place])
    assert [place for place, each in enumerate(stored) if "image" in each[2]] == [0, 4]
    assert verify(tmp_path / "out", deep=True, workers=1).ok


def test_a_converted_dataset_is_resized_too(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "first", output="lmdb", workers=1)
    convert(tmp_path / "first", tmp_path / "second", output="webdataset", image="resize:40@70", workers=1)
    assert [each[1] for each in samples(tmp_path / "second")] == [
        to_resized(data, side=40, quality=70, level="decode").data
        for name, data in SOURCES.items()
        if name != "b/2.jpg"
    ]


def test_what_was_done_is_told_by_all_datasets_that_follow(source: Path, tmp_path: Path, digests: Digests) -> None:
    # given a dataset whose images were resized, and copies of copies of it
    for number, output in enumerate(("webdataset", "lmdb", "webdataset")):
        options: Any = {"output": output, "image": "keep" if number else "resize:40"}
        convert(tmp_path / str(number - 1) if number else source, tmp_path / str(number), workers=1, **options)
    # then the last one's shard is the first one's, and says the same of each image
    first, last = (digests(tmp_path / name)["data-000000.tar"] for name in "02")
    assert first == last
    assert [("image" in document) for _, _, document in samples(tmp_path / "1")] == [True] * 4 + [False, True]
    # when a copy is made smaller, then both changes are told, in turn
    convert(tmp_path / "2", tmp_path / "small", output="lmdb", image="resize:16@80", workers=1)
    before = [document for _, _, document in samples(tmp_path / "2")]
    for (_, data, document), earlier in zip(samples(tmp_path / "small"), before, strict=True):
        told = document["image"]
        assert told["option"] == "resize:16@80"
        assert told["source"].get("image") == earlier.get("image")
        with Image.open(io.BytesIO(data)) as image:
            assert min(image.size) == 16
    assert told["source"]["ext"] == "jpg"
    assert told["source"]["image"]["option"] == "resize:40@90"
    assert (told["source"]["width"], told["source"]["height"]) == (40, 40)
    # and where it is small enough, what was told stays
    convert(tmp_path / "2", tmp_path / "same", output="lmdb", image="resize:64", workers=1)
    assert [document for _, _, document in samples(tmp_path / "same")] == before


@pytest.mark.parametrize("text", [b'{"image": 7}', b"[]", b"{"])
def test_a_json_member_that_cannot_hold_what_was_done(source: Path, tmp_path: Path, text: bytes) -> None:
    # given a resized dataset with another first json member, and the hash that fits it
    convert(source, tmp_path / "first", output="webdataset", image="resize:40", workers=1)
    index = np.lib.format.open_memmap(tmp_path / "first" / INDEX_NAME, mode="r+")
    start, size = int(index["offset_json"][0]), int(index["size_json"][0])
    with open(tmp_path / "first" / "data-000000.tar", "r+b") as file:
        file.seek(start)
        file.write(text.ljust(size))
    index["xxh3_json"][0] = xxhash.xxh3_64_intdigest(text.ljust(size))
    index.flush()
    # when it is converted, then that sample is rejected, and none is stored without its history
    result = convert(tmp_path / "first", tmp_path / "second", output="lmdb", workers=1)
    assert (result.stored, result.rejected) == (5, 2)
    assert "its json must be an object" in (tmp_path / "second" / "rejects.jsonl").read_text()


def test_equal_runs_give_equal_bytes_and_repair_makes_them_again(
    source: Path, tmp_path: Path, digests: Digests
) -> None:
    options: Any = {"output": "webdataset", "image": "resize:33@75", "shard_samples": 2}
    convert(source, tmp_path / "one", workers=1, **options)
    convert(source, tmp_path / "two", workers=2, **options)
    before = digests(tmp_path / "one")
    assert digests(tmp_path / "two") == before
    damaged = tmp_path / "one" / "data-000001.tar"
    data = bytearray(damaged.read_bytes())
    data[700] ^= 1
    damaged.write_bytes(data)
    problems = verify(tmp_path / "one", workers=1).problems
    assert repair(tmp_path / "one", problems, source=str(source), workers=1) == ("data-000001.tar",)
    assert digests(tmp_path / "one") == before


def test_repair_by_another_encoder_is_refused(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out", output="webdataset", image="resize:33", workers=1)
    manifest = json.loads((tmp_path / "out" / "wellfed.json").read_bytes())
    manifest["options"]["image_encoder"] = "Pillow 1.0"
    (tmp_path / "out" / "wellfed.json").write_text(json.dumps(manifest))
    (tmp_path / "out" / "data-000000.tar").unlink()
    problems = verify(tmp_path / "out", workers=1).problems
    with pytest.raises(DamagedDatasetError, match=r"Pillow 1\.0"):
        repair(tmp_path / "out", problems, source=str(source), workers=1)


def test_an_unfinished_conversion_continues_with_its_own_option_only(source: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="may be rejected"):
        convert(source, tmp_path / "out", output="webdataset", image="resize:40", max_rejects=0, workers=1)
    for image in ("keep", "resize:41", "resize:40@91"):
        with pytest.raises(UsageError, match="its own options"):
            convert(source, tmp_path / "out", output="webdataset", image=image, workers=1)
    assert convert(source, tmp_path / "out", output="webdataset", image="resize:40@90", workers=1).stored == 6


def test_shards_are_planned_by_the_size_that_images_will_have(source: Path) -> None:
    request = Request(src=source, dst=source.parent / "out", output="webdataset", image="resize:40")
    listed = list_input(str(source), request.input)
    sizes = np.array([len(data) for data in SOURCES.values()])
    # 40 x 40 x 4/3 pixels of half a byte are 1066 bytes; what is smaller stays as it is
    (selection,) = select(listed, SelectionOptions()).values()
    assert planned_sizes(listed, selection, ImageOption.parse("resize:40")).tolist() == np.minimum(sizes, 1066).tolist()
    assert planned_sizes(listed, selection, ImageOption.parse("keep")).tolist() == sizes.tolist()


def test_a_dry_run_judges_by_what_images_become(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (400, 400, 3)).astype(np.uint8)
    (tmp_path / "source" / "a").mkdir(parents=True)
    for number in range(4):
        Image.fromarray(noise).save(tmp_path / "source" / "a" / f"{number}.png")
    request = Request(src=tmp_path / "source", dst=tmp_path / "out", output="webdataset", workers=1)
    whole = preview(request).bytes
    small = preview(replace(request, image="resize:100")).bytes
    result = convert(tmp_path / "source", tmp_path / "out", output="webdataset", image="resize:100", workers=1)
    assert 0.5 * result.bytes < small - (1 << 20) * small / whole < small < whole / 10 + (1 << 21)
    assert result.bytes < small


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "resize",
        "resize:",
        "resize:0",
        "resize:15",
        "resize:8193",
        "resize:64@0",
        "resize:64@101",
        "resize:-64",
    ],
)
def test_other_options_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="keep, baseline or resize:N@QUALITY"):
        ImageOption.parse(text)


def test_options_have_one_spelling() -> None:
    assert [str(ImageOption.parse(text)) for text in ("keep", "resize:256", "resize:0256@07")] == [
        "keep",
        "resize:256@90",
        "resize:256@7",
    ]


def test_baseline_without_the_extension_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "_native", None)
    monkeypatch.setattr(check, "_native", None)
    with pytest.raises(UsageError, match="C extension"):
        ImageOption.parse("baseline")


def test_the_command(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["convert", str(source), str(tmp_path / "out"), "--format", "webdataset", "--workers", "1", "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--image", "resize:40@80", "--split", "train=0.5,val=0.5"])
    assert (ended.value.code, json.loads(capsys.readouterr().out)["notes"]["resized"]) == (3, 5)
    options = [Manifest.load(tmp_path / "out" / part).options["image"] for part in ("train", "val")]
    assert options == ["resize:40@80", "resize:40@80"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--image", "resize:big", "--overwrite"])
    assert ended.value.code == 2
