"""The GPU's resize against Pillow's, run by Triton's interpreter where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from wellfed.pipeline.loader import resample as module
from wellfed.pipeline.loader.resample import why_not

kernels = pytest.importorskip("wellfed.pipeline.loader.resample_kernels", reason="triton is not installed")

AGAINST_PILLOW = """
import json, sys
import numpy as np
import torch
from PIL import Image
from wellfed.pipeline.loader import resample as module
from wellfed.pipeline.loader.resample import Stored, resample

device, scratch = torch.device(sys.argv[1]), int(sys.argv[2])
module.SCRATCH_BYTES = scratch
SIZE = 20
random = np.random.default_rng(0)
sizes = [(40, 30), (7, 5), (100, 61), (20, 20), (1, 1), (33, 200), (200, 3), (21, 19)]
pictures, expected, addresses, strides, mirrored, upended = [], [], [], [], [], []
for number, (width, height) in enumerate(sizes):
    pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    wanted = np.asarray(Image.fromarray(pixels).resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    mirrored.append(bool(number & 1))
    upended.append(bool(number & 2))
    wanted = wanted[:, ::-1] if mirrored[-1] else wanted
    expected.append(wanted[::-1] if upended[-1] else wanted)
    rows_first = torch.from_numpy(pixels if number % 3 else pixels.transpose(2, 0, 1).copy()).to(device)
    pictures.append(rows_first)
    addresses.append(rows_first.data_ptr())
    strides.append((3 * width, 3, 1) if number % 3 else (width, 1, width * height))
out = torch.zeros((len(sizes), SIZE, SIZE, 3), dtype=torch.uint8, device=device)
resample(
    Stored(
        addresses=np.array(addresses),
        sizes=np.array(sizes),
        strides=np.array(strides),
        mirrored=np.array(mirrored),
        upended=np.array(upended),
    ),
    out,
)
found = out.cpu().numpy().astype(int)
print(json.dumps([int(np.abs(one - other).max()) for one, other in zip(found, expected)]))
"""


def differences(device: str, scratch: int, repository: Path, *, interpreted: bool) -> list[int]:
    environment = {**os.environ, "PYTHONPATH": str(repository / ".typing")}
    if interpreted:
        environment["TRITON_INTERPRET"] = "1"
    ended = subprocess.run(
        [sys.executable, "-c", AGAINST_PILLOW, device, str(scratch)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: list[int] = json.loads(ended.stdout)
    return found


# 60 bytes for each row of a crop: the smaller scratch takes each crop alone.
# Not every Triton's interpreter works with every NumPy; where a GPU is, the test below says more.
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs them itself")
@pytest.mark.parametrize("scratch", [100, 1 << 20])
def test_pictures_are_pillows_within_one_level(scratch: int, repository: Path) -> None:
    # Weights are of 32 bits here and of 22 there, so a value may round the other way.
    found = differences("cpu", scratch, repository, interpreted=True)
    assert len(found) == 8
    assert max(found) <= 1


def test_the_kernels_compile_for_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Triton's interpreter takes Python that its compiler refuses; compiling needs no GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tables = {"table": "*i64", "scratch": "*u8"}
    for kernel, signature in (
        (kernels.across, {**tables, "size": "i32", "rows_at_once": "constexpr", "block": "constexpr"}),
        (kernels.down, {**tables, "out": "*u8", "size": "i32", "lines_at_once": "constexpr", "block": "constexpr"}),
    ):
        constants = {name: 8 if "at_once" in name else 256 for name, kind in signature.items() if kind == "constexpr"}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        assert "cubin" in compile(source, target=GPUTarget("cuda", 90, 32)).asm


@pytest.mark.gpu
def test_pictures_are_pillows_within_one_level_on_a_gpu(repository: Path) -> None:
    assert why_not(torch.device("cuda", 0)) is None
    assert max(differences("cuda", 1 << 20, repository, interpreted=False)) <= 1


def test_runs_fit_into_the_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCRATCH_BYTES", 10)
    assert module._parts(np.array([4, 6, 1, 20, 3, 3])) == [(0, 2), (2, 3), (3, 4), (4, 6)]


def test_where_it_does_not_work_the_reason_is_said() -> None:
    # Compiled kernels take no memory of the CPU, and Triton says so in words of its own.
    reason = why_not(torch.device("cpu"))
    assert reason
