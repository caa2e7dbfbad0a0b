"""The benchmarks run: a tiny round gives every value that the document promises; its figures mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Of one round of 50 made images through the rows that start fast."""
    folder = tmp_path_factory.mktemp("conversion")
    photos = folder / "photos"
    photos.mkdir()
    from wellfed.pipeline.demo.photolike import make_photolike

    make_photolike(photos, count=4, classes=2)
    names = ["wellfed webdataset header", "wellfed lmdb header", "wellfed webdataset decode"]
    names += ["wellfed webdataset resize:256", "webdataset ShardWriter"]
    subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.conversion", "--output", str(folder / "out.json")),
            *("--photos", str(photos), "--images", "50", "--rounds", "1", "--work", str(folder), "--rows", *names),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True,
        timeout=800,
    )
    assert sorted(path.name for path in folder.iterdir()) == ["out.json", "photos"]
    return json.loads((folder / "out.json").read_text())


ROWS = {
    "tar": None,
    "wellfed webdataset header": "tar",
    "webdataset ShardWriter": None,
    "lmdb put": None,
    "wellfed lmdb header": "lmdb put",
    "decode alone": None,
    "wellfed webdataset decode": "decode alone",
    "resize alone": None,
    "wellfed webdataset resize:256": "resize alone",
}


@pytest.mark.long
@pytest.mark.timeout(850)
def test_every_row_has_its_raw_value_and_its_ratio_to_its_peer(document: dict) -> None:
    assert {name: row["peer"] for name, row in document["rows"].items()} == ROWS
    for name, row in document["rows"].items():
        (value,) = row["values"]
        assert value["seconds"] > 0
        if "images" in value:
            assert value["images_per_second"] == pytest.approx(50 / value["seconds"], rel=1e-3)
        if ROWS[name] is not None:
            (other,) = document["rows"][ROWS[name]]["values"]
            ratio = value["images_per_second"] / other["images_per_second"]
            assert document["summary"][name]["ratio"] == pytest.approx(ratio, abs=1e-3)
    assert document["sets"]["full"]["images"] == 50


def test_ratios_are_paired_by_round_and_leave_out_each_sides_start() -> None:
    # given 100 images in 2.0 and 4.0 s, of which 1 s is the start, against 1.0 and 4.0 s without any
    def row(peer: str | None, start: float, *seconds: float) -> dict:
        values = [
            {
                "images": 100,
                "seconds": each,
                "images_per_second": 100 / each,
                "user_seconds": 0.5,
                "system_seconds": 0.5,
            }
            for each in seconds
        ]
        return {"peer": peer, "wanted": 0.8, "start_up": [start], "values": values}

    code = (
        "import json, sys; from benchmarks.conversion.summary import summarize; "
        "print(json.dumps(summarize(json.load(sys.stdin))))"
    )
    rows = {"peer": row(None, 0.0, 1.0, 4.0), "own": row("peer", 1.0, 2.0, 4.0)}
    # when they are summed up
    printed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        input=json.dumps(rows),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    # then the ratios are the means of 0.5 and 1.0, and of (1.0 s against 1.0) 1.0 and (4.0 against 3.0) 1.333
    own = json.loads(printed)["own"]
    assert (own["ratio"], own["ratio_lowest"], own["ratio_highest"]) == (0.75, 0.5, 1.0)
    assert own["ratio_without_start_up"] == 1.167
    assert own["cpu_seconds_per_10000"] == 100.0
