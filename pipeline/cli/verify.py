"""`wellfed verify`: does a stored dataset hold, to the byte, what was written?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_SHOWN = 50


def verify(
    dst: Annotated[Path, typer.Argument(help="Folder of a converted dataset.")],
    deep: Annotated[bool, typer.Option("--deep", help="Decode each image, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Compare a converted dataset with its manifest and index. Exit code 3: damage was found.

    A file's SHA-256 says that it is damaged, the hashes in the index which sample.
    """
    import json

    from wellfed.converters.verify import verify as run_verify

    from ._progress import progress_bar

    with progress_bar() as progress:
        report = run_verify(dst, deep=deep, progress=progress)
    if as_json:
        typer.echo(json.dumps({"schema": "wellfed-verification", "schema_version": 1, **report.to_dict()}))
    else:
        for problem in report.problems[:_SHOWN]:
            typer.echo(f"damaged: {problem}".encode("utf-8", "backslashreplace").decode())
        if len(report.problems) > _SHOWN:
            typer.echo(f"... and {len(report.problems) - _SHOWN:,} more; --json lists all.")
        depth = "compared and decoded" if deep else "compared"
        found = f"{len(report.problems):,} problem(s)" if report.problems else "no damage"
        typer.echo(
            f"{report.checked:,} of {report.samples:,} samples {depth} ({report.kind}), {found}, "
            f"in {report.seconds:.1f} s."
        )
    if not report.ok:
        raise typer.Exit(3)
