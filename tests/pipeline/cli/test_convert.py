"""`wellfed convert` as a user runs it: exit codes, one JSON document, errors without a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from wellfed.pipeline.cli.main import main
from wellfed.pipeline.errors import UsageError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            Image.effect_noise((40, 30), 50).save(tmp_path / "photos" / name / f"{number}.jpg")
    return tmp_path / "photos"


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_convert_says_what_it_did(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("convert", photos, tmp_path / "out", "--format", "webdataset", "--workers", 1) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("6 samples stored, 0 rejected, of 6 found: 1 webdataset shard(s), ")
    assert "packing" in captured.err


def test_json_is_one_document(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("convert", photos, tmp_path / "out", "--format", "lmdb", "--workers", 1, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "wellfed-conversion"
    assert {name: document[name] for name in ("kind", "stored", "rejected", "found", "shards", "workers")} == {
        "kind": "lmdb",
        "stored": 6,
        "rejected": 0,
        "found": 6,
        "shards": 1,
        "workers": 1,
    }


def test_rejects_end_with_3_and_are_pointed_to(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "cat" / "0.jpg").write_bytes(b"")
    assert run("convert", photos, tmp_path / "out", "--format", "webdataset", "--workers", 1) == 3
    out = capsys.readouterr().out
    assert "5 samples stored, 1 rejected, of 6 found" in out
    assert str(tmp_path / "out" / "rejects.jsonl") in out


def test_on_error_fail_ends_with_1(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "cat" / "0.jpg").write_bytes(b"text")
    assert run("convert", photos, tmp_path / "out", "--format", "webdataset", "--on-error", "fail") == 1
    assert "'cat/0.jpg'" in capsys.readouterr().err


def test_dry_run_writes_nothing(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("convert", photos, tmp_path / "out", "--format", "webdataset", "--shard-size", "1B", "--dry-run") == 0
    assert "6 samples of 2 classes into 6 webdataset shard(s) of " in (said := capsys.readouterr().out)
    assert "MB of disk while converting" in said
    assert run("convert", photos, tmp_path / "out", "--format", "lmdb", "--dry-run", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["found"], document["shards"]) == ("wellfed-conversion-plan", 6, 1)
    assert 0 < document["result_bytes"] < document["bytes"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "webdataset", "--shard-size", "lots"], "--shard-size must be a positive size"),
        (["--format", "webdataset", "--shard-size", "0MB"], "--shard-size must be a positive size"),
        (["--format", "webdataset", "--workers", "0"], "--workers must be auto or a whole number"),
        (["--format", "webdataset", "--workers", "many"], "--workers must be auto or a whole number"),
        (["--format", "zarr"], "zarr"),
        ([], "--format"),
    ],
)
def test_wrong_usage_ends_with_2_and_writes_nothing(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run("convert", photos, tmp_path / "out", *arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_bad_paths_end_with_2(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for source, destination, words in (
        (tmp_path / "missing", tmp_path / "out", "the folder must exist"),
        (photos, tmp_path / "mine", "thesis.txt"),
        (photos, photos / "out", "inside each other"),
    ):
        assert run("convert", source, destination, "--format", "webdataset") == 2
        assert words in capsys.readouterr().err


def test_overwrite(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("convert", photos, tmp_path / "out", "--format", "webdataset", "--workers", 1)
    assert run(*command) == 0
    assert run(*command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run(*command, "--overwrite") == 0


def test_sizes_have_decimal_and_binary_units() -> None:
    from wellfed.pipeline.cli._values import parse_bytes

    written = ("256MB", "1GiB", "1.5 kb", "1000", "2tb")
    assert [parse_bytes(text, option="x") for text in written] == [256_000_000, 1 << 30, 1500, 1000, 2 * 10**12]


@pytest.mark.parametrize("text", ["9" * 400, "9" * 400 + "TiB", "0.9B", "0", "-1MB", "256 MB/s", "\u00b2MB", ""])
def test_what_is_no_size_is_refused(text: str) -> None:
    from wellfed.pipeline.cli._values import parse_bytes

    with pytest.raises(UsageError, match="--shard-size must be a positive size"):
        parse_bytes(text, option="--shard-size")
