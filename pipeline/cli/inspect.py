"""`wellfed inspect`: what a dataset holds, from its index and manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ..formats import Source

SHOWN_CLASSES = 20


def inspect(
    dataset: str = typer.Argument(
        ..., help="A converted dataset or its URL, or a folder of class folders.", show_default=False
    ),
    as_json: bool = typer.Option(False, "--json", help="Write one JSON document to standard output."),
    html: Path | None = typer.Option(None, "--html", help="Write a page with histograms and thumbnails to this file."),
) -> None:
    """Show what a dataset holds: classes, sizes, dimensions, image modes, shards."""
    from ..formats import open_source
    from ..formats.summary import summarize

    source = open_source(dataset)
    try:
        _check_has_image(source)
        summary = summarize(source)
        if html is not None and summary["image_bytes"] is None:
            from ..errors import UsageError

            raise UsageError(
                "a page of thumbnails and histograms is of images",
                got=f"{source.location}, which has the fields {', '.join(summary['fields'])}",
                remedy="Leave --html out.",
            )
        if html is not None:
            from ..report import render_dataset, write_atomically

            write_atomically(html, render_dataset(source, summary))
    finally:
        source.close()
    typer.echo(json.dumps(summary, indent=2) if as_json else _text(summary))


def _check_has_image(source: Source) -> None:
    """Look for an image in a folder, which is opened by names alone; stops at the first.

    Raises:
        UsageError: no file of the folder begins as an image does.
    """
    from ..decode.header import read_header
    from ..errors import DamagedDatasetError, SampleRejectedError, UsageError
    from ..formats.summary import printable

    if source.kind != "folder":
        return
    first = ""
    for row in range(len(source)):
        try:
            read_header(source.read(row))
            return
        except (DamagedDatasetError, SampleRejectedError) as error:
            first = first or f"{source.name(row)}: {error.rule}"
    raise UsageError(
        "the folder must hold images",
        got=f"{len(source):,} files, none of them an image; the first is {printable(first)}",
        remedy="Check the path.",
    )


def _text(summary: dict[str, Any]) -> str:
    from ..formats.summary import printable

    sizes = summary["image_bytes"]
    images = f"{_bytes(sizes['total'])} of images" if sizes is not None else "no images"
    lines = [
        f"{printable(summary['location'])}: {summary['kind']}, {summary['samples']:,} samples in "
        f"{len(summary['classes']):,} classes, {images}",
        f"fingerprint  {summary['fingerprint']}",
    ]
    if sizes is not None and "mean" in sizes:
        lines.append(
            f"image bytes  {_bytes(sizes['min'])} to {_bytes(sizes['max'])}, "
            f"mean {_bytes(sizes['mean'])}, median {_bytes(sizes['median'])}"
        )
    for name in ("width", "height"):
        if spread := summary[name]:
            lines.append(
                f"{name:<12} {spread['min']} to {spread['max']} pixels, "
                f"mean {spread['mean']:g}, median {spread['median']:g}"
            )
    if summary["not_measured"]:
        lines.append(f"dimensions   not measured: {summary['not_measured']}")
    for title, name in (
        ("modes", "modes"),
        ("orientations", "orientations"),
        ("extensions", "extensions"),
        ("notes", "notes"),
        ("skipped", "skipped"),
    ):
        if counts := summary.get(name):
            lines.append(f"{title:<12} {_counts(counts)}")
    if (rejected := summary.get("rejected")) is not None:
        lines.append(f"rejected     {rejected}")
    if "shards" in summary:
        total = sum(shard["size"] for shard in summary["shards"])
        lines.append(f"shards       {len(summary['shards']):,}, {_bytes(total)}; fields {', '.join(summary['fields'])}")
        lines.append(f"written by   wellfed {summary['tool_version']}")
    lines.append("classes")
    # A thousand lines would push the rest off the screen; --json has them all.
    for entry in summary["classes"][:SHOWN_CLASSES]:
        lines.append(f"  {entry['samples']:>9,}  {printable(entry['name'])}")
    if (more := len(summary["classes"]) - SHOWN_CLASSES) > 0:
        lines.append(f"  and {more:,} more (--json lists them all)")
    return "\n".join(lines)


def _counts(counts: Any) -> str:
    from ..formats.summary import printable

    if not isinstance(counts, dict):
        return str(counts)
    return ", ".join(f"{printable(str(name))} {count}" for name, count in counts.items()) or "none"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
