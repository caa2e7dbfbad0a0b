"""`wellfed index`: make tar shards of another tool loadable where they lie."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class _Check(StrEnum):
    DECODE = "decode"
    HEADER = "header"


def index(
    shards: Annotated[
        str, typer.Argument(help="Plain tars in one folder: the folder, 'shard-{000..009}.tar', a glob, or a file.")
    ],
    label_regex: Annotated[
        str | None, typer.Option("--label-regex", help="The class, as a group found in each image's path.")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option("--label-column", help="Extension, or key of the json member, that is the class.")
    ] = None,
    image_column: Annotated[
        str | None, typer.Option("--image-column", help="Extension of the image, where samples have several.")
    ] = None,
    check: Annotated[_Check, typer.Option(help="Decode each image once, or read headers alone.")] = _Check.DECODE,
    workers: Annotated[str, typer.Option(help="Processes: auto (one a core) or a number.")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier index.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Write manifest and indexes beside plain tar shards, so that they load without conversion.

    The tars are left untouched. Compressed ones, and those with a sample's members apart, are refused with the
    command that converts them. Exit code 3: some samples were rejected.
    """
    import json

    from wellfed.converters.inputs import InputOptions
    from wellfed.converters.reindex import index_shards

    from ..formats.summary import printable
    from ._progress import progress_bar
    from ._values import parse_workers

    options = InputOptions(label_regex=label_regex, label_column=label_column, image_column=image_column)
    processes = parse_workers(workers)
    with progress_bar() as progress:
        result = index_shards(
            shards,
            options=options,
            check=check.value,
            workers=processes,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        typer.echo(json.dumps({"schema": "wellfed-indexing", "schema_version": 1, **result.to_dict()}))
    else:
        wids = "and a wids index for the set" if result.wids_index else "no wids index"
        typer.echo(
            f"{result.stored:,} samples indexed, {result.rejected:,} rejected, of {result.found:,} found in "
            f"{result.shards:,} tar(s), {result.bytes / 1e6:,.1f} MB: {result.dali_indexes:,} DALI index(es), {wids}."
        )
        if result.unsafe_names:
            names = ", ".join(map(printable, result.unsafe_names))
            typer.echo(
                "Without a DALI index, as its readers agree only on letters, digits, _ and -, one dot and a lower-case "
                f"extension: tars with such names as {names}."
            )
        if result.unsafe_names or not result.wids_index:
            typer.echo(f"A dataset with every index: {result.convert_command}")
        if result.notes:
            typer.echo("Notes: " + ", ".join(f"{name} {count:,}" for name, count in sorted(result.notes.items())) + ".")
        if result.rejected:
            typer.echo(f"Reasons: {result.directory}/rejects.jsonl")
        typer.echo(f"Load it: DataLoader({result.directory!r}, ...)")
    if result.rejected:
        raise typer.Exit(3)
