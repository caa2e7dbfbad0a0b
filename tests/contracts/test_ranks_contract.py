"""What the loader must keep under torchrun, with 2 and 3 real gloo ranks: shares, steps, resumed runs and errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

SCRIPT = Path(__file__).with_name("several_ranks.py")
BATCH = 4


def torchrun(
    ranks: int, *arguments: object, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # Its time limit only keeps a run that hangs from holding up the tests.
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        + [str(argument) for argument in (SCRIPT, *arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of 100, 101 and 1 tiny images."""
    root = tmp_path_factory.mktemp("ranks")
    for count in (100, 101, 1):
        (root / str(count) / "any").mkdir(parents=True)
        for number in range(count):
            pixels = np.full((8, 8, 3), number, dtype=np.uint8)
            Image.fromarray(pixels).save(root / str(count) / "any" / f"{number:03d}.jpg")
    return root


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each of 2, and of 3, ranks saw in `tails`."""
    out = tmp_path_factory.mktemp("tails") / "out.json"
    done = torchrun(request.param, "tails", root, out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert len(found) == request.param
    return found


CASES = [
    (count, tail, backend)
    for count in (100, 101, 1)
    for tail in ("drop", "pad", "partial")
    for backend in (("threads", "processes", "dali") if (count, tail) == (101, "pad") else ("threads",))
]


@pytest.mark.parametrize(("count", "tail", "backend"), CASES)
def test_real_ranks_share_each_epoch_as_the_tail_says(ranks: Any, count: int, tail: str, backend: str) -> None:
    if backend == "dali":
        pytest.importorskip("nvidia.dali", reason="needs DALI (pip install 'wellfed[dali]')")
    shares = [rank[f"{count} {tail} {backend}"] for rank in ranks]
    if (count, tail) == (1, "drop"):
        assert len({share.get("error") for share in shares}) == 1
        assert shares[0]["error"] in ("UsageError", "ConfigError")
        return
    for epoch in range(2):
        batches = [share["epochs"][epoch] for share in shares]
        assert [len(steps) for steps in batches] == [share["len"] for share in shares]
        samples = [pair for steps in batches for step in steps for pair in step]
        once = Counter(index for index, valid in samples if valid)
        assert max(once.values()) == 1
        if tail == "drop":
            assert len(once) == count // (BATCH * len(ranks)) * BATCH * len(ranks)
        else:
            assert set(once) == set(range(count))
        if tail != "pad":
            assert all(valid for _, valid in samples)
        if tail != "partial":
            assert len({len(steps) for steps in batches}) == 1
            assert {len(step) for steps in batches for step in steps} == {BATCH}
    first, second = ([share["epochs"][epoch] for share in shares] for epoch in range(2))
    assert count == 1 or first != second


def test_a_state_goes_from_two_ranks_to_three_to_one(root: Path, tmp_path: Path) -> None:
    state, taken = tmp_path / "state.json", []
    for world, position in ((2, 3 * 2 * BATCH), (3, 3 * (2 + 3) * BATCH), (1, 3 * (2 + 3 + 1) * BATCH)):
        out = tmp_path / f"{world}.json"
        done = torchrun(world, "resume", root, out, state)
        assert done.returncode == 0, done.stderr
        found = json.loads(out.read_text())
        assert len(found) == world
        assert all(rank["state"] == found[0]["state"] for rank in found)
        assert found[0]["state"]["position"] == position
        state.write_text(json.dumps(found[0]["state"]))
        kept = 3 if world > 1 else None
        taken += [index for rank in found for step in rank["steps"][:kept] for index, _ in step]
    assert sorted(taken) == list(range(101))


def test_one_rank_that_raises_ends_all(root: Path, tmp_path: Path) -> None:
    mark = f"WELLFED_TEST_RANKS={uuid.uuid4().hex}"
    done = torchrun(2, "fail", root, tmp_path / "out.json", environment=dict([mark.split("=")]))
    assert done.returncode != 0
    assert "rank 1 raises in its step" in done.stderr
    assert "AssertionError" not in done.stderr
    for _ in range(300):  # The kernel takes a moment to end what was killed.
        left = started_with(mark)
        if not left:
            break
        time.sleep(0.1)
    assert left == []


def test_a_process_that_is_left_would_be_noticed() -> None:
    mark = f"WELLFED_TEST_RANKS={uuid.uuid4().hex}"
    environment = {**os.environ, **dict([mark.split("=")])}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as process:
        assert started_with(mark) == [process.pid]


def started_with(mark: str) -> list[int]:
    """The processes, torchrun's and all below it, that were started with this in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # It ended meanwhile, or is another user's.
    return found
