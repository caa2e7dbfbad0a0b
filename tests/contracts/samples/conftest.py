"""Samples with fields of every type beside their image, and every backend to load them with."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wellfed.converters import convert
from wellfed.converters.inputs import FieldType, InputOptions
from wellfed.pipeline.loader import DataLoader

SAMPLES = 17
HAS_DALI = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
COLUMNS: tuple[tuple[str, FieldType], ...] = (
    ("caption", "text"),
    ("Second Text", "text"),
    ("count", "number"),
    ("score", "number"),
    ("boxes", "json"),
    ("blob", "bytes"),
    ("tokens", "array"),
    ("fixed", "array"),
    ("box", "json"),
)


def _dali(backend: str, workers: int) -> Any:
    marks = [pytest.mark.skipif(not HAS_DALI, reason="needs NVIDIA DALI (pip install 'wellfed[dali]')")]
    return pytest.param((backend, workers), marks=marks, id=f"{backend}-{workers}")


def _cuda(backend: str, workers: int) -> Any:
    marks = [pytest.mark.gpu]
    if backend != "nvjpeg":
        marks += _dali(backend, workers).marks
    return pytest.param((f"{backend}@cuda", workers), marks=marks, id=f"{backend}@cuda-{workers}")


CASES = [
    pytest.param(("threads", 0), id="threads-0"),
    pytest.param(("threads", 3), id="threads-3"),
    pytest.param(("processes", 2), id="processes-2"),
    _dali("dali", 2),
    _dali("hybrid", 3),
    pytest.param(("threads@cuda", 2), marks=pytest.mark.gpu, id="threads@cuda-2"),
    pytest.param(("processes@cuda", 2), marks=pytest.mark.gpu, id="processes@cuda-2"),
    _cuda("dali", 2),
    _cuda("nvjpeg", 2),
    _cuda("hybrid", 4),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `case` runs on every backend: (name, or NAME@DEVICE, and workers)."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES)


@pytest.fixture(scope="session")
def facts() -> list[dict[str, Any]]:
    """What each sample holds, by row."""
    return [
        {
            "caption": f"Bild {row}, größer" if row % 5 else "",
            "second_text": f"text {row}",
            "count": 1000 * row - 3,
            "score": row / 4,
            "boxes": [{"x": [row, 1], "of": None}] * (row % 3),
            "blob": bytes([row, 255, 0]) * (row % 2),
            "tokens": [float(10 * row + place) for place in range(row % 4)],
            "fixed": [[row, -row], [7, 2**40 + row]],
            "box": f"box {row}",
        }
        for row in range(SAMPLES)
    ]


@pytest.fixture(scope="session")
def rich(facts: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The samples, each with an image of smooth colours, in each kind of storage."""
    folder = tmp_path_factory.mktemp("rich")
    rng = np.random.default_rng(12)
    lines = []
    for row, fact in enumerate(facts):
        small = Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        small.resize((40 + row, 60), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=95)
        line = {
            **fact,
            "Second Text": fact["second_text"],
            "blob": base64.b64encode(fact["blob"]).decode(),
            "bytes": base64.b64encode(buffer.getvalue()).decode(),
            "label": ("cat", "dog")[row % 2],
        }
        lines.append(json.dumps(line) + "\n")
    (folder / "list.jsonl").write_text("".join(lines))
    for kind in ("webdataset", "lmdb"):
        convert(folder / "list.jsonl", folder / kind, output=kind, workers=1, input=InputOptions(columns=COLUMNS))
    return {kind: folder / kind for kind in ("webdataset", "lmdb")}


@pytest.fixture(scope="session")
def open_rich(rich: dict[str, Path]) -> Callable[..., Any]:
    """A loader over the samples: (case, kind of storage or a source, options)."""

    def make(case: tuple[str, int] = ("threads", 0), source: Any = "lmdb", **options: Any) -> Any:
        options = {"batch_size": 5, "shuffle": True, "augment": "train", "image_size": 16, "seed": 4, **options}
        backend, _, device = case[0].partition("@")
        if device:
            options["device"] = device
        if backend == "hybrid":
            options["gpu_share"] = 0.5
        where: Any = rich.get(source, source) if isinstance(source, str) else source
        return DataLoader(where, backend=backend, num_workers=case[1], **options)

    return make
