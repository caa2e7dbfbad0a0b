"""`wellfed convert`: repack an image folder into shards that read fast."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class _Format(StrEnum):
    WEBDATASET = "webdataset"
    LMDB = "lmdb"


class _Check(StrEnum):
    DECODE = "decode"
    HEADER = "header"


class _OnError(StrEnum):
    REJECT = "reject"
    FAIL = "fail"


def convert(
    src: Annotated[Path, typer.Argument(help="Image folder: SRC/CLASS/IMAGE.")],
    dst: Annotated[Path, typer.Argument(help="Folder for the dataset; missing or empty, or an unfinished conversion.")],
    output: Annotated[_Format, typer.Option("--format", help="How to store it.")],
    shard_size: Annotated[str, typer.Option(help="Largest size of a tar, such as 256MB or 1GiB.")] = "256MB",
    workers: Annotated[str, typer.Option(help="Processes; auto is one for each usable core.")] = "auto",
    check: Annotated[_Check, typer.Option(help="Decode each image once, or read only its header.")] = _Check.DECODE,
    on_error: Annotated[
        _OnError, typer.Option(help="A sample that cannot be stored: list it in rejects.jsonl, or stop.")
    ] = _OnError.REJECT,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the dataset that is there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Repack an image folder once into WebDataset shards or an LMDB environment that read fast.

    A run that was killed continues when the same command is given again. Exit code 3: done, and some files were
    rejected; rejects.jsonl in the destination says which and why.
    """
    import json

    from wellfed.converters.run import convert as run_convert
    from wellfed.converters.run import preview

    from ._progress import progress_bar
    from ._values import parse_bytes, parse_workers

    shard_bytes, processes = parse_bytes(shard_size, option="--shard-size"), parse_workers(workers)
    if dry_run:
        planned = preview(src, dst, output=output.value, shard_bytes=shard_bytes)
        if as_json:
            typer.echo(json.dumps({"schema": "wellfed-conversion-plan", "schema_version": 1, **planned.to_dict()}))
        else:
            typer.echo(
                f"Would convert {planned.found:,} files of {planned.classes:,} classes into {planned.shards:,} "
                f"{output.value} shard(s), using {planned.bytes / 1e6:,.1f} MB of disk; "
                f"{planned.refused:,} cannot be read. Nothing was written.",
            )
        return
    with progress_bar() as progress:
        result = run_convert(
            src,
            dst,
            output=output.value,
            shard_bytes=shard_bytes,
            workers=processes,
            check=check.value,
            on_error=on_error.value,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        typer.echo(json.dumps({"schema": "wellfed-conversion", "schema_version": 1, **result.to_dict()}))
    else:
        speed = (result.found - result.resumed) / result.seconds
        typer.echo(
            f"{result.stored:,} samples stored, {result.rejected:,} rejected, of {result.found:,} found: "
            f"{result.shards:,} {result.kind} shard(s), {result.bytes / 1e6:,.1f} MB, in {result.seconds:.1f} s "
            f"({speed:,.0f} samples/s, {result.workers} worker(s))."
        )
        if result.resumed:
            typer.echo(f"Continued: {result.resumed:,} samples were finished by an earlier run.")
        if result.notes:
            typer.echo("Notes: " + ", ".join(f"{name} {count:,}" for name, count in sorted(result.notes.items())) + ".")
        if result.skipped:
            listed = ", ".join(f"{name} {count:,}" for name, count in sorted(result.skipped.items()))
            typer.echo(f"Skipped: {listed}.")
        if result.rejected:
            typer.echo(f"Reasons: {dst / 'rejects.jsonl'}")
    if result.rejected:
        raise typer.Exit(3)
