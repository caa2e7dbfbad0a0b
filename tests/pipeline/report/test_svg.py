"""Axes and charts."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from wellfed.pipeline.report.svg import Axis, Mark, Row, Series, bullet, line_chart, row_chart

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [([586.0], 0, 600), ([0.0], 0, 0.2 * 5), ([3.0, 707.0], 0, 800), ([-2.0, 8.0], -2, 8), ([], 0, 1)],
)
def test_an_axis_is_round_and_holds_its_values(values: list[float], low: float, high: float) -> None:
    axis = Axis.holding(values)

    assert (axis.low, axis.high) == pytest.approx((low, high))
    assert all(axis.low <= value <= axis.high for value in values)


def test_steps_of_two_and_a_half_are_labelled_with_their_half() -> None:
    labels = [label for _, label in Axis.holding([0.0, 11.0], unit="%").ticks()]

    assert labels == ["0.0%", "2.5%", "5.0%", "7.5%", "10.0%", "12.5%"]


def test_ticks_carry_scale_and_unit() -> None:
    axis = Axis.holding([0.0, 6.3 * 1024], unit=" GiB", scale=1024)

    assert [label for _, label in axis.ticks()] == ["0 GiB", "2 GiB", "4 GiB", "6 GiB", "8 GiB"]
    assert [value for value, _ in axis.ticks()] == [0, 2048, 4096, 6144, 8192]


@pytest.mark.parametrize("values", [[1.0, 1.0], [0.998, 1.004], [2.534, 1.0], [1e-9, 1.0], [1e12, 1.0]])
def test_an_axis_without_zero_never_collapses(values: list[float]) -> None:
    axis = Axis.holding(values, zero=False)

    assert axis.low < axis.high
    assert 2 <= len(axis.ticks()) <= 12
    assert all(0 <= axis.at(value) <= 100 for value in values)


def test_a_bar_is_as_long_as_its_value() -> None:
    svg = row_chart(
        "x",
        [Row(label="a", bar=150.0)],
        Axis(low=0, high=600),
        title="T",
        description="D",
        marks=[Mark(value=300, label="m")],
    )
    tree = ElementTree.fromstring(svg)

    bar = tree.find(f".//{SVG}rect[@class='bar']")
    assert bar is not None
    assert (bar.get("x"), bar.get("width")) == ("0.00%", "25.00%")
    mark = tree.find(f".//{SVG}line[@class='mark target']")
    assert mark is not None
    assert mark.get("x1") == "50.00%"


def test_charts_are_titled_well_formed_and_escaped() -> None:
    hostile = "<script>\"&'"
    rows = row_chart(
        "x",
        [Row(label=hostile, figure=hostile, dots=[1.0], interval=(0.5, 1.5), point=1.0, diamond=1.2)],
        Axis(low=0, high=2, unit=hostile),
        title=hostile,
        description=hostile,
        marks=[Mark(value=1.0, label=hostile)],
    )
    lines = line_chart(
        "y",
        [Series(points=[(0.0, 1.0), (1.0, 2.0)], names=[hostile]), Series(points=[(1.0, 1.0)], crosses=True)],
        Axis(low=0, high=1),
        Axis(low=0, high=2),
        title=hostile,
        description=hostile,
        x_label=hostile,
        verticals=[Mark(value=0.5, label=hostile)],
    )
    for svg in (rows, lines, bullet("z", None, 0.7, title=hostile, good=False)):
        tree = ElementTree.fromstring(svg)
        title = tree.find(f"{SVG}title")
        assert title is not None
        assert title.text == hostile
        assert "<script" not in svg
