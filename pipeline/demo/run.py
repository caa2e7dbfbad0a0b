"""The demo from nothing to a report: make images, convert twice, verify both, tune, write what was found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from ..config import TuneRequest
from ..errors import DamagedDatasetError
from ..report import python_lines, validate_report, write_atomically, write_report
from .folder import claim
from .script import training_script

__all__ = ["DemoResult", "Stage", "run_demo"]

CLASSES = 10
SEED = 0
STEP = "resnet50"
BUDGET_SECONDS = 55.0
HOLD_SECONDS = 60.0

OutputName = Literal["webdataset", "lmdb"]
Progress = Callable[[str, float], None]
Stage = Callable[[str], AbstractContextManager[Progress]]


class Convert(Protocol):
    """Convert the folder `source` into `destination` in the format `output`."""

    def __call__(self, source: Path, destination: Path, output: OutputName, progress: Progress, /) -> None: ...


class Verify(Protocol):
    """Read the whole dataset again; what is wrong with it, empty where nothing is."""

    def __call__(self, dataset: Path, progress: Progress, /) -> list[str]: ...


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo left: the report as a dictionary, the three lines of Python, and the files by name."""

    report: dict[str, Any]
    lines: tuple[str, str, str]
    files: dict[str, Path]


def run_demo(
    directory: Path,
    *,
    device: str,
    samples: int,
    make_images: Callable[[Path, int, int, int, Progress], None],
    convert: Convert,
    verify: Verify,
    tune: Callable[..., Any],
    stage: Stage,
) -> DemoResult:
    """Run every step of the demo in `directory`.

    Args:
        directory: made where missing; only the demo's own files are replaced.
        device: as `wellfed tune --device`.
        samples: how many images to make.
        make_images: (root, count, classes, seed, progress) writes a folder of class folders.
        convert, verify: of the converters, which this package does not import.
        tune: `run_tune`.
        stage: opens a named step and yields its progress callback.

    Raises:
        UsageError: the folder is not the demo's.
        DamagedDatasetError: a converted dataset does not verify.
    """
    claim(directory)
    images = directory / "images"
    datasets: dict[OutputName, Path] = {"webdataset": directory / "wds", "lmdb": directory / "lmdb"}
    with stage(f"Make {samples} photo-like JPEGs in {images}") as progress:
        make_images(images, samples, CLASSES, SEED, progress)
    for output, dataset in datasets.items():
        with stage(f"Convert to {output} in {dataset}") as progress:
            convert(images, dataset, output, progress)
    for output, dataset in datasets.items():
        with stage(f"Verify the {output} dataset, decoding every image") as progress:
            problems = verify(dataset, progress)
        if problems:
            raise DamagedDatasetError(
                f"the dataset {str(dataset)!r} must verify", got="; ".join(problems[:3]), remedy="Run the demo again."
            )
    request = TuneRequest(
        data=str(datasets["webdataset"]),
        step=STEP,
        device=device,
        budget_seconds=BUDGET_SECONDS,
        hold_seconds=HOLD_SECONDS,
        # The loader never repeats samples, so a batch must not be larger than the demo's small set.
        batch_sizes=tuple(size for size in (16, 32, 64, 128, 256) if size <= samples),
        seed=SEED,
    )
    with stage(
        f"Tune against {STEP} ({BUDGET_SECONDS:.0f} s of search, then the winner holds {HOLD_SECONDS:.0f} s)"
    ) as p:
        outcome = tune(request, progress=p)
    tuned, script = directory / "tuned.json", directory / "train.py"
    report = {**outcome.report, "output": {"tuned": str(tuned)}}
    validate_report(report)
    lines = python_lines(report)
    write_atomically(tuned, outcome.tuned.to_json())
    write_atomically(script, training_script(lines, path=str(script), classes=CLASSES))
    pages = write_report(report, directory)
    return DemoResult(
        report=report, lines=lines, files={"report": pages["html"], "tuned": tuned, "script": script, **pages}
    )
