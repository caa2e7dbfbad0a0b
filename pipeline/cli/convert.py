"""`wellfed convert`: repack images once into shards that read fast."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from wellfed.converters.preview import Preview
    from wellfed.converters.run import ConversionResult


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
    src: Annotated[str, typer.Argument(help="Image folder SRC/CLASS/IMAGE, or another source that is read.")],
    dst: Annotated[Path, typer.Argument(help="Folder for the dataset; missing or empty, or an unfinished conversion.")],
    output: Annotated[_Format, typer.Option("--format", help="How to store it.")],
    kind: Annotated[
        str | None, typer.Option("--input", metavar="KIND", help="Kind of source; left out, it is found out.")
    ] = None,
    label_regex: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Class from the relative path: group `label`, or group 1.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Class names in the order of labels; others are rejected.")
    ] = None,
    image_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column, feature or member with the image.")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column, feature or member with the label.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:TYPE", help="A further field: number, text, json, array or bytes. May be repeated."),
    ] = None,
    root: Annotated[str | None, typer.Option(metavar="PATH", help="What relative paths in a table start from.")] = None,
    source_split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which split of a source that has several.")
    ] = None,
    encoding: Annotated[
        str, typer.Option(metavar="png|jpeg:Q", help="How to encode images that the source holds as pixels.")
    ] = "png",
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Unpickle what the source holds: runs code that it brings.")
    ] = False,
    prefix: Annotated[
        bool, typer.Option("--prefix", help="Of an archive cut short, take the samples before the cut.")
    ] = False,
    include: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only paths that fit; * fits / too. May be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="No paths that fit. May be repeated.")
    ] = None,
    shuffle: Annotated[
        str | None, typer.Option(metavar="SEED", help="Store in a random order, the same for the same seed.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="NAME=SHARE,...", help="Several datasets DST/NAME, split by class: train=0.9,val=0.1."),
    ] = None,
    limit: Annotated[str | None, typer.Option(metavar="N", help="At most N samples, of each part of a split.")] = None,
    shard_size: Annotated[
        str, typer.Option(help="Largest size of a tar, such as 256MB, 1GiB or 1000samples.")
    ] = "256MB",
    workers: Annotated[str, typer.Option(help="Processes; auto is one for each usable core.")] = "auto",
    check: Annotated[_Check, typer.Option(help="Decode each image once, or read only its header.")] = _Check.DECODE,
    image: Annotated[
        str, typer.Option(metavar="keep|baseline|resize:N[@Q]", help="Keep the bytes, or make them easier to decode.")
    ] = "keep",
    on_error: Annotated[
        _OnError, typer.Option(help="A sample that cannot be stored: list it in rejects.jsonl, or stop.")
    ] = _OnError.REJECT,
    max_rejects: Annotated[
        str | None, typer.Option(metavar="N|P%", help="Stop when more samples than this are rejected.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the dataset that is there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Repack images once into WebDataset shards or an LMDB environment that read fast.

    A run that was killed continues when the same command is given again. Exit code 3: done, and some samples were
    rejected; rejects.jsonl in the destination says which and why.
    """
    import json

    from wellfed.converters.inputs import InputOptions
    from wellfed.converters.request import Request
    from wellfed.converters.run import run
    from wellfed.converters.selection import SelectionOptions

    from ._progress import progress_bar
    from ._values import parse_column, parse_names, parse_shard_size, parse_shares, parse_whole, parse_workers

    shard_bytes, shard_samples = parse_shard_size(shard_size, option="--shard-size")
    request = Request(
        src=src,
        dst=dst,
        output=output.value,
        shard_bytes=shard_bytes,
        shard_samples=shard_samples,
        check=check.value,
        image=image,
        input=InputOptions(
            kind=kind,
            label_regex=label_regex,
            image_column=image_column,
            label_column=label_column,
            columns=tuple(parse_column(each, option="--column") for each in column or ()),
            root=root,
            allow_pickle=allow_pickle,
            prefix=prefix,
            encoding=encoding,
            split_name=source_split,
            classes=None if classes is None else parse_names(classes, option="--classes"),
        ),
        selection=SelectionOptions(
            include=tuple(include or ()),
            exclude=tuple(exclude or ()),
            split=() if split is None else parse_shares(split, option="--split"),
            shuffle=None if shuffle is None else parse_whole(shuffle, option="--shuffle"),
            limit=None if limit is None else parse_whole(limit, option="--limit"),
        ),
        workers=parse_workers(workers),
        on_error=on_error.value,
        max_rejects=max_rejects,
        overwrite=overwrite,
    )
    if dry_run:
        from wellfed.converters.preview import preview

        planned = preview(request)
        if as_json:
            typer.echo(json.dumps({"schema": "wellfed-conversion-plan", "schema_version": 1, **planned.to_dict()}))
        else:
            _print_preview(planned, output.value)
        return
    with progress_bar() as progress:
        result = run(request, progress=progress)
    if as_json:
        typer.echo(json.dumps({"schema": "wellfed-conversion", "schema_version": 1, **result.to_dict()}))
    else:
        _print_result(result)
    if result.rejected:
        raise typer.Exit(3)


def _print_preview(planned: Preview, output: str) -> None:
    typer.echo(
        f"Would convert {planned.found:,} samples of {planned.classes:,} classes into {planned.shards:,} "
        f"{output} shard(s) of {planned.result_bytes / 1e6:,.1f} MB in all, using up to "
        f"{planned.bytes / 1e6:,.1f} MB of disk while converting; "
        f"{planned.refused:,} cannot be read. Nothing was written."
    )
    for name, found in planned.parts.items():
        typer.echo(f"  {name}: {found:,} samples")
    if planned.seconds is None:
        typer.echo(f"No estimate of the time: all {planned.sampled} samples tried would be rejected.")
    else:
        typer.echo(
            f"It would take about {_duration(planned.seconds)}, judged by {planned.sampled:,} samples, of which "
            f"{planned.sample_rejected:,} would be rejected."
        )
    _print_counts(planned)


def _print_result(result: ConversionResult) -> None:
    speed = (result.found - result.resumed) / result.seconds
    typer.echo(
        f"{result.stored:,} samples stored, {result.rejected:,} rejected, of {result.found:,} found: "
        f"{result.shards:,} {result.kind} shard(s), {result.bytes / 1e6:,.1f} MB, in {result.seconds:.1f} s "
        f"({speed:,.0f} samples/s, {result.workers} worker(s))."
    )
    for name, part in result.parts.items():
        typer.echo(f"  {name}: {part.stored:,} stored, {part.rejected:,} rejected, {part.shards:,} shard(s)")
    if result.resumed:
        typer.echo(f"Continued: {result.resumed:,} samples were finished by an earlier run.")
    _print_counts(result)
    for part in result.parts.values() or (result,):
        if part.rejected:
            typer.echo(f"Reasons: {Path(part.destination) / 'rejects.jsonl'}")


def _print_counts(said: Preview | ConversionResult) -> None:
    for title, counts in (("Notes", said.notes), ("Skipped", said.skipped)):
        if counts:
            typer.echo(f"{title}: " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) + ".")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
