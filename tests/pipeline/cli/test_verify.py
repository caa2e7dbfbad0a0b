"""`wellfed verify` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from wellfed.converters import convert
from wellfed.pipeline.cli.main import main


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for number in range(3):
        Image.effect_noise((40, 30), 50).save(tmp_path / "photos" / "cat" / f"{number}.jpg")
    convert(tmp_path / "photos", tmp_path / "out", output="webdataset", workers=1)
    return tmp_path / "out"


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_whole_dataset_ends_with_0(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", dataset, "--deep") == 0
    assert "3 of 3 samples compared and decoded (webdataset), no damage" in capsys.readouterr().out


def test_damage_ends_with_3_and_is_named(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray((dataset / "data-000000.tar").read_bytes())
    data[600] ^= 1
    (dataset / "data-000000.tar").write_bytes(data)
    assert run("verify", dataset) == 3
    out = capsys.readouterr().out
    assert "damaged: data-000000.tar: its SHA-256 is not the manifest's" in out
    assert "damaged: data-000000.tar, sample 0000000000: the bytes of its image are not those that were written" in out
    assert run("verify", dataset, "--json") == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["ok"], len(document["problems"])) == ("wellfed-verification", False, 2)


def test_no_dataset_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", tmp_path) == 2
    assert "wellfed.json" in capsys.readouterr().err
