"""`wellfed bench`: measure settings against the step, beside stock torch, without searching."""

from __future__ import annotations

from pathlib import Path

import typer


def bench(
    data: Path = typer.Argument(..., metavar="DATA", help="A converted dataset, or a folder of class folders."),
    step: str = typer.Option(..., "--step", help="resnet18, resnet50, vit_b_16 or MODULE:FUNCTION."),
    config: Path | None = typer.Option(None, "--config", help="A tuned config or loader settings: JSON."),
    against: str | None = typer.Option(None, "--against", help="torch: run stock torch in turn with it."),
    image_size: int | None = typer.Option(
        None, "--image-size", help="Pixels on a side.", show_default="the tuned config's, else 224"
    ),
    device: str = typer.Option("auto", "--device", help="auto, cuda:N or simulated[:PRESET]."),
    allow_shared_gpu: bool = typer.Option(
        False, "--allow-shared-gpu", help="Measure although other programs compute on the device."
    ),
    report: Path | None = typer.Option(None, "--report", help="A folder for report.html, report.json, report.md."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as one JSON document."),
) -> None:
    """Measure one set of loader settings against the training step.

    Exits 4 unless the verdict is `passed`.
    """
    from ..config import LoaderSettings
    from ..errors import UsageError
    from ._outcome import check_report_folder, load_config, print_json, print_outcome, told_in_any_case
    from ._step_progress import show_progress

    if against not in (None, "torch"):
        raise UsageError("--against knows one peer, torch", got=against, remedy="Write --against torch.")
    settings = LoaderSettings() if config is None else load_config(config)
    check_report_folder(report)

    from ..report import validate_report, write_report
    from ..tune import run_bench

    # A step may change the folder.
    folder = None if report is None else report.absolute()
    with show_progress() as progress:
        found = run_bench(
            str(data),
            step,
            device,
            settings=settings,
            image_size=image_size,
            against_torch=against == "torch",
            allow_shared_gpu=allow_shared_gpu,
            progress=progress,
        )
    page = {**found, "output": {} if config is None else {"config": str(config)}}
    validate_report(page)
    with told_in_any_case(page, as_json=as_json):
        paths = {} if folder is None else write_report(page, folder)
    if as_json:
        print_json(page)
    else:
        print_outcome(page, lines=False)
        if report is not None:
            typer.echo(f"Report: {report / paths['html'].name}")
    if page["verdict"]["name"] != "passed":
        raise typer.Exit(4)
