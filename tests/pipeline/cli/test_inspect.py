from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

from wellfed.pipeline.cli.inspect import inspect
from wellfed.pipeline.errors import DamagedDatasetError, UsageError
from wellfed.pipeline.formats import index_dtype


def _inspect(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    app = typer.Typer()
    app.command()(inspect)
    app(list(arguments), standalone_mode=False)
    return capsys.readouterr().out


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    """A dataset by hand: three images, one of them grayscale and turned, in two classes of three."""
    shard = b"\0" * 5000
    (tmp_path / "x-000000.tar").write_bytes(shard)
    rows = np.zeros(3, dtype=index_dtype(["image"]))
    rows["key"] = [0, 2, 3]
    rows["label"] = [0, 2, 2]
    rows["width"] = [100, 300, 500]
    rows["height"] = [50, 60, 100]
    rows["orientation"] = [1, 1, 6]
    rows["mode"] = [6, 6, 2]
    rows["ext"] = ["jpg", "jpg", "png"]
    rows["size_image"] = [1000, 2000, 1500]
    np.save(tmp_path / "wellfed.index.npy", rows)
    manifest = {
        "schema": "wellfed-dataset",
        "schema_version": 1,
        "kind": "webdataset",
        "samples": 3,
        "class_names": ["ant", "bee\n\udcff", "cow"],
        "fields": ["image"],
        "shards": [
            {"name": "x-000000.tar", "samples": 3, "size": 5000, "sha256": hashlib.sha256(shard).hexdigest()},
        ],
        "files": {},
        "options": {"image": "keep"},
        "source": {"kind": "folder", "name": "x", "found": 4, "rejected": 1, "skipped": {"hidden": 2}},
        "notes": {"grayscale": 1},
        "tool_version": "0.1.0",
    }
    (tmp_path / "wellfed.json").write_text(json.dumps(manifest))
    return tmp_path


def test_json_is_one_document_with_every_count(converted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads(_inspect(capsys, str(converted), "--json"))
    assert (summary["kind"], summary["samples"], summary["rejected"]) == ("webdataset", 3, 1)
    assert summary["location"] == str(converted)
    assert summary["classes"] == [
        {"name": "ant", "samples": 1},
        {"name": "bee\n\udcff", "samples": 0},
        {"name": "cow", "samples": 2},
    ]
    assert summary["image_bytes"] == {"total": 4500, "min": 1000, "mean": 1500.0, "median": 1500.0, "max": 2000}
    assert summary["width"] == {"min": 100, "mean": 300.0, "median": 300.0, "max": 500}
    assert summary["height"] == {"min": 50, "mean": 70.0, "median": 60.0, "max": 100}
    assert summary["modes"] == {"RGB": 2, "L": 1}
    assert summary["orientations"] == {"1": 2, "6": 1}
    assert summary["extensions"] == {"jpg": 2, "png": 1}
    assert summary["notes"] == {"grayscale": 1}
    assert summary["skipped"] == {"hidden": 2}
    assert summary["shards"][0]["size"] == 5000
    assert summary["not_measured"] is None
    assert len(summary["fingerprint"]) == 64


def test_text_shows_the_same_and_no_raw_control_characters(converted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _inspect(capsys, str(converted))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == f"{converted}: webdataset, 3 samples in 3 classes, 4.5 kB of images"
    assert "image bytes  1.0 kB to 2.0 kB, mean 1.5 kB, median 1.5 kB" in lines
    assert "width        100 to 500 pixels, mean 300, median 300" in lines
    assert "modes        RGB 2, L 1" in lines
    assert "rejected     1" in lines
    assert "skipped      hidden 2" in lines
    assert "shards       1, 5.0 kB; fields image" in lines
    assert r"          0  bee\n\xff" in lines
    text.encode("utf-8")


def test_a_folder_says_what_was_not_measured_and_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in (("a/y.JPEG", b"12345"), ("b/empty.jpg", b""), ("b/.hidden", b"1")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    Image.new("RGB", (4, 4)).save(tmp_path / "a" / "x.jpg")
    summary = json.loads(_inspect(capsys, str(tmp_path), "--json"))
    assert (summary["kind"], summary["samples"], summary["rejected"]) == ("folder", 2, 1)
    assert summary["skipped"] == {"hidden": 1}
    assert summary["width"] is summary["height"] is summary["modes"] is None
    assert "headers are not read" in summary["not_measured"]
    assert summary["extensions"] == {"jpeg": 1, "jpg": 1}
    assert "not measured" in _inspect(capsys, str(tmp_path))


def test_many_classes_are_cut_in_the_text_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(25):
        (tmp_path / f"{number:02d}").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "00" / "x.jpg")
    assert "and 5 more" in _inspect(capsys, str(tmp_path))
    assert len(json.loads(_inspect(capsys, str(tmp_path), "--json"))["classes"]) == 25


def test_a_dataset_of_no_samples_is_shown(converted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(converted / "wellfed.index.npy", np.zeros(0, dtype=index_dtype(["image"])))
    manifest = json.loads((converted / "wellfed.json").read_text())
    manifest.update(samples=0, shards=[])
    (converted / "wellfed.json").write_text(json.dumps(manifest))
    assert "0 samples in 3 classes" in _inspect(capsys, str(converted))
    assert json.loads(_inspect(capsys, str(converted), "--json"))["image_bytes"] == {"total": 0}


def test_errors_pass_through_to_the_command_line(converted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="must exist"):
        _inspect(capsys, str(converted / "nowhere"))
    os.truncate(converted / "wellfed.index.npy", 100)
    with pytest.raises(DamagedDatasetError, match=r"wellfed\.index\.npy"):
        _inspect(capsys, str(converted))


def test_a_folder_without_an_image_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("text")
    (tmp_path / "notes" / "b.jpg").write_text("text as well")
    with pytest.raises(UsageError, match=r"must hold images; got 2 files, none of them an image; the first is notes/a"):
        _inspect(capsys, str(tmp_path))
    Image.new("RGB", (4, 4)).save(tmp_path / "notes" / "c.jpg")
    assert "3 samples" in _inspect(capsys, str(tmp_path))
