"""The tuning scripts of examples/: each is started as a user does, tunes once, and trains with what it found."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.mark.long
@pytest.mark.parametrize("name", ["torch", "lightning", "accelerate"])
def test_an_example_tunes_once_and_trains_with_it(name: str, run_example: Callable[..., str], tmp_path: Path) -> None:
    if name != "torch" and util.find_spec(name) is None:
        pytest.skip(f"needs {name} (pip install 'wellfed[dev]')")
    random = np.random.default_rng(1)
    for number in range(9):
        folder = tmp_path / "pictures" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (48, 64, 3), dtype=np.uint8)).save(folder / f"{number}.jpg")
    options = ["--image-size", "32", "--batch-sizes", "2", "--budget", "3s", "--hold", "1s"]

    def run() -> str:
        return run_example(f"{name}_tuning.py", "pictures", "--device", "simulated", *options)

    # when it runs for the first time, then it tunes for its own step, in batches of two, and trains
    first = run()
    assert "last loss: " in first
    tuned = json.loads((tmp_path / "tuned.json").read_text())
    assert (tuned["step"]["name"], tuned["settings"]["batch_size"]) == (f"{name}_tuning:build_step", 2)
    # when it runs again, then it only trains
    written = (tmp_path / "tuned.json").stat().st_mtime_ns
    assert "last loss: " in run()
    assert (tmp_path / "tuned.json").stat().st_mtime_ns == written


def test_the_examples_are_in_the_list(repository: Path) -> None:
    text = (repository / "examples" / "README.md").read_text("utf-8")
    for path in (repository / "examples").glob("*_tuning.py"):
        assert f"({path.name})" in text
