"""`wellfed verify`: does a stored dataset hold, to the byte, what was written?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_SHOWN = 50


def verify(
    dst: Annotated[Path, typer.Argument(help="Folder of a converted dataset.")],
    deep: Annotated[bool, typer.Option("--deep", help="Decode each image, too.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make damaged and lost files again, to the byte, then check again.")
    ] = False,
    source: Annotated[
        str | None, typer.Option(metavar="SRC", help="With --repair: what the dataset was converted from, unchanged.")
    ] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="With --repair: unpickle the source again; that runs its code.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Compare a converted dataset with its manifest and index. Exit code 3: damage was found.

    A file's SHA-256 says that it is damaged, the hashes in the index which sample. --repair makes damaged shards again
    from the source; a file is replaced only by one with the manifest's SHA-256.
    """
    import json

    from wellfed.converters.verify import verify as run_verify

    from ..errors import UsageError
    from ._progress import progress_bar

    if source is not None and not repair:
        raise UsageError("--source is what --repair reads", got=source, remedy="Give --repair as well, or neither.")
    repaired: tuple[str, ...] = ()
    with progress_bar() as progress:
        report = run_verify(dst, deep=deep, progress=progress)
    if repair and not report.ok:
        from wellfed.converters.repair import repair as run_repair

        with progress_bar() as progress:
            repaired = run_repair(dst, report.problems, source=source, allow_pickle=allow_pickle, progress=progress)
        if repaired:
            with progress_bar() as progress:
                report = run_verify(dst, deep=deep, progress=progress)
    if as_json:
        document = {"schema": "wellfed-verification", "schema_version": 1, **report.to_dict()}
        typer.echo(json.dumps({**document, "repaired": repaired} if repair else document))
    else:
        for name in repaired:
            typer.echo(f"repaired: {name}")
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
