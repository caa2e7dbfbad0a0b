"""What a dataset holds as one HTML page: counts, histograms and thumbnails; self-contained and readable offline."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from PIL import Image

from ..decode.reference import decode_rgb
from ..errors import WellfedError
from ..formats import Source
from ..formats.summary import printable
from .histogram import binned, histogram_chart
from .markup import figure, note, page, section, table
from .svg import Axis, Mark, Row, row_chart

__all__ = ["render_dataset"]

THUMBNAILS = 24
_THUMBNAIL_SIZE = (240, 180)
_MOST_CLASSES = 40
_LARGEST, _SMALLEST = 20, 10


def render_dataset(source: Source, summary: Mapping[str, Any]) -> str:
    """The page of a dataset.

    Args:
        source: the opened dataset; 24 of its images are read for thumbnails.
        summary: `formats.summary.summarize` of it.
    """
    name = printable(summary["location"])
    body = [
        _header(name, summary),
        "<main>",
        _thumbnails(source),
        _classes(summary),
        _dimensions(source.index, summary),
        _kinds(summary),
        _origin(summary),
        "</main>",
        f'<footer>Fingerprint <code class="mono">{escape(summary["fingerprint"])}</code>. '
        "Thumbnails are decoded as training sees them: turned as EXIF says, first frame, on white.</footer>",
    ]
    return page(f"Dataset {name}", body, allowed="style-src 'unsafe-inline'; img-src data:")


def _header(name: str, summary: Mapping[str, Any]) -> str:
    sizes = summary["image_bytes"]
    rejected = summary.get("rejected")
    stored = _counted(len(summary["shards"]), "data file") if "shards" in summary else "files as they are"
    tiles = [
        ("Images", f"{summary['samples']:,}", stored),
        ("Classes", f"{len(summary['classes']):,}", _class_range(summary["classes"])),
        ("Image bytes", _bytes(sizes["total"]), f"median {_bytes(sizes['median'])}" if "median" in sizes else ""),
        ("Rejected", "not counted" if rejected is None else f"{rejected:,}", "found and not stored"),
    ]
    shown = "".join(
        f'<div class="tile"><dt>{escape(head)}</dt><dd><span class="value">{escape(value)}</span>'
        f'<span class="detail">{escape(detail)}</span></dd></div>'
        for head, value, detail in tiles
    )
    return (
        f'<header><p class="kicker"><b>wellfed inspect</b> · {escape(summary["kind"])}</p>'
        f'<h1>{escape(name)}</h1><dl class="tiles">{shown}</dl></header>'
    )


def _class_range(classes: Sequence[Mapping[str, Any]]) -> str:
    counts = [each["samples"] for each in classes]
    if not counts:
        return "no labels"
    low, high = min(counts), max(counts)
    return f"{_counted(high, 'image')} each" if low == high else f"{low:,} to {high:,} images each"


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _thumbnails(source: Source) -> str:
    rows = _spread_rows(source.index["label"])
    if not rows:
        return ""
    items = []
    for row in rows:
        entry, path = source.index[row], printable(source.name(row))
        label = int(entry["label"])
        name = source.class_names[label] if 0 <= label < len(source.class_names) else "no class"
        size = f"{int(entry['width'])} x {int(entry['height'])}, " if entry["width"] else ""
        try:
            picture = f'<img alt="{escape(path)}" src="{_data_uri(decode_rgb(source.read(row)))}">'
        except WellfedError as error:
            picture = f'<div class="broken" title="{escape(printable(str(error)))}">cannot be decoded</div>'
        items.append(
            f'<li>{picture}<b title="{escape(printable(name))}">{escape(printable(name))}</b>'
            f'<span title="{escape(path)}">{escape(path)}</span>'
            f"<span>{size}{_bytes(int(entry['size_image']))}</span></li>"
        )
    text = f"{len(rows)} of {len(source):,} images, spread evenly over the classes and within each."
    return section("Samples", f'{note(text)}<ul class="thumbs">{"".join(items)}</ul>', "samples")


def _spread_rows(labels: np.ndarray) -> list[int]:
    """Rows of the images shown: equal shares of evenly chosen classes, evenly placed in each; the same every time."""
    present = np.unique(labels)
    if not len(present):
        return []
    chosen = present[np.unique(np.linspace(0, len(present) - 1, min(THUMBNAILS, len(present))).astype(int))]
    share = -(-THUMBNAILS // len(chosen))
    rows: list[int] = []
    for label in chosen:
        of_class = np.flatnonzero(labels == label)
        rows += of_class[np.unique(np.linspace(0, len(of_class) - 1, min(share, len(of_class))).astype(int))].tolist()
    return rows[:THUMBNAILS]


def _data_uri(pixels: np.ndarray) -> str:
    image = Image.fromarray(pixels)
    image.thumbnail(_THUMBNAIL_SIZE)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _classes(summary: Mapping[str, Any]) -> str:
    classes = [(printable(each["name"]), each["samples"]) for each in summary["classes"]]
    if not classes:
        return ""
    fewest, most = min(count for _, count in classes), max(count for _, count in classes)
    if len(classes) > 1 and fewest == most:
        return section(
            "Classes", note(f"Each of the {len(classes):,} classes has {_counted(most, 'image')}."), "classes"
        )
    caption, shown = "In the order of their labels.", classes
    if len(classes) > _MOST_CLASSES:
        ranked = sorted(classes, key=lambda each: -each[1])
        shown = [*ranked[:_LARGEST], *ranked[-_SMALLEST:]]
        caption = f"The {_LARGEST} largest and the {_SMALLEST} smallest of {len(classes):,}; inspect --json lists all."
    total = max(1, summary["samples"])
    axis = Axis.holding([5, most])
    rows = [
        Row(label=name, figure=f"{count:,} ({100 * count / total:.1f}%)", bar=count, tone="loader")
        for name, count in shown
    ]
    chart = row_chart(
        "classes-chart", rows, axis, title="Images in each class", description=f"Bars for {len(shown)} classes."
    )
    return section("Classes", figure("Images in each class", chart, caption, ""), "classes")


def _dimensions(index: np.ndarray, summary: Mapping[str, Any]) -> str:
    charts = []
    columns = [("width", "Width", index["width"], "px"), ("height", "Height", index["height"], "px")]
    if summary["not_measured"]:
        columns = []
    else:
        columns.append(("shape", "Width / height", index["width"] / np.maximum(index["height"], 1), ""))
    columns.append(("bytes", "Encoded size", index["size_image"], "kB"))
    for identifier, title, values, unit in columns if len(index) else ():
        scale = 1000.0 if unit == "kB" else 1.0
        median = float(np.median(values))
        extremes = f"{values.min() / scale:,.4g} to {values.max() / scale:,.4g}"
        axis, counts = binned(np.asarray(values), scale=scale)
        shown = f"{median / scale:,.2f}" if identifier == "shape" else f"{median / scale:,.0f}"
        chart = histogram_chart(
            identifier,
            axis,
            counts,
            title=title,
            description=f"{len(values):,} images from {extremes} {unit}, median {shown} {unit}.",
            mark=Mark(value=median, label=f"median {shown} {unit}".rstrip()),
        )
        head = f"{title} ({unit})" if unit else title
        caption = f"{extremes}; the highest bar is {_counted(max(counts), 'image')}"
        charts.append(figure(head, chart, caption, ""))
    why = note(f"Dimensions are not measured: {summary['not_measured']}.") if summary["not_measured"] else ""
    return section("Sizes", why + f'<div class="pair">{"".join(charts)}</div>', "sizes")


def _kinds(summary: Mapping[str, Any]) -> str:
    parts = []
    for head, name in (
        ("Pixel mode", "modes"),
        ("EXIF orientation", "orientations"),
        ("Extension", "extensions"),
        ("Note", "notes"),
        ("Skipped entries", "skipped"),
    ):
        if counts := summary.get(name):
            rows = [(printable(str(each)), f"{count:,}") for each, count in counts.items()]
            parts.append(f"<div>{table((head, '#Count'), rows)}</div>")
    return section("Kinds", f'<div class="pair">{"".join(parts)}</div>', "kinds")


def _origin(summary: Mapping[str, Any]) -> str:
    if "source" not in summary:
        return ""
    facts = {
        "Fields": ", ".join(summary["fields"]),
        "Data files": f"{len(summary['shards']):,}, {_bytes(sum(shard['size'] for shard in summary['shards']))}",
        **{f"Option {name}": value for name, value in sorted(summary["options"].items())},
        **{f"Source {name}": value for name, value in sorted(summary["source"].items())},
        "Written by": f"wellfed {summary['tool_version']}",
    }
    shown = "".join(
        f"<dt>{escape(printable(name))}</dt><dd>{escape(printable(str(value)))}</dd>" for name, value in facts.items()
    )
    return section("Where it comes from", f'<dl class="facts">{shown}</dl>', "origin")


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
