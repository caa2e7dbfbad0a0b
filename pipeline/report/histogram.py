"""A histogram as an inline SVG chart: upright bars over equal intervals of a linear axis."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from .svg import Axis, Mark, opening

__all__ = ["binned", "histogram_chart"]

_BINS = 30


def binned(values: np.ndarray, *, scale: float = 1.0) -> tuple[Axis, list[int]]:
    """Counts of the values (shape (n,), n > 0) over equal parts of a round axis that holds all of them."""
    axis = Axis.holding([float(values.min()), float(values.max())], zero=False, scale=scale)
    counts, _ = np.histogram(values, bins=_BINS, range=(axis.low, axis.high))
    return axis, [int(count) for count in counts]


def histogram_chart(
    identifier: str,
    axis: Axis,
    counts: Sequence[int],
    *,
    title: str,
    description: str,
    mark: Mark | None = None,
    height: int = 120,
) -> str:
    """The chart.

    Args:
        identifier: unique on the page.
        axis: of the values; the counts are of equal parts of it.
        title, description: what the chart shows, for those who do not see it.
        mark: a vertical reference line.
    """
    top = 20
    out = opening(identifier, title, description, top + height + 22, "histogram")
    highest, width = max(max(counts), 1), 100 / len(counts)
    for value, label in axis.ticks():
        x = axis.at(value)
        anchor = "start" if x < 4 else "end" if x > 96 else "middle"
        out.append(f'<line class="grid" x1="{x:.2f}%" x2="{x:.2f}%" y1="{top}" y2="{top + height + 3}"/>')
        out.append(
            f'<text class="tick" x="{x:.2f}%" y="{top + height + 17}" text-anchor="{anchor}">{escape(label)}</text>'
        )
    for number, count in enumerate(counts):
        if count:
            # A single sample must stay visible beside a thousand.
            tall = max(1.5, height * count / highest)
            low = axis.low + (axis.high - axis.low) * number / len(counts)
            high = axis.low + (axis.high - axis.low) * (number + 1) / len(counts)
            out.append(
                f'<rect class="bin" x="{number * width:.2f}%" y="{top + height - tall:.1f}" width="{width * 0.9:.2f}%" '
                f'height="{tall:.1f}"><title>{low / axis.scale:,.4g} to {high / axis.scale:,.4g}: {count:,}'
                "</title></rect>"
            )
    if mark is not None:
        x = axis.at(mark.value)
        anchor, shift = ("end", -4) if x > 60 else ("start", 4)
        out.append(f'<line class="mark" x1="{x:.2f}%" x2="{x:.2f}%" y1="4" y2="{top + height}"/>')
        out.append(
            f'<text class="mark-label" x="{x:.2f}%" dx="{shift}" y="13" text-anchor="{anchor}">'
            f"{escape(mark.label)}</text>"
        )
    out.append("</svg>")
    return "".join(out)
