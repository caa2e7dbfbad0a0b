"""The example of several ranks, under torchrun with two gloo ranks: it trains, and one report tells of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wellfed.pipeline.report import render_ranks_html

# Two ranks exchange the gradients of ResNet-18 in half a second on two cores. And the batches of rank 1 come late.
SMALL = """
import functools, os, time
import ddp_monitoring
from torch.nn import Conv2d, Flatten, Linear, Sequential
def small(num_classes):
    return Sequential(Conv2d(3, 8, 8, stride=8), Flatten(), Linear(128, num_classes))
def late(batch):
    time.sleep(0.1 * int(os.environ["RANK"]))
    return batch
ddp_monitoring.resnet18 = small
ddp_monitoring.DataLoader = functools.partial(ddp_monitoring.DataLoader, batch_transform=late)
ddp_monitoring.main()
"""


def test_two_ranks_train_and_write_one_report(repository: Path, tmp_path: Path) -> None:
    # given 45 pictures in 2 classes: with batches of 2 and padding, 12 steps of each of 2 ranks an epoch
    random = np.random.default_rng(1)
    for number in range(45):
        folder = tmp_path / "pictures" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (48, 64, 3), dtype=np.uint8)).save(folder / f"{number}.jpg")

    (tmp_path / "small.py").write_text(SMALL)

    command = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 small.py"
    options = "pictures --directory report --batch-size 2 --image-size 32 --steps 2 --epochs 3"
    paths = [str(repository / ".typing"), str(repository / "examples")]
    done = subprocess.run(
        [*command.split(), *options.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report" / "ranks.json").read_text())
    assert (report["world_size"], report["machines"]) == (2, 1)
    for number, rank in enumerate(report["ranks"]):
        assert (rank["rank"], rank["local_rank"], rank["device"]["id"]) == (number, number, "cpu")
        # three of the 12 steps of an epoch warm up
        assert [window["steps"] for window in rank["windows"]["fed"]] == [9] * 3
        assert [window["samples"] for window in rank["windows"]["fed"]] == [18] * 3
        assert [window["steps"] for window in rank["windows"]["own"]] == [2] * 3
        assert [window["steps"] for window in rank["windows"]["ceiling"]] == [2]
    # 27 steps of each, and three windows, are enough to judge both
    assert report["not_judged"] == {"loading": None, "step": None}
    scaling = report["scaling"]
    assert scaling["efficiency"] == pytest.approx(scaling["communication"] * scaling["loader"])
    # and rank 1 is the one that is waited for
    (straggler,) = [one for one in report["stragglers"] if one["kind"] == "loading"]
    assert straggler["rank"] == 1
    assert "rank 1 on cpu straggles in loading: " in done.stdout
    assert done.stdout.count("rank 0 on cpu: ") == done.stdout.count("rank 1 on cpu: ") == 1
    assert (tmp_path / "report" / "ranks.html").read_text() == render_ranks_html(report)


def test_the_example_is_in_the_list(repository: Path) -> None:
    assert "(ddp_monitoring.py)" in (repository / "examples" / "README.md").read_text("utf-8")
