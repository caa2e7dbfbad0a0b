"""Several GPUs: what communication and the loader take of their scaling, and one whole run on simulated devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wellfed.pipeline.config import LoaderSettings

REPOSITORY = Path(__file__).resolve().parents[2]


def window(speed: float, *utils: float | None) -> dict[str, Any]:
    return {"samples_per_second": speed, "ranks": [{"rank": n, "util_percent": util} for n, util in enumerate(utils)]}


def run(ceilings: list[float], fed: list[float], utils: list[float | None], **device: Any) -> dict[str, Any]:
    return {
        "world_size": len(utils),
        "settings": LoaderSettings(batch_size=256).to_dict(),
        "device": {"simulated": False, **device},
        "ceiling": [window(speed, *utils) for speed in ceilings],
        "fed": [window(speed, *utils) for speed in fed],
    }


def test_scaling_is_communication_times_the_loaders_part(load: Any) -> None:
    summary = load("ranks.summary")
    one = run([1000.0] * 5, [990.0] * 5, [95.0])
    many = run([900.0] * 5, [873.0] * 5, [90.0, 88.0])

    found = summary.summarize(many, one)

    # each of two GPUs keeps 0.9 of its speed beside the other, and 0.97 of that when fed: 2 x 873 samples/s
    assert (found["communication"], found["loader"]["median"], found["scaling"]) == (0.9, 0.97, 0.873)
    assert found["samples_per_second"] == 1746.0
    assert found["util_percent"] == [90.0, 88.0]
    assert (found["verdict"], found.get("why"), found.get("missed")) == ("reached", None, None)
    assert "| 2 | 256 | 1,746 | 0.900 | 0.970 (0.970 to 0.970) | 0.873 | 90%, 88% | reached |" in summary.table([found])


@pytest.mark.parametrize(
    ("many", "verdict", "why"),
    [
        (run([900.0] * 5, [810.0] * 5, [90.0, 88.0]), "missed", ["fed ratio 0.900 below 0.95"]),
        (run([900.0] * 5, [890.0] * 5, [90.0, 70.0]), "missed", ["utilization of rank 1 70%"]),
        (run([900.0] * 5, [890.0] * 5, [None, 90.0]), "missed", ["utilization of rank 0 not measured"]),
        (run([900.0] * 4, [890.0] * 4, [90.0, 90.0]), "not a result", "fewer than 5 rounds"),
        (run([900.0] * 5, [890.0] * 5, [90.0, 90.0], simulated=True), "not a result", "the device is simulated"),
    ],
)
def test_what_was_missed_and_what_is_no_result_is_said(load: Any, many: dict[str, Any], verdict: str, why: Any) -> None:
    found = load("ranks.summary").summarize(many, run([1000.0] * 5, [990.0] * 5, [95.0]))
    assert found["verdict"] == verdict
    assert (found.get("why") or found.get("missed")) == why


@pytest.mark.long
def test_two_simulated_devices_are_tuned_measured_and_told_apart(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    draw = np.random.default_rng(0)
    for number in range(24):
        pixels = draw.integers(0, 255, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / "cat" / f"{number}.jpg")
    paths = os.pathsep.join([str(REPOSITORY / ".typing"), str(REPOSITORY)])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.ranks", "--data", "photos", "--output", "out.json", "--gpus", "2"),
            *("--device", "simulated", "--image-size", "32", "--batch-sizes", "8", "--budget", "6s", "--hold", "1s"),
            *("--rounds", "2", "--seconds", "0.3"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "out.json").read_text("utf-8"))["runs"]
    assert (found["many"]["world_size"], found["one"]["world_size"]) == (2, 1)
    assert found["tune"]["ranks"]["world_size"] == 2
    for name in ("ceiling", "fed"):
        assert [[rank["rank"] for rank in each["ranks"]] for each in found["many"][name]] == [[0, 1]] * 2
    summary = found["summary"]
    assert (summary["verdict"], summary["why"]) == ("not a result", "the device is simulated")
    assert "the device is simulated |" in done.stdout
