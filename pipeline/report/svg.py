"""Two kinds of inline SVG chart: rows (bars, dots, intervals) and lines over an axis.

Horizontal positions are percentages and text keeps its size, so a chart is as readable at 360 px as at 1,100 px and
needs no script. Colours come from the page's style sheet (classes), so charts follow light, dark and print.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Axis", "Mark", "Row", "Series", "bullet", "line_chart", "opening", "row_chart"]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A linear axis from low to high; `unit` follows the labels of its ticks."""

    low: float
    high: float
    unit: str = ""
    scale: float = 1.0

    @classmethod
    def holding(cls, values: Sequence[float], *, zero: bool = True, unit: str = "", scale: float = 1.0) -> Axis:
        """The smallest round axis that holds `values`, from zero where asked; never empty."""
        finite = [value for value in values if math.isfinite(value)] or [0.0, scale]
        low, high = min(finite), max(finite)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if low == high:
            low, high = (low, high + (abs(high) or scale)) if zero else (low - 0.05 * scale, high + 0.05 * scale)
        step = _tick_step((high - low) / scale) * scale
        return cls(low=math.floor(low / step) * step, high=math.ceil(high / step) * step, unit=unit, scale=scale)

    def at(self, value: float) -> float:
        """Position in percent of the axis, kept within it."""
        return min(100.0, max(0.0, 100 * (value - self.low) / (self.high - self.low)))

    def ticks(self) -> list[tuple[float, str]]:
        """Positions and labels of the ticks."""
        step = _tick_step((self.high - self.low) / self.scale)
        places = max(0, -math.floor(math.log10(step)))
        if abs(step * 10**places - round(step * 10**places)) > 1e-9:
            places += 1  # steps of 2.5
        first, last = math.ceil(self.low / self.scale / step - 1e-9), math.floor(self.high / self.scale / step + 1e-9)
        return [(n * step * self.scale, f"{n * step:,.{places}f}{self.unit}") for n in range(first, last + 1)]


def _tick_step(span: float) -> float:
    raw = span / 5
    power = 10.0 ** math.floor(math.log10(raw))
    return power * next(factor for factor in (1, 2, 2.5, 5, 10) if raw <= factor * power * 1.0001)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: a label, the figure in words, and what is drawn; `tone` is a class of the style sheet."""

    label: str
    figure: str = ""
    bar: float | None = None
    dots: Sequence[float] = ()
    interval: tuple[float, float] | None = None
    point: float | None = None
    diamond: float | None = None
    tone: str = "plain"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A reference line with its label, at a value of the axis it crosses."""

    value: float
    label: str
    tone: str = "target"


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points (x, y), joined by a line or not; `crosses` draws them as crosses."""

    points: Sequence[tuple[float, float]]
    tone: str = "plain"
    line: bool = True
    dots: bool = True
    crosses: bool = False
    dashed: bool = False
    names: Sequence[str] = field(default=())


def opening(identifier: str, title: str, description: str, height: float, kind: str) -> list[str]:
    """The start of a chart, with its words for assistive technology; the caller closes the element."""
    return [
        f'<svg class="chart {kind}" role="img" height="{height:g}" width="100%" '
        f'aria-labelledby="{identifier}-t {identifier}-d" xmlns="http://www.w3.org/2000/svg">',
        f'<title id="{identifier}-t">{escape(title)}</title>',
        f'<desc id="{identifier}-d">{escape(description)}</desc>',
    ]


def _anchor(position: float) -> tuple[str, int]:
    return ("end", -6) if position > 55 else ("start", 6)


def row_chart(
    identifier: str,
    rows: Sequence[Row],
    axis: Axis,
    *,
    title: str,
    description: str,
    marks: Sequence[Mark] = (),
    origin: float | None = None,
) -> str:
    """Rows of bars, dots and intervals over one axis.

    Args:
        identifier: unique on the page; ids for assistive technology are made from it.
        rows: top to bottom.
        axis: of every row.
        title, description: what the chart shows, for those who do not see it.
        marks: vertical reference lines, each labelled on a line of its own above the rows.
        origin: where bars start; the axis' low end when None.
    """
    row_height, top, foot = 42, 18 * len(marks) + 4, 22
    bottom = top + row_height * len(rows)
    out = opening(identifier, title, description, bottom + foot, "rows")
    for value, label in axis.ticks():
        x = axis.at(value)
        anchor = "start" if x < 4 else "end" if x > 96 else "middle"
        out.append(f'<line class="grid" x1="{x:.2f}%" x2="{x:.2f}%" y1="{top}" y2="{bottom + 2}"/>')
        out.append(f'<text class="tick" x="{x:.2f}%" y="{bottom + 17}" text-anchor="{anchor}">{escape(label)}</text>')
    for number, mark in enumerate(marks):
        x = axis.at(mark.value)
        anchor, shift = _anchor(x)
        y = 18 * number + 4
        out.append(f'<line class="mark {mark.tone}" x1="{x:.2f}%" x2="{x:.2f}%" y1="{y}" y2="{bottom + 2}"/>')
        out.append(
            f'<text class="mark-label {mark.tone}" x="{x:.2f}%" dx="{shift}" y="{y + 11}" '
            f'text-anchor="{anchor}">{escape(mark.label)}</text>'
        )
    start = axis.at(axis.low if origin is None else origin)
    for number, row in enumerate(rows):
        out += _row(row, axis, start, top + row_height * number)
    out.append("</svg>")
    return "".join(out)


def _row(row: Row, axis: Axis, start: float, y: float) -> list[str]:
    middle = y + 28
    out = [f'<g class="{escape(row.tone)}">']
    if row.bar is not None:
        end = axis.at(row.bar)
        x, width = min(start, end), abs(end - start)
        out.append(f'<rect class="bar" x="{x:.2f}%" y="{middle - 7}" width="{width:.2f}%" height="14" rx="1"/>')
    if row.interval is not None:
        low, high = (axis.at(value) for value in row.interval)
        out.append(f'<line class="interval" x1="{low:.2f}%" x2="{high:.2f}%" y1="{middle}" y2="{middle}"/>')
        for x in (low, high):
            out.append(f'<line class="interval" x1="{x:.2f}%" x2="{x:.2f}%" y1="{middle - 5}" y2="{middle + 5}"/>')
    for value in row.dots:
        out.append(f'<circle class="dot" cx="{axis.at(value):.2f}%" cy="{middle}" r="3"/>')
    if row.point is not None:
        out.append(f'<circle class="point" cx="{axis.at(row.point):.2f}%" cy="{middle}" r="5"/>')
    if row.diamond is not None:
        out.append(
            f'<svg class="glyph" x="{axis.at(row.diamond):.2f}%" y="{middle}" width="1" height="1">'
            '<path class="diamond" d="M0-6.5 6.5 0 0 6.5-6.5 0Z"/></svg>'
        )
    out.append(f'<text class="label" x="0" y="{y + 14}">{escape(row.label)}</text>')
    out.append(f'<text class="figure" x="100%" y="{y + 14}" text-anchor="end">{escape(row.figure)}</text></g>')
    return out


def line_chart(
    identifier: str,
    series: Sequence[Series],
    x_axis: Axis,
    y_axis: Axis,
    *,
    title: str,
    description: str,
    x_label: str,
    marks: Sequence[Mark] = (),
    verticals: Sequence[Mark] = (),
    height: int = 200,
) -> str:
    """Series over two axes, with horizontal marks (targets, caps) and vertical ones (epoch boundaries)."""
    top = 20 if verticals else 10
    out = opening(identifier, title, description, top + height + 38, "lines")
    for value, label in y_axis.ticks():
        y = top + height * (1 - y_axis.at(value) / 100)
        out.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text class="tick" x="-8" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>')
    for value, label in x_axis.ticks():
        x = x_axis.at(value)
        out.append(
            f'<text class="tick" x="{x:.2f}%" y="{top + height + 16}" text-anchor="middle">{escape(label)}</text>'
        )
    out.append(f'<text class="axis-label" x="100%" y="{top + height + 33}" text-anchor="end">{escape(x_label)}</text>')
    for mark in verticals:
        x = x_axis.at(mark.value)
        anchor, shift = _anchor(x)
        out.append(f'<line class="mark {mark.tone}" x1="{x:.2f}%" x2="{x:.2f}%" y1="4" y2="{top + height}"/>')
        out.append(
            f'<text class="mark-label {mark.tone}" x="{x:.2f}%" dx="{shift}" y="13" '
            f'text-anchor="{anchor}">{escape(mark.label)}</text>'
        )
    out.append(f'<svg class="plot" x="0" y="{top}" width="100%" height="{height}">')
    for one in series:
        out += _series(one, x_axis, y_axis)
    out.append("</svg>")
    for mark in marks:
        y = top + height * (1 - y_axis.at(mark.value) / 100)
        out.append(f'<line class="mark {mark.tone}" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        # What is measured should lie above a target and below a cap: the label goes to the other side.
        beside = y - 5 if mark.tone == "cap" else y + 14
        out.append(
            f'<text class="mark-label {mark.tone}" x="100%" dx="-4" y="{beside:.1f}" '
            f'text-anchor="end">{escape(mark.label)}</text>'
        )
    out.append("</svg>")
    return "".join(out)


def _series(one: Series, x_axis: Axis, y_axis: Axis) -> list[str]:
    places = [(x_axis.at(x), 100 - y_axis.at(y)) for x, y in one.points]
    out = [f'<g class="{escape(one.tone)}">']
    if one.line and len(places) > 1:
        path = " ".join(f"{10 * x:.1f},{10 * y:.1f}" for x, y in places)
        style = "line dashed" if one.dashed else "line"
        out.append(
            '<svg width="100%" height="100%" viewBox="0 0 1000 1000" preserveAspectRatio="none">'
            f'<polyline class="{style}" points="{path}"/></svg>'
        )
    names = [*one.names, *[""] * (len(places) - len(one.names))]
    for (x, y), name in zip(places, names, strict=False) if one.dots else ():
        shape = f'<circle class="dot" cx="{x:.2f}%" cy="{y:.2f}%" r="3.5">{_title(name)}</circle>'
        if one.crosses:
            shape = (
                f'<svg class="glyph" x="{x:.2f}%" y="{y:.2f}%" width="1" height="1">'
                f'<path class="cross" d="M-5-5 5 5M-5 5 5-5">{_title(name)}</path></svg>'
            )
        out.append(shape)
    out.append("</g>")
    return out


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def bullet(identifier: str, value: float | None, target: float | None, *, title: str, good: bool) -> str:
    """A thin gauge from 0 to 1 with a tick at the target; empty where nothing was measured."""
    out = opening(identifier, title, title, 14, "bullet")
    out.append('<rect class="track" x="0" y="4" width="100%" height="6" rx="3"/>')
    if value is not None:
        tone = "good" if good else "bad"
        width = 100 * min(1.0, max(0.0, value))
        out.append(f'<rect class="fill {tone}" x="0" y="4" width="{width:.2f}%" height="6" rx="3"/>')
    if target is not None:
        x = 100 * min(1.0, max(0.0, target))
        out.append(f'<line class="tip" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="14"/>')
    out.append("</svg>")
    return "".join(out)
