"""`wellfed demo`: the whole path on images it makes itself, ending with a report to open."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from wellfed.converters.progress import Progress

    from ..demo.run import OutputName

Report = Callable[[str, float], None]


def demo(
    directory: Path = typer.Option(Path("demo"), "--directory", help="Where everything goes; its own files only."),
    device: str = typer.Option("auto", "--device", help="auto, cuda:N or simulated[:PRESET]."),
    samples: int = typer.Option(300, "--samples", min=32, help="How many images to make."),
) -> None:
    """Make photo-like images, convert and verify them, tune ResNet-50 on them, and leave a report.

    Ends with 0 after its report, whatever the verdict.
    """
    started = time.monotonic()
    typer.echo("Loading torch ...", err=True)

    from wellfed.converters.run import convert
    from wellfed.converters.verify import verify

    from ..demo.photolike import make_photolike
    from ..demo.run import run_demo
    from ..tune import run_tune
    from ._outcome import print_outcome

    def make_images(root: Path, count: int, classes: int, seed: int, report: Report) -> None:
        make_photolike(
            root,
            count=count,
            classes=classes,
            seed=seed,
            progress=lambda done, total: report(f"{done} of {total} images", done / total),
        )

    def convert_to(source: Path, destination: Path, output: OutputName, report: Report) -> None:
        convert(
            source,
            destination,
            output=output,
            progress=lambda p: report(_samples(p), p.done / max(1, p.total)),
        )

    def problems_of(dataset: Path, report: Report) -> list[str]:
        found = verify(dataset, deep=True, progress=lambda p: report(_samples(p), p.done / max(1, p.total)))
        return [str(problem) for problem in found.problems]

    result = run_demo(
        directory,
        device=device,
        samples=samples,
        make_images=make_images,
        convert=convert_to,
        verify=problems_of,
        tune=run_tune,
        stage=_stage,
    )
    typer.echo("")
    print_outcome(result.report, lines=True)
    typer.echo(f"Report:       {result.files['report']}   (open it in a browser; it works offline)")
    typer.echo(f"Tuned config: {result.files['tuned']}")
    typer.echo(f"Try it:       python {result.files['script']}")
    typer.echo(f"The demo took {time.monotonic() - started:.0f} s.", err=True)


def _samples(progress: Progress) -> str:
    return f"{progress.stage}: {progress.done} of {progress.total} samples"


@contextmanager
def _stage(name: str) -> Iterator[Callable[[str, float], None]]:
    from ._step_progress import show_progress

    started = time.monotonic()
    typer.echo(f"> {name}", err=True)
    with show_progress() as progress:
        yield progress
    typer.echo(f"  done in {time.monotonic() - started:.1f} s", err=True)
