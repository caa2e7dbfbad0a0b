"""`wellfed tune`: find the loader settings and batch size that keep the device fed."""

from __future__ import annotations

from pathlib import Path

import typer


def tune(
    data: Path = typer.Argument(..., metavar="DATA", help="A converted dataset, or a folder of class folders."),
    step: str = typer.Option(..., "--step", help="resnet18, resnet50, vit_b_16 or MODULE:FUNCTION."),
    device: str = typer.Option("auto", "--device", help="auto, cuda:N or simulated[:PRESET]."),
    util_target: float = typer.Option(70.0, "--util-target", help="Mean GPU utilization to exceed, percent."),
    fed_target: float = typer.Option(0.90, "--fed-target", help="Least share of the speed on cached batches."),
    memory_cap: float = typer.Option(0.70, "--memory-cap", help="Largest share of the device's memory."),
    budget: str = typer.Option(
        "3m", "--budget", help="For probing, measuring and search, as 90s or 3m; compiling is beside it."
    ),
    hold: str = typer.Option("60s", "--hold", help="How long the winner must hold, after the budget."),
    batch_sizes: str | None = typer.Option(None, "--batch-sizes", help="Batch sizes to consider, as 64,128,256."),
    image_size: int = typer.Option(224, "--image-size", help="Pixels on a side."),
    seed: int = typer.Option(0, "--seed", help="Of order and augmentation."),
    current: Path | None = typer.Option(None, "--current", help="Your present settings: JSON, run beside the rest."),
    optimizer: str | None = typer.Option(None, "--optimizer", help="sgd or adam (also AdamW); else the step's own."),
    base_lr: float | None = typer.Option(None, "--base-lr", help="A learning rate that works at --base-batch."),
    base_batch: int | None = typer.Option(None, "--base-batch", help="Samples in a step of the optimizer there."),
    global_batch: int | None = typer.Option(None, "--global-batch", help="The global batch to keep by accumulation."),
    allow_shared_gpu: bool = typer.Option(
        False, "--allow-shared-gpu", help="Measure although other programs compute on the device."
    ),
    output: Path = typer.Option(Path("tuned.json"), "--output", help="Where the tuned config goes."),
    report: Path | None = typer.Option(None, "--report", help="A folder for report.html, report.json, report.md."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as one JSON document."),
) -> None:
    """Find the settings that keep the device fed, by measuring against the training step.

    Exits 4 unless the verdict is `passed`. Ctrl-C after a whole round writes the best so far, and exits 130.

    With `torchrun --nproc-per-node N -m wellfed.pipeline tune ...` N GPUs measure together; rank 0 writes and reports.
    """
    from contextlib import nullcontext

    from ..config import TuneRequest, parse_duration
    from ._outcome import check_output, check_report_folder, load_settings, print_json, print_outcome, told_in_any_case
    from ._step_progress import show_progress

    request = TuneRequest(
        data=str(data),
        step=step,
        device=device,
        util_target=util_target,
        fed_target=fed_target,
        memory_cap=memory_cap,
        budget_seconds=parse_duration(budget),
        hold_seconds=parse_duration(hold),
        batch_sizes=None if batch_sizes is None else _sizes(batch_sizes),
        image_size=image_size,
        seed=seed,
        current=None if current is None else load_settings(current),
        optimizer=optimizer,  # type: ignore[arg-type]  # checked by the request
        base_lr=base_lr,
        base_batch=base_batch,
        global_batch=global_batch,
        allow_shared_gpu=allow_shared_gpu,
    )
    check_output(output)
    check_report_folder(report)

    from ..loader.ranks import found_ranks
    from ..report import validate_report, write_atomically, write_report
    from ..tune import run_tune

    # A step may change the folder, as Hydra does for its scripts.
    target, folder = output.absolute(), None if report is None else report.absolute()
    rank, _ = found_ranks(None, None)
    with show_progress() if rank == 0 else nullcontext() as progress:
        outcome = run_tune(request, progress=progress)
    if rank > 0:
        return  # also where the verdict is not `passed`: torchrun would end rank 0 before it has written
    page = {**outcome.report, "output": {"tuned": str(output)}}
    validate_report(page)
    with told_in_any_case(page, as_json=as_json):
        write_atomically(target, outcome.tuned.to_json())
        paths = {} if folder is None else write_report(page, folder)
    if as_json:
        print_json(page)
    else:
        print_outcome(page, lines=True)
        typer.echo(f"Tuned config: {output}")
        if report is not None:
            typer.echo(f"Report: {report / paths['html'].name}")
    if outcome.interrupted:
        raise typer.Exit(130)
    if outcome.verdict != "passed":
        raise typer.Exit(4)


def _sizes(text: str) -> tuple[int, ...]:
    from ..errors import ConfigError

    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            "--batch-sizes is whole numbers separated by commas", got=text, remedy="Write for example 64,128,256."
        ) from error
